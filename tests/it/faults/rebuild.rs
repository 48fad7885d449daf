//! Buckets that are loaded anew while everything runs, and what becomes of results that their loads
//! did not see. Covers the crash points `opened` and `held_by_operator`.

use std::sync::Arc;
use std::time::Duration;

use floodgate::db::Ledger;
use floodgate::domain::{
    BucketNo, Failure, Phase, Refusal, RequestStatus, Reservation, SaleDraft, Sku, SkuDraft,
    Verdict,
};
use floodgate::messages::BuyAnswer;
use floodgate::outbox::DeadEntry;
use floodgate::redis::scripts::intent;
use floodgate::runtime::clock::{ManualClock, SharedClock};
use floodgate::services::dead_letters::headers;
use floodgate::services::rebuild::{load_sku, next_loader};
use floodgate::services::sales::SalesError;
use floodgate::stock::{BucketKey, Error};
use floodgate::tier::Backends;
use serde_json::json;

use crate::support::crowd::send_until;
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::gate::{GateGround, PATIENT, insist, metric, wishes};
use crate::support::keepers::Office;
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::relays::INSTALLATION;
use crate::support::rig::{ONE_PER_BUYER, Offer, Rig, START_MS, UNLIMITED, in_system, is_placed};
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 10, buckets: 2 };

/// Tier `gate`, with one open sale.
async fn rig(ground: &GateGround) -> Rig {
    let ledger = Arc::new(LyingLedger::new(Lie::Honest));
    let rig = Rig::start_on_redis(&ground.settings(&PATIENT), ledger).await;
    rig.create(OFFER, START_MS - 1000).await;
    rig.turn(Phase::Open).await;
    rig
}

fn sku_of(rig: &Rig) -> Arc<Sku> {
    rig.catalog.sale("sale").unwrap().sku("sku").unwrap().clone()
}

fn home(ask: &Reservation) -> BucketKey {
    BucketKey { sku: ask.sku, bucket: ask.bucket }
}

/// Crash point `opened`.
#[test]
fn what_the_ledger_decides_while_buckets_are_loaded_is_entered() {
    let ground = GateGround::new();
    in_system(async {
        let rig = rig(&ground).await;
        let (stock, ledger) = (rig.backends.stock.clone(), rig.backends.ledger.clone());
        let sku = sku_of(&rig);
        let [before, ordered, refused, ended] = [1, 2, 3, 4].map(|no| rig.ask(no, no, 1));
        let failure = |ask: &Reservation| Failure {
            request: ask.request,
            sku: sku.no,
            buyer: ask.buyer,
            quantity: 1,
            reason: Refusal::Ended,
            recorded_at_ms: START_MS,
        };
        ledger.place(vec![before.intent(&sku)]).await.unwrap();
        ledger.record_failures(vec![failure(&ended)]).await.unwrap();
        // Redis lost everything; the messages of these are in the broker.
        ground.redis.cmd(&["FLUSHALL"]);
        let loaded = load_sku(&*ledger, &*stock, &sku, Vec::new()).await.unwrap();
        assert_eq!(loaded.num_orders, 1);
        let failed = vec![Verdict::Repeat(RequestStatus::Failed(Refusal::Ended))];
        assert_eq!(stock.reserve(home(&ended), vec![ended]).await, Ok(failed.clone()));
        ledger.place(vec![ordered.intent(&sku)]).await.unwrap();
        ledger.record_failures(vec![failure(&refused)]).await.unwrap();
        assert_eq!(stock.find(home(&ordered), ordered.request).await, Ok(None));

        assert_eq!(loaded.catch_up(&*ledger, &*stock, &sku).await.unwrap(), 2);
        rig.assert_holds().await;
        assert_eq!(rig.free().await.iter().sum::<u32>(), 8);
        assert_eq!(stock.reserve(home(&refused), vec![refused]).await, Ok(failed));
        assert_eq!(
            stock
                .standing(home(&ordered), ordered.request, ordered.buyer)
                .await
                .unwrap()
                .map(|found| matches!(found.standing, RequestStatus::Ordered { .. })),
            Some(true)
        );
        // Later orders are none of the load's; and nothing is entered twice.
        assert!(is_placed(&rig.buy_as(5, 5, 1).await));
        loaded.catch_up(&*ledger, &*stock, &sku).await.unwrap();
        rig.assert_holds().await;
        assert_eq!(rig.free().await.iter().sum::<u32>(), 7);
    });
}

#[test]
fn requests_in_dead_letters_are_entered_where_redis_lost_them() {
    let ground = GateGround::new();
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let settings = ground.settings(&PATIENT);
        let clock: SharedClock = Arc::new(ManualClock::new(START_MS));
        let mut backends = Backends::on_redis(&settings, ledger.clone(), &clock).await.unwrap();
        let office = Office::new();
        backends.pipeline = Some(office.pipeline(&office.broker));
        let rig = Rig::on(&settings, backends, Arc::new(ManualClock::new(START_MS)));
        rig.create(OFFER, START_MS - 1000).await;
        rig.turn(Phase::Open).await;
        let (stock, sku) = (rig.backends.stock.clone(), sku_of(&rig));
        let dead = [1, 2].map(|no| rig.ask(no, no, 1));
        let mut bytes = Vec::new();
        for ask in &dead {
            assert_eq!(stock.reserve(home(ask), vec![*ask]).await, Ok(vec![Verdict::Reserved]));
            intent::pack_into(&ask.intent(&sku), &mut bytes);
        }
        let entry = DeadEntry {
            id: Box::new([1]),
            bytes: bytes.into(),
            reason: "it was tried 10 times".to_owned(),
            attempts: 10,
            dead_at_ms: START_MS,
        };
        let letter = headers::of_entry(&entry, INSTALLATION);
        ledger.keep_dead_letters(vec![letter], START_MS).await.unwrap();
        // One of them is an order all the same.
        ledger.place(vec![dead[1].intent(&sku)]).await.unwrap();

        for loss in ["nothing", "everything"] {
            if loss == "everything" {
                ground.redis.cmd(&["FLUSHALL"]);
                // Whoever asks notices.
                let found = stock.find(home(&dead[0]), dead[0].request).await;
                assert_eq!(found, Err(Error::NotLoaded(sku.no)));
            } else {
                rig.desk.rebuild(&"sale".parse().unwrap(), None).await.unwrap();
            }
            rig.desk.look().await.unwrap();
            assert_eq!(rig.free().await.iter().sum::<u32>(), 8, "{loss} was lost");
            let answers = stock.reserve(home(&dead[0]), vec![dead[0]]).await;
            assert_eq!(
                answers,
                Ok(vec![Verdict::Repeat(RequestStatus::Queued)]),
                "{loss} was lost"
            );
            let found = stock.find(home(&dead[1]), dead[1].request).await.unwrap().unwrap();
            assert!(matches!(found.standing, RequestStatus::Ordered { .. }), "{loss}: {found:?}");
        }
    });
}

/// Crash point `held_by_operator`.
#[test]
fn what_an_operator_holds_is_loaded_by_whoever_looks() {
    let ground = GateGround::new();
    in_system(async {
        let rig = rig(&ground).await;
        assert!(is_placed(&rig.buy_as(1, 1, 1).await));
        let (stock, ledger, sku) =
            (&rig.backends.stock, rig.backends.ledger.as_ref(), sku_of(&rig));
        let token = next_loader(ledger).await.unwrap();
        drop(stock.load(sku.clone(), 0, token).await.unwrap());
        assert_eq!(rig.buy_as(2, 2, 1).await, BuyAnswer::Busy);
        rig.desk.look().await.unwrap();
        assert!(is_placed(&rig.buy_as(2, 2, 1).await));
        // A page that was deleted is noticed by nobody; the verb brings it back.
        for name in ground.names("fg:{*requests:*") {
            ground.redis.cmd(&["DEL", &name]);
        }
        let ask = rig.ask(1, 1, 1);
        assert_eq!(stock.find(home(&ask), ask.request).await, Ok(None));
        let sale = "sale".parse().unwrap();
        for _ in 0..2 {
            let rebuilt = rig.desk.rebuild(&sale, Some(&sku.id)).await.unwrap();
            assert_eq!(rebuilt.len(), 1);
            assert!(stock.find(home(&ask), ask.request).await.unwrap().is_some());
            rig.assert_holds().await;
        }
        // A key of another type, too.
        let bucket = &ground.names("fg:{*:bucket")[0];
        ground.redis.cmd(&["DEL", bucket]);
        ground.redis.cmd(&["SET", bucket, "text"]);
        assert!(rig.desk.look().await.is_err());
        rig.desk.rebuild(&sale, None).await.unwrap();
        assert!(is_placed(&rig.buy_as(3, 3, 1).await));
        rig.assert_holds().await;

        let unknown = rig.desk.rebuild(&sale, Some(&"other".parse().unwrap())).await;
        assert!(matches!(unknown, Err(SalesError::Unknown)), "{unknown:?}");
        let unknown = rig.desk.rebuild(&"other".parse().unwrap(), None).await;
        assert!(matches!(unknown, Err(SalesError::Unknown)), "{unknown:?}");
    });
}

#[test]
fn one_sku_that_is_loaded_or_damaged_holds_up_no_other() {
    let ground = GateGround::new();
    let settings = ground.settings(&PATIENT);
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let clock: SharedClock = Arc::new(ManualClock::new(START_MS));
        let mut backends = Backends::on_redis(&settings, ledger, &clock).await.unwrap();
        let faulty = Arc::new(FaultyStock::new(backends.stock.clone()));
        backends.stock = faulty.clone();
        let rig = Rig::on(&settings, backends, Arc::new(ManualClock::new(START_MS)));
        let sku = |id: &str| SkuDraft {
            id: id.parse().unwrap(),
            title: "SKU".to_owned(),
            price: 100,
            initial: 10,
            policy: ONE_PER_BUYER,
            buckets: 1,
            payment_window_s: 900,
            bar_lapsed: false,
        };
        let draft = SaleDraft {
            id: "sale".parse().unwrap(),
            title: "Sale".to_owned(),
            starts_at_ms: START_MS - 1000,
            ends_at_ms: START_MS + 86_400_000,
            skus: ["damaged", "slow", "sku"].map(sku).to_vec(),
        };
        rig.desk.create(draft).await.unwrap();
        rig.turn(Phase::Open).await;
        let no_of = |id| rig.catalog.sale("sale").unwrap().sku(id).unwrap().no;
        let bucket = |id| format!("fg:{{{}:0}}:bucket", no_of(id));
        ground.redis.cmd(&["FLUSHALL"]);
        ground.redis.cmd(&["SET", &bucket("damaged"), "text"]);
        faulty.set(StockFault::LoadWaits(no_of("slow")));
        let stuck = rig.desk.look();
        tokio::pin!(stuck);
        let third =
            until("the third SKU", async || is_placed(&rig.buy_as(1, 1, 1).await).then_some(()));
        tokio::select! {
            ended = &mut stuck => panic!("{ended:?}"),
            () = third => {}
        }
        // The next look leaves out what the one before is at, and learns what is new.
        let later = SaleDraft {
            id: "later".parse().unwrap(),
            title: "Later".to_owned(),
            starts_at_ms: START_MS - 1000,
            ends_at_ms: START_MS + 86_400_000,
            skus: vec![sku("sku")],
        };
        rig.backends.ledger.create_sale(later, START_MS).await.unwrap().unwrap();
        ground.redis.cmd(&["DEL", &bucket("sku")]);
        assert_eq!(rig.buy_as(2, 2, 1).await, BuyAnswer::Busy);
        let looked = tokio::select! {
            ended = &mut stuck => panic!("{ended:?}"),
            looked = rig.desk.look() => looked,
        };
        assert!(matches!(looked, Err(SalesError::Stock(Error::Damaged { .. }))), "{looked:?}");
        assert!(rig.catalog.sale("later").is_some());
        assert!(is_placed(&rig.buy_as(2, 2, 1).await));
        faulty.set(StockFault::None);
        assert!(stuck.await.is_err(), "the damaged one");
        let slow = BucketKey { sku: no_of("slow"), bucket: BucketNo(0) };
        assert_eq!(rig.backends.stock.snapshot(slow).await.unwrap().available, 10);
    });
}

/// A gate was filled with a unit too many, because Redis lost a request whose order came later.
#[test]
fn units_that_an_over_dealt_gate_lost_are_sold_in_the_end() {
    let ground = GateGround::new();
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let rig = Rig::start_on_redis(&ground.settings(&PATIENT), ledger.clone()).await;
        rig.create(Offer { policy: UNLIMITED, stock: 2, buckets: 1 }, START_MS - 1000).await;
        rig.turn(Phase::Open).await;
        let lost = rig.ask(1, 1, 1);
        ledger.place(vec![lost.intent(&sku_of(&rig))]).await.unwrap();
        // The ledger has one left, the gate two.
        let refused = rig.buy_as(2, 2, 2).await;
        assert!(
            matches!(refused, BuyAnswer::Refused { refusal: Refusal::SoldOut, .. }),
            "{refused:?}"
        );
        let stock = &rig.backends.stock;
        stock.settle(vec![(lost.bucket, lost.intent(&sku_of(&rig)).order())]).await.unwrap();
        assert_eq!(rig.free().await, [0], "and the ledger has one");
        // It is seen, seen again and held, and loaded. A look of the teller that began before the
        // buckets were held makes one look of the desk fail.
        until("the last unit to be sold", async || {
            drop(rig.desk.look().await);
            rig.clock.advance(Duration::from_secs(10));
            is_placed(&rig.buy_as(4, 4, 1).await).then_some(())
        })
        .await;
        rig.assert_holds().await;
    });
}

const STOCK: u32 = 300;

#[test]
fn a_crowd_hears_nothing_wrong_while_its_sale_is_rebuilt() {
    let ground = GateGround::new();
    let app = ground.app(&[]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 16).await;
        let wishes = Arc::new(wishes(1..600));
        let attempts: Vec<_> = (0..500).flat_map(|_| 0..wishes.len()).collect();
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
        let mut history =
            send_until(app.public, "sale", wishes.clone(), attempts.into(), 16, rebuilding).await;
        history.absorb(insist(app.public, wishes, 16).await);
        assert_eq!(ground.judge(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

#[test]
fn keys_that_were_deleted_one_by_one_are_rebuilt_under_running_processes() {
    let ground = GateGround::new();
    let (app, other) = (ground.app(&[]), ground.app(&[]));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 16).await;
        let first = Arc::new(wishes(1..200));
        let mut history = insist(app.public, first, 16).await;
        let names = ground.names("fg:{*");
        // A bucket and a page of requests for each.
        assert!(names.len() >= 32, "{names:?}");
        // First what is noticed and loaded again, then the pages that were loaded.
        let (buckets, pages): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| name.ends_with(":bucket"));
        let delete = |names: &[&String]| {
            for name in names {
                ground.redis.cmd(&["DEL", name]);
            }
        };
        delete(&buckets);
        until("buckets that were loaded again", async || {
            let are_loaded = buckets.iter().all(|name| ground.field(name, "loaded").is_some());
            are_loaded.then_some(())
        })
        .await;
        delete(&pages);
        app.admin("/sales/sale/rebuild", Some(json!({}))).await;
        let second = Arc::new(wishes(200..400));
        history.absorb(insist(other.public, second, 16).await);
        assert_eq!(ground.judge(app.internal, &history, STOCK.into()).await.ok, 300);
    });
}

#[test]
fn a_rebuild_that_no_process_can_carry_out_says_so() {
    let ground = GateGround::new();
    in_system(async {
        let settings =
            ground.settings(&[&PATIENT[..], &[("maintenance.preload_ms", "60000")]].concat());
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let rig = Rig::start_on_redis(&settings, ledger).await;
        let sale = "sale".parse().unwrap();
        rig.create(OFFER, START_MS + 90_000).await;
        let draft = rig.desk.rebuild(&sale, None).await;
        assert!(matches!(draft, Err(SalesError::NoBuckets)), "{draft:?}");
        rig.turn(Phase::Open).await;
        let early = rig.desk.rebuild(&sale, None).await;
        assert!(matches!(early, Err(SalesError::NoBuckets)), "{early:?}");
        assert_eq!(ground.names("fg:{*"), [""; 0], "nothing is held");
        rig.clock.advance(Duration::from_secs(30));
        rig.desk.rebuild(&sale, None).await.unwrap();
        assert_eq!(rig.free().await, [5, 5]);
    });
}
