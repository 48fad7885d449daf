//! The archive and the purge of a sale whose buckets no script counts, because a loader holds them
//! or Redis was restarted; and a purge that cannot compare its archive.

use std::sync::Arc;
use std::time::Duration;

use floodgate::actors::StockReturner;
use floodgate::actors::periodic::Task;
use floodgate::db::Ledger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{
    ArchiveDigest, BucketKey, OpenEnd, OrderState, Phase, RecordState, Refusal, RetentionChange,
    RetentionState, Sale, SaleId, Sku, Verdict,
};
use floodgate::observe::metrics::Metrics;
use floodgate::services::rebuild::load_sku;
use floodgate::services::sales::{SaleArchive, SalesError};
use floodgate::stock::Error;
use tempfile::TempDir;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::gate::{GateFixture, PATIENT};
use crate::support::harness::{Harness, Offer, START_MS, UNLIMITED, in_system, is_placed};
use crate::support::servers::redis::{AOF_ALWAYS, Redis};
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: UNLIMITED, stock: 10, buckets: 2 };

/// Tier `gate` with a ledger that keeps archives, and one open sale without payment.
async fn harness(fixture: &GateFixture) -> (Harness, TempDir) {
    let (ledger, folder) = ledger();
    (harness_on(fixture, ledger).await, folder)
}

fn ledger() -> (Arc<dyn Ledger>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(folder.path().join("ledger.db"));
    (Arc::new(SqliteLedger::open(&options).unwrap()), folder)
}

async fn harness_on(fixture: &GateFixture, ledger: Arc<dyn Ledger>) -> Harness {
    let harness = Harness::start_on_redis(&fixture.settings(&PATIENT), ledger).await;
    let mut draft = OFFER.draft("sale", START_MS - 1000);
    draft.skus[0].payment_window_s = 0;
    harness.sales.create(draft).await.unwrap();
    harness.set_phase(Phase::Open).await;
    harness.gates_begun().await;
    harness
}

fn id() -> SaleId {
    "sale".parse().unwrap()
}

async fn sale(harness: &Harness) -> Sale {
    harness.backends.ledger.sales().await.unwrap().remove(0)
}

async fn written(harness: &Harness) -> SaleArchive {
    let tables = harness.backends.ledger.contents(&sale(harness).await).await.unwrap();
    SaleArchive { digest: ArchiveDigest([7; 32]), tables, by: None }
}

async fn archive(harness: &Harness) -> Result<Sale, SalesError> {
    harness.sales.record_archive(&id(), &written(harness).await).await
}

fn sku_of(harness: &Harness) -> Arc<Sku> {
    harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone()
}

/// The stock returner reads the events of the orders.
async fn until_finished(harness: &Harness) {
    let returner = StockReturner {
        ledger: harness.backends.ledger.clone(),
        stock: harness.backends.stock.clone(),
        catalog: harness.catalog.clone(),
        clock: harness.clock.clone(),
        metrics: Arc::new(Metrics::default()),
        unread_since_ms: parking_lot::Mutex::default(),
    };
    until("a finished sale", async || {
        returner.run(&()).await.unwrap();
        let open = harness.sales.open_ends(&id()).await.unwrap();
        println!("{open:?}");
        open.is_empty().then_some(())
    })
    .await;
}

#[test]
fn a_sale_with_queued_requests_in_held_buckets_is_unfinished() {
    let fixture = GateFixture::new();
    in_system(async {
        let (harness, _folder) = harness(&fixture).await;
        let (stock, ledger) = (&harness.backends.stock, &harness.backends.ledger);
        // Accepted, and not yet in the ledger.
        let accepted = harness.ask(7, 1, 1);
        let home = BucketKey { sku: accepted.sku, bucket: accepted.bucket };
        let reserved = stock.reserve(home, vec![accepted]).await;
        assert_eq!(reserved, Ok(vec![Verdict::Reserved]));
        harness.set_phase(Phase::Closed).await;
        let sku = sku_of(&harness);
        for step in ["held", "cleared", "without an epoch"] {
            let token = ledger.begin_load(sku.no).await.unwrap();
            let mut loading = stock.load(sku.clone(), token).await.unwrap();
            if step != "held" {
                loading.clear().await.unwrap();
            }
            drop(loading);
            if step == "without an epoch" {
                for name in fixture.names("fg:{*:bucket") {
                    fixture.redis.cmd(&["DEL", &name]);
                }
            }
            let archived = archive(&harness).await;
            let Err(SalesError::Unfinished(open)) = archived else {
                panic!("{step}: {archived:?}");
            };
            assert_eq!(open, [(OpenEnd::Queued, 1)], "{step}");
        }
        harness.sync().await.unwrap();
        harness.clock.advance(Duration::from_secs(60));
        until_finished(&harness).await;
        assert_eq!(harness.num_orders().await, 1);

        // Held again, with nothing queued.
        let token = ledger.begin_load(sku.no).await.unwrap();
        drop(stock.load(sku, token).await.unwrap());
        archive(&harness).await.unwrap();
        let purged = harness.sales.purge(&id(), &written(&harness).await).await.unwrap();
        assert_eq!(purged.state, RetentionState::Purged);
        assert_eq!(fixture.names("fg:{*"), [""; 0]);
    });
}

#[test]
fn a_sale_that_is_over_for_long_is_archived_after_a_restart_of_redis() {
    let fixture = GateFixture::on(Redis::start_with(AOF_ALWAYS));
    in_system(async {
        let (harness, _folder) = harness(&fixture).await;
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        harness.set_phase(Phase::Closed).await;
        until_finished(&harness).await;
        harness.clock.advance(Duration::from_secs(3 * 86_400));
        fixture.redis.kill();
        fixture.redis.restart();
        let archived = until("an answer of Redis", async || match archive(&harness).await {
            Err(SalesError::Stock(Error::Unavailable { .. } | Error::Unknown { .. })) => None,
            archived => Some(archived),
        });
        archived.await.unwrap();
        let purged = harness.sales.purge(&id(), &written(&harness).await).await.unwrap();
        assert_eq!((purged.state, purged.num_rows), (RetentionState::Purged, 1));
    });
}

/// The ledger decides the request, and no process can write that to the fenced bucket.
#[test]
fn a_request_that_ends_long_after_its_sale_delays_its_archive_until_its_buckets_are_loaded() {
    let fixture = GateFixture::on(Redis::start_with(AOF_ALWAYS));
    in_system(async {
        let (harness, _folder) = harness(&fixture).await;
        let (reservation, sku) = (harness.ask(1, 1, 1), sku_of(&harness));
        let home = BucketKey { sku: sku.no, bucket: reservation.bucket };
        let stock = &harness.backends.stock;
        assert_eq!(stock.reserve(home, vec![reservation]).await, Ok(vec![Verdict::Reserved]));
        harness.set_phase(Phase::Closed).await;
        fixture.redis.kill();
        harness.clock.advance(Duration::from_secs(3 * 86_400));
        harness.sales.refresh_catalog().await.unwrap();
        let failure = reservation.failure(Refusal::Discarded, START_MS);
        harness.backends.ledger.record_failures(vec![failure]).await.unwrap();
        fixture.redis.restart();
        let open = until("an answer of Redis", async || harness.sales.open_ends(&id()).await.ok());
        assert!(open.await.contains(&(OpenEnd::Queued, 1)));
        let record = until("loaded buckets", async || {
            drop(harness.sync().await);
            harness.gates.record(&sku, reservation.request, reservation.buyer).await.ok()
        });
        let state = record.await.map(|record| record.state);
        assert_eq!(state, Some(RecordState::Failed(Refusal::Discarded)));
        until_finished(&harness).await;
        archive(&harness).await.unwrap();
    });
}

/// The stock returner passes over the orders of dormant sales, whatever their buckets answer.
#[test]
fn a_load_of_a_dormant_sale_repeats_the_changes_of_its_orders() {
    let fixture = GateFixture::new();
    in_system(async {
        let (harness, _folder) = harness(&fixture).await;
        let (stock, ledger) = (&*harness.backends.stock, &*harness.backends.ledger);
        let (sku, reservation) = (sku_of(&harness), harness.ask(1, 1, 1));
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        let loader = ledger.begin_load(sku.no).await.unwrap();
        let loaded = load_sku(ledger, stock, &sku, loader, Vec::new()).await.unwrap();
        let order = reservation.key();
        ledger.cancel(order).await.unwrap();
        for (all, num_settled, state) in
            [(false, 0, OrderState::PendingPayment), (true, 1, OrderState::Cancelled)]
        {
            let settled = loaded.catch_up(ledger, stock, &sku, all).await.unwrap();
            let record = harness.gates.record(&sku, order.request, order.buyer).await.unwrap();
            let RecordState::Ordered { state: found, .. } = record.unwrap().state else {
                panic!("no order")
            };
            assert_eq!(settled, num_settled);
            assert_eq!(found, state);
        }
    });
}

#[test]
fn a_purge_that_cannot_compare_leaves_the_sale_unsealed() {
    let fixture = GateFixture::new();
    in_system(async {
        let (harness, _folder) = harness(&fixture).await;
        harness.set_phase(Phase::Closed).await;
        archive(&harness).await.unwrap();
        let archived = written(&harness).await;
        fixture.redis.kill();
        let purged = harness.sales.purge(&id(), &archived).await;
        assert!(matches!(purged, Err(SalesError::Stock(_))), "{purged:?}");
        assert_eq!(sale(&harness).await.retention.state, RetentionState::Kept);
    });
}

#[test]
fn a_seal_whose_answer_is_lost_is_undone() {
    let fixture = GateFixture::new();
    in_system(async {
        let (ledger, _folder) = ledger();
        let ledger = Arc::new(FaultyLedger::new(ledger));
        let harness = harness_on(&fixture, ledger.clone()).await;
        harness.set_phase(Phase::Closed).await;
        archive(&harness).await.unwrap();
        let archived = written(&harness).await;
        ledger.set(Fault::AnswerLost);
        let purged = harness.sales.purge(&id(), &archived).await;
        assert!(matches!(purged, Err(SalesError::Ledger(_))), "{purged:?}");
        ledger.set(Fault::None);
        assert_eq!(sale(&harness).await.retention.state, RetentionState::Kept);
    });
}

/// As after a comparison that found a difference, when the ledger did not answer the unseal.
#[test]
fn a_sale_that_stayed_sealed_is_archived_again_and_purged() {
    let fixture = GateFixture::new();
    in_system(async {
        let (harness, _folder) = harness(&fixture).await;
        harness.set_phase(Phase::Closed).await;
        archive(&harness).await.unwrap();
        let seal = RetentionChange::Seal(ArchiveDigest([7; 32]));
        let sealed = harness.backends.ledger.set_retention(id(), seal, None).await.unwrap();
        assert_eq!(sealed.unwrap().retention.state, RetentionState::Sealed);
        let another = SaleArchive { digest: ArchiveDigest([8; 32]), ..written(&harness).await };
        let purged = harness.sales.purge(&id(), &another).await;
        assert!(matches!(purged, Err(SalesError::ArchiveDiffers(_))), "{purged:?}");
        harness.sales.record_archive(&id(), &another).await.unwrap();
        let purged = harness.sales.purge(&id(), &another).await.unwrap();
        assert_eq!(purged.state, RetentionState::Purged);
    });
}
