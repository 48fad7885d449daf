//! Each test disables one guard of the ledger, sells through the real actors, and audits.

use std::sync::Arc;
use std::time::Duration;

use floodgate::broker::{Route, Subscriber};
use floodgate::config::Tier;
use floodgate::db::{DeadLetterStore, SaleStore};
use floodgate::domain::invariants::{
    BucketFacts, BucketView, Checker, DETAILS_MAX, SkuFacts, Violation,
};
use floodgate::domain::{
    AuditVerdict, BucketKey, BucketNo, InvariantId, Order, OrderState, Phase, PhaseChange,
    PhaseHistory, Policy, RepairAction, SkuNo,
};
use floodgate::services::audit::{AuditReport, AuditSources, EVIDENCE, audit, audit_all};

use crate::support::dead_letter_collectors::DeadLetterFixture;
use crate::support::dead_letters::new_dead_letter;
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::harness::{
    Harness, ONE_PER_BUYER, Offer, START_MS, UNLIMITED, broken, in_system, settings,
};
use crate::support::offers::{self, intent};
use crate::support::wait::until;

/// Sells to three buyers, one of them twice, over a ledger with this defect. Returns the invariants
/// that the audit reports as broken.
fn found_with(defect: LedgerDefect, tier: Tier, policy: Policy, stock: u32) -> Vec<InvariantId> {
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(defect));
        let harness =
            Harness::open(&settings(tier), ledger, Offer { policy, stock, buckets: 1 }).await;
        for buyer in [1, 2, 3, 1] {
            harness.buy(buyer).await;
        }
        broken(&harness.audit(0).await)
    })
}

#[test]
fn an_honest_ledger_breaks_nothing() {
    for tier in [Tier::Memory, Tier::Ledger] {
        for policy in [ONE_PER_BUYER, UNLIMITED, Policy::Quota { limit: 1, max_quantity: 1 }] {
            assert_eq!(found_with(LedgerDefect::None, tier, policy, 2), []);
        }
    }
}

#[test]
fn without_the_stock_guard_no_oversell_is_broken() {
    let found = found_with(LedgerDefect::IgnoresStock, Tier::Ledger, UNLIMITED, 1);
    assert!(found.contains(&InvariantId::NoOversell), "{found:?}");
}

#[test]
fn without_the_request_key_one_order_per_request_is_broken() {
    let found = found_with(LedgerDefect::IgnoresRequests, Tier::Memory, UNLIMITED, 9);
    assert!(found.contains(&InvariantId::OneOrderPerRequest), "{found:?}");
}

#[test]
fn without_the_slot_key_limit_held_is_broken() {
    assert_eq!(
        found_with(LedgerDefect::IgnoresLimit, Tier::Ledger, ONE_PER_BUYER, 9),
        [InvariantId::LimitHeld]
    );
}

#[test]
fn without_the_quota_guard_limit_held_is_broken() {
    let quota = Policy::Quota { limit: 1, max_quantity: 1 };
    assert_eq!(
        found_with(LedgerDefect::IgnoresLimit, Tier::Ledger, quota, 9),
        [InvariantId::LimitHeld]
    );
}

#[test]
fn a_failure_beside_an_order_breaks_nothing_lost() {
    assert_eq!(
        found_with(LedgerDefect::RecordsBoth, Tier::Memory, UNLIMITED, 9),
        [InvariantId::NothingLost]
    );
}

#[test]
fn units_that_vanish_break_stock_conserved() {
    let found = found_with(LedgerDefect::LosesStock, Tier::Memory, UNLIMITED, 9);
    assert!(found.contains(&InvariantId::StockConserved), "{found:?}");
}

#[test]
fn a_success_without_an_order_breaks_status_monotone() {
    let found = found_with(LedgerDefect::ForgetsOrders, Tier::Memory, UNLIMITED, 9);
    assert!(found.contains(&InvariantId::StatusMonotone), "{found:?}");
    assert!(found.contains(&InvariantId::NothingLost), "{found:?}");
}

#[test]
fn units_that_come_back_without_a_record_break_compensated_once() {
    assert_eq!(
        found_with(LedgerDefect::RefusesSilently, Tier::Memory, ONE_PER_BUYER, 9),
        [InvariantId::CompensatedOnce]
    );
}

#[test]
fn an_order_of_an_older_opening_breaks_fenced() {
    assert_eq!(
        found_with(LedgerDefect::StampsOldEpoch, Tier::Memory, UNLIMITED, 9),
        [InvariantId::Fenced]
    );
}

#[test]
fn an_order_with_another_amount_breaks_terms_held() {
    assert_eq!(
        found_with(LedgerDefect::ChangesAmounts, Tier::Memory, UNLIMITED, 9),
        [InvariantId::TermsHeld]
    );
}

/// A harness whose ledger never answers and whose gate has accepted request 1; and its bucket.
async fn with_one_accepted(ledger: Arc<DefectiveLedger>) -> (Harness, BucketKey) {
    let offer = Offer { policy: UNLIMITED, stock: 9, buckets: 1 };
    let harness = Harness::open(&settings(Tier::Memory), ledger, offer).await;
    let key = BucketKey { sku: harness.ask(1, 1, 1).sku, bucket: BucketNo(0) };
    harness.gates_begun().await;
    assert_eq!(harness.buy_until_decided(1).await, None);
    (harness, key)
}

#[test]
fn a_ledger_that_never_answers_breaks_drains() {
    in_system(async {
        let (harness, _) =
            with_one_accepted(Arc::new(DefectiveLedger::new(LedgerDefect::Hangs))).await;
        assert_eq!(broken(&harness.audit(30_000).await), []);
        let found = until("the drain limit", || async {
            let found = broken(&harness.audit(30_001).await);
            (!found.is_empty()).then_some(found)
        });
        assert_eq!(found.await, [InvariantId::Drains]);
    });
}

/// What an audit can read between the gates and the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PipelineState {
    Empty,
    /// The outbox has an entry of the request.
    HasEntry,
    /// The order queue has no consumer: it may be a quorum queue without majority.
    HasNoConsumer,
}

/// Audits `later_ms` after a request was accepted without an answer of the ledger and stored as a
/// dead letter.
fn found_of_a_dead_lettered_request(
    defect: LedgerDefect,
    later_ms: i64,
    found: PipelineState,
) -> AuditReport {
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(defect));
        let (harness, key) = with_one_accepted(ledger.clone()).await;
        ledger.store_dead_letters(vec![new_dead_letter(&[1])], START_MS).await.unwrap();

        let fixture = DeadLetterFixture::new();
        let consumer = fixture.broker.subscribe(Route::Orders(0), 1).await.unwrap();
        let consumer = (found != PipelineState::HasNoConsumer).then_some(consumer);
        if found == PipelineState::HasEntry {
            fixture.simulation.store.put(key, fixture.body(&[1]));
        }
        let pipeline = fixture.pipeline(&fixture.broker);
        let stock = harness.backends.stock.as_ref();
        let (stock, pipeline) = (Some(stock), Some(&pipeline));
        let sources =
            AuditSources { ledger: ledger.as_ref(), stock, pipeline, recheck: Duration::ZERO };
        let report = audit_all(sources, None, START_MS + later_ms).await.unwrap();
        drop(consumer);
        report
    })
}

#[test]
fn a_dead_letter_is_an_end_of_its_request() {
    let report =
        found_of_a_dead_lettered_request(LedgerDefect::Hangs, 30_001, PipelineState::Empty);
    assert!(report.holds && report.could_tell, "{report:#?}");
    assert_eq!(report.num_dead_letters, 1);
}

#[test]
fn a_request_that_is_in_no_store_breaks_nothing_lost() {
    let defect = LedgerDefect::ForgetsDeadLetters;
    let report = found_of_a_dead_lettered_request(defect, 30_001, PipelineState::Empty);
    assert_eq!(broken(&report), [InvariantId::NothingLost, InvariantId::Drains]);
    let lost = report.violations.iter().find(|v| v.invariant == InvariantId::NothingLost);
    let detail = &lost.unwrap().detail;
    assert!(detail.contains("request 1: queued for over 30 s"), "{detail}");
    assert_eq!(report.num_dead_letters, 0);
}

#[test]
fn a_request_in_flight_is_not_lost() {
    let defect = LedgerDefect::ForgetsDeadLetters;
    for found in [PipelineState::HasEntry, PipelineState::HasNoConsumer] {
        let report = found_of_a_dead_lettered_request(defect, 30_001, found);
        assert_eq!(broken(&report), [InvariantId::Drains], "{found:?}");
        let waits = "1 of 1 queued requests waited for over 30 s without a result";
        assert!(report.notes[0].contains(waits), "{report:#?}");
    }
    let young = found_of_a_dead_lettered_request(defect, 30_000, PipelineState::Empty);
    assert!(young.holds && !young.could_tell, "the request may be in flight: {young:#?}");
    assert!(young.notes[0].contains("the buckets have 1 queued, and none that"), "{young:#?}");
}

/// If the buckets of a SKU cannot be read, the audit still checks the ledger. It leaves a sale
/// undecided unless the sale is dormant.
#[test]
fn gates_that_cannot_be_read_do_not_end_the_audit() {
    in_system(async {
        for (defect, expected) in [
            (LedgerDefect::None, vec![]),
            (LedgerDefect::IgnoresRequests, vec![InvariantId::OneOrderPerRequest]),
        ] {
            let ledger = Arc::new(DefectiveLedger::new(defect));
            let offer = Offer { policy: UNLIMITED, stock: 9, buckets: 1 };
            let harness = Harness::open(&settings(Tier::Memory), ledger.clone(), offer).await;
            harness.buy(1).await;
            let stock = FaultyStock::new(Arc::clone(&harness.backends.stock));
            stock.set(StockFault::Fenced);
            let audit = async |now| audit(Some(&stock), &*ledger, None, now).await.unwrap();

            let open = audit(START_MS).await;
            assert!(expected.iter().all(|id| broken(&open).contains(id)), "{open:#?}");
            assert_eq!(open.holds, expected.is_empty(), "{open:#?}");
            assert!(open.num_orders > 0 && !open.could_tell, "{open:#?}");
            let note = &open.notes[0];
            assert!(note.starts_with("orders of sku "), "{note}");
            assert!(note.contains("fenced on purpose"), "{note}");

            let sale = ledger.sales().await.unwrap().remove(0);
            let closed_sale =
                ledger.set_sale_phase(sale.id, sale.epoch, Phase::Closed, START_MS, None).await;
            assert_eq!(closed_sale.unwrap().unwrap().phase, Phase::Closed);
            let closed = audit(START_MS).await;
            assert_eq!(broken(&closed), broken(&open));
            assert!(!closed.could_tell, "its buckets may still be loaded: {closed:#?}");
            let dormant = audit(START_MS + 3 * 86_400_000).await;
            assert_eq!(broken(&dormant), broken(&open));
            assert!(dormant.could_tell, "{dormant:#?}");
            assert!(dormant.notes[0].contains("sell nothing any more"), "{dormant:#?}");
        }
    });
}

#[test]
fn every_invariant_states_its_evidence() {
    let stated: Vec<_> = EVIDENCE.iter().map(|(id, _)| *id).collect();
    let all = [
        InvariantId::NoOversell,
        InvariantId::OneOrderPerRequest,
        InvariantId::LimitHeld,
        InvariantId::NothingLost,
        InvariantId::StockConserved,
        InvariantId::StatusMonotone,
        InvariantId::CompensatedOnce,
        InvariantId::Drains,
        InvariantId::Fenced,
        InvariantId::TermsHeld,
        InvariantId::MoneyAccounted,
    ];
    assert_eq!(stated, all);
}

/// An ended order of two units: in its gate live or not, and what the gate has and gave back.
#[test]
fn units_of_an_ended_order_that_come_back_twice_or_never_break_compensated_once() {
    use InvariantId::{CompensatedOnce, StockConserved};
    let sku = offers::sku(1, UNLIMITED, 10);
    let ended = Order {
        state: OrderState::TimedOut,
        version: 1,
        counts_for_limit: false,
        ..intent(&sku, 1, 1, 2).order(START_MS)
    };
    let cases = [
        ((true, 8, 0), vec![]),
        ((false, 10, 2), vec![]),
        ((false, 12, 4), vec![StockConserved, CompensatedOnce]),
        ((false, 8, 0), vec![StockConserved, CompensatedOnce]),
        ((false, 10, 0), vec![CompensatedOnce]),
        ((true, 10, 2), vec![StockConserved, CompensatedOnce]),
    ];
    for ((is_live, left, returned_units), expected) in cases {
        let mut checker = Checker::default();
        checker.begin(SkuFacts {
            sku: sku.no,
            initial: 10,
            available: 10,
            policy: sku.policy,
            history: sku.history.clone(),
            price: sku.price,
            starts_at_ms: 0,
            ends_at_ms: i64::MAX,
            phases: PhaseHistory::new(vec![PhaseChange {
                epoch: ended.epoch,
                phase: Phase::Open,
                changed_at_ms: 0,
                applied_at_ms: Some(0),
            }]),
            given_back_units: 0,
        });
        checker.order(&ended, Some(BucketView::Ordered { is_live }));
        let gates = BucketFacts {
            counts_units: true,
            left,
            num_ordered: 1,
            returned_units,
            ..BucketFacts::default()
        };
        checker.end(Some(gates), START_MS);
        let mut found: Vec<_> = checker.finish().iter().map(|v| v.invariant).collect();
        found.sort();
        assert_eq!(found, expected, "{is_live} {left} {returned_units}");
    }
}

#[test]
fn violations_without_details_are_counted_by_invariant() {
    let wrong_quota = |sku| Violation::wrong_quota(SkuNo(sku), 1, 2, 1);
    let fenced = || {
        let (verdict, action) = (AuditVerdict::Drift, RepairAction::Record);
        Violation::new(InvariantId::Fenced, verdict, action, "late".to_owned())
    };
    let (mut all, mut other) = (Checker::default(), Checker::default());
    (0..DETAILS_MAX).for_each(|_| all.report(wrong_quota(1)));
    (0..DETAILS_MAX + 2).for_each(|_| other.report(fenced()));
    all.absorb(other);
    let invariants = [InvariantId::Fenced, wrong_quota(1).invariant, InvariantId::MoneyAccounted];
    let expected = [DETAILS_MAX as u64 + 2, DETAILS_MAX as u64, 0];
    assert_eq!(invariants.map(|invariant| all.num_of(invariant)), expected);
    assert_eq!((all.num_violations(), all.finish().len()), (202, DETAILS_MAX));
}

#[test]
fn a_violation_that_the_first_read_has_without_details_is_confirmed() {
    let of_sku = |sku| Violation::wrong_quota(SkuNo(sku), 1, 2, 1);
    let (mut first, mut second) = (Checker::default(), Checker::default());
    (0..DETAILS_MAX).for_each(|_| first.report(of_sku(1)));
    assert!(first.may_concern(SkuNo(1)) && !first.may_concern(SkuNo(2)));
    first.report(of_sku(2));
    assert!(first.may_concern(SkuNo(2)), "of any SKU");
    second.report(of_sku(2));
    assert_eq!(first.confirm(&second), DETAILS_MAX as u64);
    assert_eq!(first.num_violations(), 1);
    let kept = first.finish();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].is_same(&of_sku(2)) && kept[0].action.is_none(), "{kept:?}");
}
