//! Operator commands with failures between the ledger and the buckets.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::Tier;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{ErrorClass, Ledger};
use floodgate::domain::{Epoch, Phase, Refusal, SaleDraft};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::{Clock, ManualClock, SharedClock};
use floodgate::services::rebuild::load_sku;
use floodgate::services::sales::SalesError;
use floodgate::stock::Stock;
use floodgate::tier::Backends;

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::gate::{GateFixture, PATIENT};
use crate::support::harness::{
    Harness, Offer, START_MS, UNLIMITED, in_system, is_placed, settings,
};
use crate::support::relays::{FakeLease, Holders, InjectedFaults};
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: UNLIMITED, stock: 5, buckets: 2 };

/// Crash point `phase_set_not_applied`.
#[test]
fn phase_set_not_applied_is_applied_by_the_next_start() {
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let settings = settings(Tier::Memory);
        let crashed = Harness::open(&settings, ledger.clone(), OFFER).await;
        crashed.sales.set_phase(&"sale".parse().unwrap(), Phase::Paused, None).await.unwrap();
        // The ledger opens the sale again, and the buckets are not updated.
        let sale = "sale".parse().unwrap();
        ledger.set_sale_phase(sale, Epoch(1), Phase::Open, START_MS, None).await.unwrap().unwrap();
        assert!(!is_placed(&crashed.buy_as(1, 1, 1).await));

        let next = Harness::start(&settings, ledger);
        next.sales.restore().await.unwrap();
        assert!(is_placed(&next.buy_as(1, 1, 1).await));
        next.assert_holds().await;
    });
}

fn refused(refusal: Refusal) -> BuyAnswer {
    BuyAnswer::refused(refusal)
}

/// A harness whose stock can be made to fail.
fn in_front_of(ledger: Arc<dyn Ledger>) -> (Harness, Arc<FaultyStock>) {
    let settings = settings(Tier::Memory);
    let clock = Arc::new(ManualClock::new(START_MS));
    let shared: SharedClock = clock.clone();
    let mut backends = Backends::embedded(settings.tier, ledger, &shared);
    let stock = Arc::new(FaultyStock::new(backends.stock));
    backends.stock = stock.clone();
    (Harness::on(&settings, backends, clock), stock)
}

/// The same, with an open sale.
async fn open_in_front_of(ledger: Arc<dyn Ledger>) -> (Harness, Arc<FaultyStock>) {
    let (harness, stock) = in_front_of(ledger);
    harness.create(OFFER, START_MS - 1000).await;
    harness.set_phase(Phase::Open).await;
    (harness, stock)
}

async fn phase_in(ledger: &dyn Ledger) -> (Epoch, Phase) {
    let sales = ledger.sales().await.unwrap();
    (sales[0].epoch, sales[0].phase)
}

#[test]
fn buckets_of_open_sales_are_loaded_first() {
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let (harness, _) = in_front_of(ledger.clone());
        let ids = ["first", "second", "third", "fourth", "fifth", "running"];
        for id in ids {
            harness.sales.create(OFFER.draft(id, START_MS - 1_000)).await.unwrap();
            for phase in [Phase::Open, Phase::Closed] {
                if phase == Phase::Open || id != "running" {
                    harness.sales.set_phase(&id.parse().unwrap(), phase, None).await.unwrap();
                }
            }
        }
        let (next, stock) = in_front_of(ledger);
        next.sync().await.unwrap();
        let running = next.catalog.sale("running").unwrap().skus[0].no;
        assert_eq!((stock.loads().len(), stock.loads()[0]), (ids.len(), running));
    });
}

/// The closing does not change the window: orders are compared with it.
#[test]
fn a_closed_sale_is_listed_for_a_day_after_its_closing_by_every_process() {
    const DAY_MS: i64 = 86_400_000;
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let ((closing, _), (reading, _)) =
            (in_front_of(ledger.clone()), in_front_of(ledger.clone()));
        let ends_at_ms = START_MS + 30 * DAY_MS;
        let draft = SaleDraft { ends_at_ms, ..OFFER.draft("sale", START_MS - 1_000) };
        closing.sales.create(draft).await.unwrap();
        closing.set_phase(Phase::Open).await;
        reading.sales.refresh_catalog().await.unwrap();
        closing.set_phase(Phase::Closed).await;
        reading.sales.refresh_catalog().await.unwrap();
        let (restarted, _) = in_front_of(ledger);
        restarted.sales.restore().await.unwrap();
        for process in [closing, reading, restarted] {
            let num_listed = |later_ms| process.catalog.all_public(START_MS + later_ms).len();
            assert_eq!([DAY_MS, DAY_MS + 1].map(num_listed), [1, 0]);
            assert_eq!(process.catalog.sale("sale").unwrap().ends_at_ms, ends_at_ms);
        }
    });
}

#[test]
fn a_pause_that_misses_the_buckets_holds_in_ledger_and_catalog() {
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let (harness, stock) = open_in_front_of(ledger.clone()).await;
        let sale = "sale".parse().unwrap();
        stock.set_refusing(true);
        let paused = harness.sales.set_phase(&sale, Phase::Paused, None).await;
        let phase = Phase::Paused;
        assert!(matches!(paused, Err(SalesError::NotApplied { phase: to, .. }) if to == phase));
        assert_eq!(phase_in(&*ledger).await, (Epoch(1), Phase::Paused));
        assert_eq!(harness.catalog.sale("sale").unwrap().phase, Phase::Paused);
        // Buckets that may still sell under this epoch block the next epoch.
        let opened = harness.sales.set_phase(&sale, Phase::Open, None).await;
        assert!(matches!(opened, Err(SalesError::Stock(_))), "{opened:?}");
        assert_eq!(phase_in(&*ledger).await, (Epoch(1), Phase::Paused));

        stock.set_refusing(false);
        harness.sales.set_phase(&sale, Phase::Paused, None).await.unwrap();
        assert_eq!(harness.buy_as(1, 1, 1).await, refused(Refusal::NotStarted));
        harness.sales.set_phase(&sale, Phase::Open, None).await.unwrap();
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        harness.assert_holds().await;
    });
}

#[test]
fn a_verb_that_the_ledger_does_not_commit_fails_and_leaves_the_buckets_selling() {
    in_system(async {
        let ledger =
            Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
        let (harness, _) = open_in_front_of(ledger.clone()).await;
        let unknown = Fault::RefusesAll(ErrorClass::Unknown);
        let phases = [Phase::Paused, Phase::Closed].into_iter();
        let cases = phases.flat_map(|phase| [(phase, Fault::Down), (phase, unknown)]);
        for (request, (phase, fault)) in (1..).zip(cases) {
            ledger.set(fault);
            let refused = harness.sales.set_phase(&"sale".parse().unwrap(), phase, None).await;
            assert!(matches!(refused, Err(SalesError::Ledger(_))), "{fault:?}: {refused:?}");
            ledger.set(Fault::None);
            assert!(is_placed(&harness.buy_as(request, 1, 1).await), "{phase:?} {fault:?}");
        }
        harness.assert_holds().await;
    });
}

#[test]
fn a_sale_whose_creation_had_no_answer_is_opened() {
    for fault in [Fault::AnswerLost, Fault::AnswerLostThenDown] {
        in_system(async {
            let inner = Arc::new(DefectiveLedger::new(LedgerDefect::None));
            let ledger = Arc::new(FaultyLedger::new(inner));
            let (harness, _) = in_front_of(ledger.clone());
            harness.sales.create(OFFER.draft("other", START_MS)).await.unwrap();
            // The ledger has another description, or no sale of this name.
            ledger.set(Fault::RefusesAll(ErrorClass::Unknown));
            for name in ["other", "missing"] {
                let unknown = harness.sales.create(OFFER.draft(name, START_MS - 1)).await;
                assert!(matches!(unknown, Err(SalesError::Ledger(_))), "{name}: {unknown:?}");
            }
            ledger.set(fault);
            let created = harness.sales.create(OFFER.draft("sale", START_MS - 1000)).await;
            assert_eq!(created.is_ok(), fault == Fault::AnswerLost, "{fault:?}: {created:?}");
            ledger.set(Fault::None);
            harness.set_phase(Phase::Open).await;
            assert!(is_placed(&harness.buy_as(1, 1, 1).await), "{fault:?}");
            harness.assert_holds().await;
        });
    }
}

#[test]
fn the_first_poll_sets_the_phase_that_another_process_left_unset() {
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let (harness, _) = open_in_front_of(ledger.clone()).await;
        let set_phase =
            |seen, next| ledger.set_sale_phase("sale".parse().unwrap(), seen, next, START_MS, None);
        set_phase(Epoch(1), Phase::Closed).await.unwrap().unwrap();
        harness.sync().await.unwrap();
        let sku = harness.catalog.sale("sale").unwrap().skus[0].clone();
        let health = harness.backends.stock.health(&sku, Phase::Closed, Epoch(1)).await;
        assert_eq!(health, Ok(floodgate::stock::BucketHealth::Ready));
        assert_eq!(harness.buy_as(1, 1, 1).await, refused(Refusal::Ended));
    });
}

#[test]
fn a_load_publishes_the_phase_of_the_sale_when_the_buckets_are_held() {
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let (harness, stock) = open_in_front_of(ledger.clone()).await;
        let sku = harness.catalog.sale("sale").unwrap().skus[0].clone();
        stock.forget(sku.no);
        stock.set(StockFault::LoadWaits(sku.no));
        let loader = ledger.begin_load(sku.no).await.unwrap();
        let loading = load_sku(&*ledger, &*stock, &sku, loader, Vec::new());
        // Another process closes the sale after the loader began, and cannot update the buckets.
        let closing = async {
            until("the loader", async || (stock.num_waiting() == 1).then_some(())).await;
            let set_phase = ledger.set_sale_phase(
                "sale".parse().unwrap(),
                Epoch(1),
                Phase::Closed,
                START_MS,
                None,
            );
            set_phase.await.unwrap().unwrap();
            stock.set(StockFault::None);
        };
        let (loaded, ()) = tokio::join!(loading, closing);
        loaded.unwrap();
        let health = stock.health(&sku, Phase::Closed, Epoch(1)).await;
        assert_eq!(health, Ok(floodgate::stock::BucketHealth::Ready));
    });
}

#[test]
fn the_gates_of_a_sale_end_a_day_after_its_window_and_its_requests_are_read_on() {
    let fixture = GateFixture::new();
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let harness = Harness::start_on_redis(&fixture.settings(&PATIENT), ledger).await;
        harness.create(OFFER, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        let reservation = harness.ask(1, 1, 1);
        assert!(is_placed(&harness.gates.buy(reservation).await));
        harness.set_phase(Phase::Closed).await;
        let sale = harness.catalog.sale("sale").unwrap();
        let has_gates = || {
            let reports = harness.actors.supervisor.report();
            reports.iter().any(|report| report.kind == "stock_gate")
        };
        harness.clock.set_wall_ms(sale.ends_at_ms + 86_400_000);
        harness.sales.refresh_catalog().await.unwrap();
        assert!(has_gates());
        harness.clock.set_wall_ms(sale.ends_at_ms + 86_400_001);
        harness.sales.refresh_catalog().await.unwrap();
        until("the end of the gates", async || (!has_gates()).then_some(())).await;
        let recorded = async || {
            let (request, buyer) = (reservation.request, reservation.buyer);
            harness.gates.record(&sale.skus[0], request, buyer).await
        };
        for _ in 0..2 {
            assert!(recorded().await.unwrap().is_some());
            harness.sales.refresh_catalog().await.unwrap();
        }
        let repeated = harness.gates.buy(reservation).await;
        assert!(matches!(repeated, BuyAnswer::Ordered { replayed: true, .. }), "{repeated:?}");
        let more = harness.ask(1, 1, 2);
        let reused = BuyAnswer::refused(Refusal::RequestIdReused);
        assert_eq!(harness.gates.buy(more).await, reused);
        assert_eq!(harness.gates.buy(harness.ask(2, 2, 1)).await, BuyAnswer::Busy);

        // Redis loses the buckets of the sale. Each sync looks at one such sale.
        harness.sales.create(OFFER.draft("older", START_MS - 9 * 86_400_000)).await.unwrap();
        for phase in [Phase::Open, Phase::Closed] {
            harness.sales.set_phase(&"older".parse().unwrap(), phase, None).await.unwrap();
        }
        fixture.redis.cmd(&["FLUSHALL"]);
        assert!(recorded().await.is_err());
        until("the loaded request", async || {
            harness.sync().await.unwrap();
            recorded().await.is_ok_and(|record| record.is_some()).then_some(())
        })
        .await;
        harness.assert_holds().await;
    });
}

#[test]
fn an_interrupted_load_is_not_repeated_after_that_of_another_process() {
    let fixture = GateFixture::new();
    in_system(async {
        let (settings, holders) = (fixture.settings(&PATIENT), Arc::<Holders>::default());
        let clock = Arc::new(ManualClock::new(START_MS));
        let ledger: Arc<dyn Ledger> = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let process = async || {
            let shared: SharedClock = clock.clone();
            let mut backends =
                Backends::on_redis(&settings, ledger.clone(), &shared).await.unwrap();
            let stock = Arc::new(FaultyStock::new(backends.stock));
            backends.stock = stock.clone();
            let (holders, faults) = (holders.clone(), InjectedFaults::default());
            backends.lease = Arc::new(FakeLease { holders, clock: shared, faults });
            (Harness::on(&settings, backends, clock.clone()), stock)
        };
        let ((first, stock), (second, _)) = (process().await, process().await);
        first.create(OFFER, START_MS - 1000).await;
        first.set_phase(Phase::Open).await;
        let sku = first.catalog.sale("sale").unwrap().skus[0].clone();
        let bucket = fixture.names("fg:{*:bucket").remove(0);
        // The buckets are held for a load. The process that begins it loses the lease.
        let operator = ledger.begin_load(sku.no).await.unwrap();
        drop(stock.load(sku.clone(), operator).await.unwrap());
        stock.set(StockFault::LoadWaits(sku.no));
        let losing = async {
            until("the load", async || (stock.num_waiting() == 1).then_some(())).await;
            let other = ("other".to_owned(), clock.now() + Duration::from_secs(60));
            holders.lock().insert("loader".to_owned(), other);
        };
        let (interrupted, ()) = tokio::join!(first.sync(), losing);
        let is_fenced =
            matches!(&interrupted, Err(SalesError::Stock(floodgate::stock::Error::Fenced { .. })));
        assert!(is_fenced, "{interrupted:?}");
        stock.set(StockFault::None);
        holders.lock().clear();
        second.sync().await.unwrap();
        let loaded = fixture.field(&bucket, "loaded");
        // The lease returns.
        holders.lock().clear();
        first.sync().await.unwrap();
        assert_eq!(fixture.field(&bucket, "loaded"), loaded);
        assert_eq!(fixture.field(&bucket, "loading"), None);
    });
}

/// Each clock differs from the ledger's by as much as is trusted.
#[test]
fn an_order_was_in_time_by_every_trusted_clock() {
    let mut settings = settings(Tier::Memory);
    settings.payment.clock_skew_max_ms = 10_000;
    for (behind_ms, holds) in [(20_000, true), (20_001, false)] {
        let folder = tempfile::tempdir().unwrap();
        in_system(async {
            let options = OpenOptions::new(folder.path().join("ledger.db"));
            let ledger: Arc<dyn Ledger> = Arc::new(SqliteLedger::open(&options).unwrap());
            let harness = Harness::open(&settings, ledger, OFFER).await;
            assert!(is_placed(&harness.buy(1).await));
            // The process that pauses the sale is behind the one that sold.
            harness.clock.set_wall_ms(START_MS - behind_ms);
            harness.set_phase(Phase::Paused).await;
            let report = harness.audit(0).await;
            assert_eq!(report.holds, holds, "{behind_ms} ms behind: {report:#?}");
        });
    }
}
