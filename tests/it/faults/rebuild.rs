//! Buckets that are loaded again while all processes run, and results that the loads did not read.
//! Covers the crash points `opened` and `held_by_operator`.

use std::sync::Arc;
use std::time::Duration;

use floodgate::db::{DeadLetterStore, OrderWriter};
use floodgate::domain::{
    BucketKey, Failure, OrderIntent, Phase, RecordState, Refusal, Sku, Verdict,
};
use floodgate::messages::{BuyAnswer, envelope};
use floodgate::runtime::clock::{ManualClock, SharedClock};
use floodgate::services::rebuild::load_sku;
use floodgate::services::sales::SalesError;
use floodgate::stock::Error;
use floodgate::tier::Backends;
use serde_json::json;

use crate::support::crowd::{STEADY, send_until};
use crate::support::dead_letter_collectors::{DeadLetterFixture, received};
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::gate::{
    GateFixture, LONG_LEASE, PATIENT, metric, purchases, retry_until_answered,
};
use crate::support::harness::{
    Harness, ONE_PER_BUYER, Offer, START_MS, UNLIMITED, in_system, is_placed,
};
use crate::support::intents::pack_into;
use crate::support::offers::without_intent;
use crate::support::relays::INSTALLATION;
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 10, buckets: 2 };

/// Tier `gate`, with one open sale.
async fn harness(fixture: &GateFixture) -> Harness {
    let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
    let harness = Harness::start_on_redis(&fixture.settings(&PATIENT), ledger).await;
    harness.create(OFFER, START_MS - 1000).await;
    harness.set_phase(Phase::Open).await;
    harness
}

fn sku_of(harness: &Harness) -> Arc<Sku> {
    harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone()
}

fn home(reservation: &OrderIntent) -> BucketKey {
    BucketKey { sku: reservation.sku, bucket: reservation.bucket }
}

/// Crash point `opened`.
#[test]
fn decisions_during_a_load_are_recorded() {
    let fixture = GateFixture::new();
    in_system(async {
        let harness = harness(&fixture).await;
        let (stock, ledger) = (harness.backends.stock.clone(), harness.backends.ledger.clone());
        let sku = sku_of(&harness);
        let [before, ordered, refused, ended] = [1, 2, 3, 4].map(|no| harness.ask(no, no, 1));
        let failure = |reservation: &OrderIntent| Failure {
            request: reservation.request,
            sku: sku.no,
            buyer: reservation.buyer,
            quantity: 1,
            reason: Refusal::Ended,
            recorded_at_ms: START_MS,
        };
        ledger.place(vec![before]).await.unwrap();
        ledger.record_failures(vec![failure(&ended)]).await.unwrap();
        // Redis loses all data; the messages of these requests are in the broker.
        fixture.redis.cmd(&["FLUSHALL"]);
        let loader = ledger.begin_load(sku.no).await.unwrap();
        let loaded = load_sku(&*ledger, &*stock, &sku, loader, Vec::new()).await.unwrap();
        assert_eq!(loaded.num_orders, 1);
        let failed = |answers: Result<Vec<Verdict>, Error>| {
            let is_failed = |state: RecordState| state == RecordState::Failed(Refusal::Ended);
            matches!(answers.as_deref(), Ok([Verdict::Repeat(record)]) if is_failed(record.state))
        };
        assert!(failed(stock.reserve(home(&ended), vec![ended]).await));
        ledger.place(vec![ordered]).await.unwrap();
        ledger.record_failures(vec![failure(&refused)]).await.unwrap();
        assert_eq!(stock.record(home(&ordered), ordered.request, None).await, Ok(None));

        assert_eq!(loaded.catch_up(&*ledger, &*stock, &sku, false).await.unwrap(), 2);
        harness.assert_holds().await;
        assert_eq!(harness.free().await.iter().sum::<u32>(), 8);
        assert!(failed(stock.reserve(home(&refused), vec![refused]).await));
        assert_eq!(
            stock
                .record(home(&ordered), ordered.request, Some(ordered.buyer))
                .await
                .unwrap()
                .map(|found| matches!(found.state, RecordState::Ordered { .. })),
            Some(true)
        );
        // Later orders do not belong to the load, and no order is entered twice.
        assert!(is_placed(&harness.buy_as(5, 5, 1).await));
        loaded.catch_up(&*ledger, &*stock, &sku, false).await.unwrap();
        harness.assert_holds().await;
        assert_eq!(harness.free().await.iter().sum::<u32>(), 7);
    });
}

#[test]
fn a_load_that_the_ledger_did_not_let_finish_is_repeated() {
    let fixture = GateFixture::new();
    in_system(async {
        let ledger =
            Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
        let settings = fixture.settings(&[&PATIENT[..], &LONG_LEASE].concat());
        let harness = Harness::start_on_redis(&settings, ledger.clone()).await;
        harness.create(OFFER, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        let (stock, sku) = (harness.backends.stock.clone(), sku_of(&harness));
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        fixture.redis.cmd(&["FLUSHALL"]);
        let lost = harness.ask(2, 2, 1);
        assert_eq!(
            stock.record(home(&lost), lost.request, None).await,
            Err(Error::NotLoaded(sku.no))
        );

        ledger.commit_after_scan(lost);
        for _ in 0..2 {
            let synced = harness.sync().await;
            assert!(matches!(synced, Err(SalesError::Ledger(_))), "{synced:?}");
        }
        assert_eq!(stock.record(home(&lost), lost.request, None).await, Ok(None));
        ledger.set(Fault::None);
        harness.sync().await.unwrap();
        let found = stock.record(home(&lost), lost.request, None).await.unwrap().unwrap();
        assert!(matches!(found.state, RecordState::Ordered { .. }), "{found:?}");
        assert_eq!(harness.free().await.iter().sum::<u32>(), 8);
        harness.assert_holds().await;
    });
}

#[test]
fn requests_in_dead_letters_are_entered_where_redis_lost_them() {
    let fixture = GateFixture::new();
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let settings = fixture.settings(&PATIENT);
        let clock: SharedClock = Arc::new(ManualClock::new(START_MS));
        let mut backends = Backends::on_redis(&settings, ledger.clone(), &clock).await.unwrap();
        let dead_letter_fixture = DeadLetterFixture::new();
        backends.pipeline = Some(dead_letter_fixture.pipeline(&dead_letter_fixture.broker));
        let harness = Harness::on(&settings, backends, Arc::new(ManualClock::new(START_MS)));
        harness.create(OFFER, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        harness.gates_begun().await;
        let (stock, sku) = (harness.backends.stock.clone(), sku_of(&harness));
        // The sale loader may be loading them, which this sync does not wait for.
        let loaded = || {
            until("loaded buckets", async || {
                harness.sync().await.unwrap();
                stock.facts(sku.no).await.ok()
            })
        };
        loaded().await;
        let dead = [1, 2].map(|no| harness.ask(no, no, 1));
        let mut bytes = Vec::new();
        for reservation in &dead {
            assert_eq!(
                stock.reserve(home(reservation), vec![*reservation]).await,
                Ok(vec![Verdict::Reserved])
            );
            pack_into(reservation, &mut bytes);
        }
        let dead_letter = |bytes: Vec<u8>| {
            received(envelope::dead_letter_of_entry(&bytes.into(), INSTALLATION, 10, "refused"))
        };
        // A load reads 32 dead letters at a time: the requests are not in the first ones.
        let others = (0..32_u8).map(|no| vec![no]);
        let dead_letters = others.chain([bytes]).map(dead_letter).collect();
        ledger.store_dead_letters(dead_letters, START_MS).await.unwrap();
        // One of the two requests is also an order.
        ledger.place(vec![dead[1]]).await.unwrap();

        for loss in ["nothing", "everything"] {
            if loss == "everything" {
                fixture.redis.cmd(&["FLUSHALL"]);
                // The query detects the loss.
                let found = stock.record(home(&dead[0]), dead[0].request, None).await;
                assert_eq!(found, Err(Error::NotLoaded(sku.no)));
            } else {
                harness.sales.rebuild(&"sale".parse().unwrap(), None, None).await.unwrap();
            }
            loaded().await;
            assert_eq!(harness.free().await.iter().sum::<u32>(), 8, "{loss} was lost");
            let answers = stock.reserve(home(&dead[0]), vec![dead[0]]).await;
            assert_eq!(
                answers.map(|all| all.into_iter().map(without_intent).collect()),
                Ok(vec![Verdict::Queued { intent: None }]),
                "{loss} was lost"
            );
            let found = stock.record(home(&dead[1]), dead[1].request, None).await.unwrap().unwrap();
            assert!(matches!(found.state, RecordState::Ordered { .. }), "{loss}: {found:?}");
        }
    });
}

/// Crash point `held_by_operator`.
#[test]
fn a_sku_held_by_an_operator_is_loaded_by_any_process() {
    let fixture = GateFixture::new();
    in_system(async {
        let harness = harness(&fixture).await;
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        let (stock, ledger, sku) =
            (&harness.backends.stock, harness.backends.ledger.as_ref(), sku_of(&harness));
        let token = ledger.begin_load(sku.no).await.unwrap();
        drop(stock.load(sku.clone(), token).await.unwrap());
        assert_eq!(harness.buy_as(2, 2, 1).await, BuyAnswer::Busy);
        harness.sync().await.unwrap();
        assert!(is_placed(&harness.buy_as(2, 2, 1).await));
        // The loss of a page is not detected; the rebuild command restores it.
        for name in fixture.names("fg:{*requests:*") {
            fixture.redis.cmd(&["DEL", &name]);
        }
        let reservation = harness.ask(1, 1, 1);
        assert_eq!(stock.record(home(&reservation), reservation.request, None).await, Ok(None));
        let sale = "sale".parse().unwrap();
        for _ in 0..2 {
            let rebuilt = harness.sales.rebuild(&sale, Some(&sku.id), Some(0)).await.unwrap();
            assert_eq!(rebuilt.len(), 1);
            assert!(
                stock
                    .record(home(&reservation), reservation.request, None)
                    .await
                    .unwrap()
                    .is_some()
            );
            harness.assert_holds().await;
        }
        // A key of another type is replaced as well.
        let bucket = &fixture.names("fg:{*:bucket")[0];
        fixture.redis.cmd(&["DEL", bucket]);
        fixture.redis.cmd(&["SET", bucket, "text"]);
        assert!(harness.sync().await.is_err());
        harness.sales.rebuild(&sale, None, None).await.unwrap();
        assert!(is_placed(&harness.buy_as(3, 3, 1).await));
        harness.assert_holds().await;

        let unknown = harness.sales.rebuild(&sale, Some(&"other".parse().unwrap()), None).await;
        assert!(matches!(unknown, Err(SalesError::Unknown)), "{unknown:?}");
        let unknown = harness.sales.rebuild(&sale, Some(&sku.id), Some(sku.buckets)).await;
        assert!(matches!(unknown, Err(SalesError::Unknown)), "{unknown:?}");
        let unknown = harness.sales.rebuild(&"other".parse().unwrap(), None, None).await;
        assert!(matches!(unknown, Err(SalesError::Unknown)), "{unknown:?}");
    });
}

/// A bucket was loaded with a unit too many, because Redis lost a request whose order came later.
#[test]
fn a_bucket_with_more_units_than_the_ledger_sells_what_is_left() {
    let fixture = GateFixture::new();
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let harness = Harness::start_on_redis(&fixture.settings(&PATIENT), ledger.clone()).await;
        harness.create(Offer { policy: UNLIMITED, stock: 2, buckets: 1 }, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        let lost = harness.ask(1, 1, 1);
        ledger.place(vec![lost]).await.unwrap();
        // The ledger has one unit left, the bucket two.
        let refused = harness.buy_as(2, 2, 2).await;
        assert!(
            matches!(refused, BuyAnswer::Refused { refusal: Refusal::SoldOut, .. }),
            "{refused:?}"
        );
        let stock = &harness.backends.stock;
        stock.settle(vec![(lost.bucket, lost.order(lost.placed_at_ms))]).await.unwrap();
        assert_eq!(harness.free().await, [0], "the bucket is empty, the ledger has one unit");
        // The difference is detected, confirmed under hold, and the bucket loaded. A stock refresh
        // that began before the hold makes one sync fail.
        until("the last unit to be sold", async || {
            drop(harness.sync().await);
            harness.clock.advance(Duration::from_secs(10));
            is_placed(&harness.buy_as(4, 4, 1).await).then_some(())
        })
        .await;
        harness.assert_holds().await;
    });
}

const STOCK: u32 = 300;

#[test]
fn buyers_get_no_wrong_answer_while_their_sale_is_rebuilt() {
    let fixture = GateFixture::new();
    let app = fixture.app(&[]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 16).await;
        let purchases = Arc::new(purchases(1..600));
        let attempts: Vec<_> = (0..500).flat_map(|_| 0..purchases.len()).collect();
        let rebuilding = async {
            for round in 1..=5 {
                let placed =
                    async || metric(app.internal, "floodgate_orders_placed_total", "").await;
                until("orders", async || (placed().await >= round * 40).then_some(())).await;
                let rebuilt =
                    app.admin("/sales/sale/rebuild", Some(json!({"sku_id": "sku"}))).await;
                assert_eq!(rebuilt["skus"], json!(["sku"]));
            }
        };
        let mut history = send_until(
            app.public,
            "sale",
            purchases.clone(),
            attempts.into(),
            (16, STEADY),
            rebuilding,
        )
        .await;
        history.absorb(retry_until_answered(app.public, purchases, 16).await);
        assert_eq!(fixture.check(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

#[test]
fn keys_that_were_deleted_one_by_one_are_rebuilt_under_running_processes() {
    let fixture = GateFixture::new();
    let (app, other) = (fixture.app(&[]), fixture.app(&[]));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 16).await;
        let first = Arc::new(purchases(1..200));
        let mut history = retry_until_answered(app.public, first, 16).await;
        let names = fixture.names("fg:{*");
        // One bucket key and one page of requests for each bucket.
        assert!(names.len() >= 32, "{names:?}");
        // First the keys whose loss is detected and repaired, then the loaded pages.
        let (buckets, pages): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| name.ends_with(":bucket"));
        let delete = |names: &[&String]| {
            for name in names {
                fixture.redis.cmd(&["DEL", name]);
            }
        };
        delete(&buckets);
        until("buckets that were loaded again", async || {
            let are_loaded = buckets.iter().all(|name| fixture.field(name, "loaded").is_some());
            are_loaded.then_some(())
        })
        .await;
        delete(&pages);
        app.admin("/sales/sale/rebuild", Some(json!({}))).await;
        let second = Arc::new(purchases(200..400));
        history.absorb(retry_until_answered(other.public, second, 16).await);
        assert_eq!(fixture.check(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

#[test]
fn a_rebuild_that_no_process_can_carry_out_is_refused() {
    let fixture = GateFixture::new();
    in_system(async {
        let settings =
            fixture.settings(&[&PATIENT[..], &[("maintenance.preload_ms", "60000")]].concat());
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let harness = Harness::start_on_redis(&settings, ledger).await;
        let sale = "sale".parse().unwrap();
        harness.create(OFFER, START_MS + 90_000).await;
        let draft = harness.sales.rebuild(&sale, None, None).await;
        assert!(matches!(draft, Err(SalesError::NoBuckets)), "{draft:?}");
        harness.set_phase(Phase::Open).await;
        let early = harness.sales.rebuild(&sale, None, None).await;
        assert!(matches!(early, Err(SalesError::NoBuckets)), "{early:?}");
        assert_eq!(fixture.names("fg:{*"), [""; 0], "no bucket is held");
        harness.clock.advance(Duration::from_secs(30));
        harness.sales.rebuild(&sale, None, None).await.unwrap();
        assert_eq!(harness.free().await, [5, 5]);
    });
}
