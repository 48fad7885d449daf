//! The ledger fails behind tier `gate`: C12. What was accepted stays accepted and becomes an order
//! when the ledger is back; nobody else is let in meanwhile, and nothing is given back on a doubt.

use std::sync::Arc;
use std::time::Duration;

use floodgate::db::Ledger;
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::domain::{Phase, Refusal, Reservation, Verdict};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::SharedClock;
use floodgate::services::audit::AuditReport;
use floodgate::stock::BucketKey;
use floodgate::tier::Backends;
use futures_util::future::join_all;

use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::gate::{GateGround, PATIENT};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{ONE_PER_BUYER, Offer, Rig, START_MS, in_system, is_placed};
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::{until, until_true};

const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 100, buckets: 2 };

async fn open(ground: &GateGround, ledger: Arc<dyn Ledger>, more: &[(&str, &str)]) -> Rig {
    let settings =
        ground.settings(&[&PATIENT[..], &[("consumer.attempts_max", "2")], more].concat());
    let rig = Rig::start_on_redis(&settings, ledger).await;
    rig.create(OFFER, START_MS - 1000).await;
    rig.turn(Phase::Open).await;
    rig
}

fn key_of(ask: &Reservation) -> BucketKey {
    BucketKey { sku: ask.sku, bucket: ask.bucket }
}

async fn buy_all(rig: &Rig, buyers: std::ops::RangeInclusive<u64>) -> Vec<BuyAnswer> {
    join_all(buyers.map(|buyer| rig.buy_as(buyer, buyer, 1))).await
}

/// Asks until there is an answer, or units are taken for an answer that takes long: either way the
/// gate has decided.
async fn decided(rig: &Rig, buyer: u64) -> Option<BuyAnswer> {
    let ask = rig.ask(buyer, buyer, 1);
    let stock = &rig.backends.stock;
    tokio::select! {
        answer = rig.gates.buy(ask) => Some(answer),
        () = until("units", async || {
            stock.find(key_of(&ask), ask.request).await.unwrap().map(drop)
        }) => None,
    }
}

/// Asks until it is an order, however long the ledger needs.
async fn buy_for_sure(rig: &Rig, buyer: u64) {
    until("an order", async || {
        let answer = rig.buy_as(buyer, buyer, 1).await;
        assert!(!matches!(answer, BuyAnswer::Refused { .. }), "{answer:?}");
        if is_placed(&answer) {
            return Some(());
        }
        // Where a slow ledger has opened the breaker, one may try in a while.
        rig.clock.advance(Duration::from_millis(200));
        None
    })
    .await;
}

/// Units free in Redis.
async fn left(rig: &Rig) -> u32 {
    rig.free().await.iter().sum()
}

/// Lets sweeps find what is old enough, until every accepted request is an order.
async fn drained(rig: &Rig) -> AuditReport {
    until("every accepted request to be an order", async || {
        rig.clock.advance(Duration::from_millis(200));
        let report = rig.try_audit(0).await.ok()?;
        (report.holds && report.could_tell).then_some(report)
    })
    .await
}

/// While the ledger fails: who was accepted, and that nobody else is.
async fn accepted_while_failing(rig: &Rig) -> u32 {
    let answers = join_all((1..=40).map(|buyer| decided(rig, buyer))).await;
    let told = |answer: &BuyAnswer| {
        matches!(answer, BuyAnswer::Queued { .. } | BuyAnswer::Unknown | BuyAnswer::Busy)
    };
    assert!(answers.iter().flatten().all(told), "{answers:?}");
    let taken = OFFER.stock - left(rig).await;
    assert!(taken > 0);
    until("an open breaker", async || rig.actors.breaker().is_open().then_some(())).await;
    // The clock stands still: not even a probe is let through.
    let late = buy_all(rig, 41..=60).await;
    assert_eq!(late, [BuyAnswer::Busy; 20]);
    assert_eq!(OFFER.stock - left(rig).await, taken, "nothing was taken, nothing given back");
    taken
}

async fn healed(rig: &Rig, taken: u32) {
    let report = drained(rig).await;
    assert_eq!(report.num_orders, u64::from(taken), "exactly what was accepted");
    until("a closed breaker", async || (!rig.actors.breaker().is_open()).then_some(())).await;
    drop(buy_all(rig, 1..=100).await);
    for buyer in 1..=100 {
        buy_for_sure(rig, buyer).await;
    }
    let sold_out = BuyAnswer::Refused { refusal: Refusal::SoldOut, replayed: false };
    until("sold out", async || {
        let answer = rig.buy_as(101, 101, 1).await;
        let is_doubt = matches!(answer, BuyAnswer::Busy | BuyAnswer::Unknown);
        assert!(is_doubt || answer == sold_out, "{answer:?}");
        (!is_doubt).then_some(())
    })
    .await;
    assert_eq!(drained(rig).await.num_orders, 100);
}

#[test]
fn what_was_accepted_before_the_ledger_failed_becomes_orders() {
    for fault in [Fault::Down, Fault::Mute] {
        let ground = GateGround::new();
        in_system(async {
            let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
            let rig = open(&ground, ledger.clone(), &[]).await;
            ledger.set(fault);
            let taken = accepted_while_failing(&rig).await;
            ledger.set(Fault::None);
            healed(&rig, taken).await;
        });
    }
}

#[test]
fn a_ledger_that_hangs_leaves_buyers_in_doubt_and_gives_nothing_back() {
    let ground = GateGround::new();
    in_system(async {
        let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
        let rig = open(&ground, ledger.clone(), &[("http.answer_deadline_ms", "300")]).await;
        rig.gates_begun().await;
        ledger.set(Fault::Frozen);
        let answers = buy_all(&rig, 1..=20).await;
        assert_eq!(answers, [BuyAnswer::Unknown; 20]);
        // Who gives up so soon may be gone before the gate decides.
        until("their units", async || (left(&rig).await == 80).then_some(())).await;
        ledger.set(Fault::None);
        healed(&rig, 20).await;
    });
}

#[test]
fn a_probe_closes_the_breaker_when_nothing_else_is_under_way() {
    let ground = GateGround::new();
    in_system(async {
        let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
        let rig = open(&ground, ledger, &[]).await;
        rig.actors.breaker().open();
        assert_eq!(rig.buy_as(1, 1, 1).await, BuyAnswer::Busy);
        rig.clock.advance(Duration::from_secs(1));
        assert!(is_placed(&rig.buy_as(2, 2, 1).await), "one may try");
        assert!(is_placed(&rig.buy_as(1, 1, 1).await), "and all follow");
    });
}

#[test]
fn a_gate_that_waits_for_an_answer_still_finds_what_a_dead_process_left() {
    let ground = GateGround::new();
    in_system(async {
        let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
        let own = [("http.answer_deadline_ms", "100"), ("consumer.batch_max", "1")];
        let settings = ground.settings(&[&PATIENT[..], &own].concat());
        let offer = Offer { buckets: 1, ..OFFER };
        let rig = Rig::start_on_redis(&settings, ledger.clone()).await;
        rig.create(offer, START_MS - 1000).await;
        rig.turn(Phase::Open).await;
        rig.gates_begun().await;
        // One outcome stays open for ever.
        let stuck = rig.ask(7, 7, 1);
        ledger.set(Fault::NeverSays(stuck.request));
        assert_eq!(rig.gates.buy(stuck).await, BuyAnswer::Unknown);
        until("the doubt", async || ledger.batches().contains(&vec![7]).then_some(())).await;
        // Another process accepts and dies.
        let clock: SharedClock = rig.clock.clone();
        let backends = Backends::on_redis(&settings, ledger.clone(), &clock).await.unwrap();
        let dead = backends.stock;
        let sku = rig.catalog.sale("sale").unwrap().sku("sku").unwrap().clone();
        let ask = rig.ask(8, 8, 1);
        dead.condition(&sku, Phase::Open, ask.epoch).await.unwrap();
        assert_eq!(dead.reserve(key_of(&ask), vec![ask]).await, Ok(vec![Verdict::Reserved]));

        rig.clock.advance(Duration::from_secs(1));
        until("the dead one's order", async || {
            ledger.journey(ask.request).await.unwrap().map(|it| it.order)
        })
        .await;
        ledger.set(Fault::None);
        assert_eq!(drained(&rig).await.num_orders, 2);
    });
}

/// A real database that goes away and comes back.
fn database(strike: impl Fn(&MariaDb, &FaultProxy), heal: impl Fn(&MariaDb, &FaultProxy)) {
    let ground = GateGround::new();
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
        let rig = open(&ground, ledger, &[]).await;
        buy_for_sure(&rig, 100).await;
        strike(&database, &proxy);
        let taken = accepted_while_failing(&rig).await;
        heal(&database, &proxy);
        healed(&rig, taken).await;
    });
}

#[test]
fn a_database_that_was_killed_takes_what_was_accepted_when_it_is_back() {
    database(|database, _| database.kill(), |database, _| database.restart());
}

#[test]
fn a_database_that_hangs_takes_what_was_accepted_when_it_goes_on() {
    database(|database, _| database.stop(), |database, _| database.cont());
}

#[test]
fn a_database_in_a_black_hole_takes_what_was_accepted_when_it_is_found_again() {
    let heal = |_: &MariaDb, proxy: &FaultProxy| {
        proxy.set(Mode::Reset);
        until_true("no connection to be left", || proxy.open() == 0);
        proxy.heal();
    };
    database(|_, proxy| proxy.set(Mode::Lose(None)), heal);
}
