//! The ledger fails behind tier `gate`: C12. Accepted requests stay accepted and become orders when
//! the ledger returns. Meanwhile no other request is accepted, and no unit is released while an
//! outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{Ledger, OrderReader};
use floodgate::domain::{BucketKey, OrderIntent, Phase, Refusal, Verdict};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::{Clock, SharedClock};
use floodgate::services::audit::AuditReport;
use floodgate::tier::Backends;
use futures_util::future::join_all;

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::gate::{GateFixture, PATIENT};
use crate::support::harness::{Harness, ONE_PER_BUYER, Offer, START_MS, in_system, is_placed};
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::{until, until_true};

const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 100, buckets: 2 };

async fn open(fixture: &GateFixture, ledger: Arc<dyn Ledger>, more: &[(&str, &str)]) -> Harness {
    let settings =
        fixture.settings(&[&PATIENT[..], &[("consumer.attempts_max", "2")], more].concat());
    let harness = Harness::start_on_redis(&settings, ledger).await;
    harness.create(OFFER, START_MS - 1000).await;
    harness.set_phase(Phase::Open).await;
    harness
}

fn key_of(reservation: &OrderIntent) -> BucketKey {
    BucketKey { sku: reservation.sku, bucket: reservation.bucket }
}

async fn buy_all(harness: &Harness, buyers: std::ops::RangeInclusive<u64>) -> Vec<BuyAnswer> {
    join_all(buyers.map(|buyer| harness.buy_as(buyer, buyer, 1))).await
}

/// Retries the purchase until it is an order.
async fn buy_for_sure(harness: &Harness, buyer: u64) {
    until("an order", async || {
        let answer = harness.buy_as(buyer, buyer, 1).await;
        assert!(!matches!(answer, BuyAnswer::Refused { .. }), "{answer:?}");
        if is_placed(&answer) {
            return Some(());
        }
        // A slow ledger may have opened the breaker: it permits a probe later.
        harness.clock.advance(Duration::from_millis(200));
        None
    })
    .await;
}

/// Free units in Redis.
async fn free_units(harness: &Harness) -> u32 {
    harness.free().await.iter().sum()
}

/// Advances the clock, so that gates resubmit, until every accepted request is an order.
async fn drained(harness: &Harness) -> AuditReport {
    until("every accepted request to be an order", async || {
        harness.clock.advance(Duration::from_millis(200));
        let report = harness.try_audit(0).await.ok()?;
        (report.holds && report.could_tell).then_some(report)
    })
    .await
}

/// Buys while the ledger fails, and checks that an open breaker lets no further request in. Returns
/// the number of accepted requests.
async fn accepted_while_failing(harness: &Harness) -> u32 {
    let answers = join_all((1..=40).map(|buyer| harness.buy_until_decided(buyer))).await;
    let is_unsettled = |answer: &BuyAnswer| {
        matches!(answer, BuyAnswer::Queued { .. } | BuyAnswer::Unknown | BuyAnswer::Busy)
    };
    assert!(answers.iter().flatten().all(is_unsettled), "{answers:?}");
    let taken = OFFER.stock - free_units(harness).await;
    assert!(taken > 0);
    until("an open breaker", async || harness.actors.breaker.is_open().then_some(())).await;
    // The clock stands still, so the breaker permits no probe.
    let late = buy_all(harness, 41..=60).await;
    assert_eq!(late, [BuyAnswer::Busy; 20]);
    assert_eq!(
        OFFER.stock - free_units(harness).await,
        taken,
        "no unit was reserved, none released"
    );
    taken
}

async fn healed(harness: &Harness, taken: u32) {
    let report = drained(harness).await;
    assert_eq!(report.num_orders, u64::from(taken), "one order for each accepted request");
    until("a closed breaker", async || (!harness.actors.breaker.is_open()).then_some(())).await;
    drop(buy_all(harness, 1..=100).await);
    for buyer in 1..=100 {
        buy_for_sure(harness, buyer).await;
    }
    let sold_out = BuyAnswer::refused(Refusal::SoldOut);
    until("sold out", async || {
        let answer = harness.buy_as(101, 101, 1).await;
        let is_retryable = matches!(answer, BuyAnswer::Busy | BuyAnswer::Unknown);
        assert!(is_retryable || answer == sold_out, "{answer:?}");
        (!is_retryable).then_some(())
    })
    .await;
    assert_eq!(drained(harness).await.num_orders, 100);
}

#[test]
fn requests_accepted_before_the_ledger_failed_become_orders() {
    for fault in [Fault::Down, Fault::AnswerLost] {
        let fixture = GateFixture::new();
        in_system(async {
            let ledger =
                Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
            let harness = open(&fixture, ledger.clone(), &[]).await;
            ledger.set(fault);
            let taken = accepted_while_failing(&harness).await;
            ledger.set(Fault::None);
            healed(&harness, taken).await;
        });
    }
}

#[test]
fn a_ledger_that_hangs_leaves_outcomes_unknown_and_gives_nothing_back() {
    let fixture = GateFixture::new();
    in_system(async {
        let ledger =
            Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
        let harness = open(&fixture, ledger.clone(), &[]).await;
        harness.gates_begun().await;
        ledger.set(Fault::Frozen);
        let answers = buy_all(&harness, 1..=20).await;
        assert_eq!(answers, [BuyAnswer::Unknown; 20]);
        until("the reservations", async || (free_units(&harness).await == 80).then_some(())).await;
        ledger.set(Fault::None);
        healed(&harness, 20).await;
    });
}

#[test]
fn a_probe_closes_the_breaker_when_nothing_else_is_under_way() {
    let fixture = GateFixture::new();
    in_system(async {
        let ledger =
            Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
        let harness = open(&fixture, ledger, &[]).await;
        harness.actors.breaker.open();
        assert_eq!(harness.buy_as(1, 1, 1).await, BuyAnswer::Busy);
        harness.clock.advance(Duration::from_secs(1));
        assert!(is_placed(&harness.buy_as(2, 2, 1).await), "the breaker permits a probe");
        assert!(is_placed(&harness.buy_as(1, 1, 1).await), "the breaker is closed");
    });
}

#[test]
fn a_gate_that_waits_for_an_answer_still_resubmits_for_a_crashed_process() {
    let fixture = GateFixture::new();
    in_system(async {
        let ledger =
            Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
        let own = [("consumer.batch_max", "1")];
        let settings = fixture.settings(&[&PATIENT[..], &own].concat());
        let offer = Offer { buckets: 1, ..OFFER };
        let harness = Harness::start_on_redis(&settings, ledger.clone()).await;
        harness.create(offer, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        harness.gates_begun().await;
        // One placement never returns.
        let stuck = harness.ask(7, 7, 1);
        ledger.set(Fault::NeverAnswers(stuck.request));
        assert_eq!(harness.buy_until_decided(7).await, None);
        until("the batch of the stuck request", async || {
            ledger.batches().contains(&vec![7]).then_some(())
        })
        .await;
        // Another process accepts a request and crashes.
        let clock: SharedClock = harness.clock.clone();
        let backends = Backends::on_redis(&settings, ledger.clone(), &clock).await.unwrap();
        let crashed_stock = backends.stock;
        let sku = harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone();
        let reservation = harness.ask(8, 8, 1);
        crashed_stock.health(&sku, Phase::Open, reservation.epoch).await.unwrap();
        assert_eq!(
            crashed_stock.reserve(key_of(&reservation), vec![reservation]).await,
            Ok(vec![Verdict::Reserved])
        );

        harness.clock.advance(Duration::from_secs(1));
        until("the order of the crashed process", async || {
            ledger.order_timeline(reservation.request).await.unwrap().map(|timeline| timeline.order)
        })
        .await;
        ledger.set(Fault::None);
        assert_eq!(drained(&harness).await.num_orders, 2);
    });
}

/// Waits until the gates have looked for old requests several times.
async fn gates_have_looked(harness: &Harness) {
    let num_steps = || {
        let gates = harness.actors.supervisor.report();
        gates.iter().filter(|it| it.kind == "stock_gate").map(|it| it.steps).sum::<u64>()
    };
    let before = num_steps();
    until("steps of the gates", async || (num_steps() > before + 20).then_some(())).await;
}

#[test]
fn a_request_is_submitted_again_once_it_is_old_whichever_way_the_clock_steps() {
    for step_ms in [3_600_000, -3_600_000] {
        let fixture = GateFixture::new();
        in_system(async {
            let ledger =
                Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
            let own = [("gate.resubmit_after_ms", "60000")];
            let harness = open(&fixture, ledger.clone(), &own).await;
            harness.gates_begun().await;
            ledger.set(Fault::Down);
            let reservation = harness.ask(1, 1, 1);
            let queued = BuyAnswer::Queued { replayed: false };
            assert_eq!(harness.gates.buy(reservation).await, queued);
            ledger.set(Fault::None);
            gates_have_looked(&harness).await;
            let order = async || ledger.order_timeline(reservation.request).await.unwrap();
            assert_eq!(order().await, None, "young: its own process submits it");
            harness.clock.set_wall_ms(harness.clock.wall_ms() + step_ms);
            until("its order", order).await;
        });
    }
}

/// Breaks a real database and heals it.
fn database_outage(fail: impl Fn(&MariaDb, &FaultProxy), heal: impl Fn(&MariaDb, &FaultProxy)) {
    let fixture = GateFixture::new();
    let database = MariaDb::start();
    let proxy = FaultProxy::start(database.addr());
    let options = MysqlOptions {
        job_deadline_ms: 1_500,
        statement_timeout_ms: 1_200,
        connect_timeout_ms: 1_000,
        ..MysqlOptions::new(MariaDb::url_by(proxy.addr()))
    };
    let ledger = Arc::new(MysqlLedger::open(&options).unwrap());
    in_system(async {
        let harness = open(&fixture, ledger, &[]).await;
        buy_for_sure(&harness, 100).await;
        fail(&database, &proxy);
        let taken = accepted_while_failing(&harness).await;
        heal(&database, &proxy);
        healed(&harness, taken).await;
    });
}

#[test]
fn a_database_that_was_killed_takes_what_was_accepted_when_it_is_back() {
    database_outage(|database, _| database.kill(), |database, _| database.restart());
}

#[test]
fn a_database_that_hangs_takes_what_was_accepted_when_it_goes_on() {
    database_outage(|database, _| database.stop(), |database, _| database.cont());
}

#[test]
fn a_database_in_a_black_hole_takes_what_was_accepted_when_it_is_reachable() {
    let heal = |_: &MariaDb, proxy: &FaultProxy| {
        proxy.set(Mode::Reset);
        until_true("all connections to be closed", || proxy.open() == 0);
        proxy.heal();
    };
    database_outage(|_, proxy| proxy.set(Mode::Lose(None)), heal);
}
