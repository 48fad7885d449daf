//! Planted leaks, drift, oversell and unfinished transfers: found, repaired while the sale is open,
//! and gone in the next audit. No actor runs, so that only the repair can change anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::config::{Settings, Tier};
use floodgate::db::Ledger;
use floodgate::db::mysql::MysqlLedger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::invariants::Violation;
use floodgate::domain::{
    AuditVerdict, BucketKey, BucketNo, BuyerId, ByOperator, InvariantId, OrderIntent, Phase,
    RecordState, RepairAction, RepairOutcome, RequestId, Sku, Verdict,
};
use floodgate::observe::metrics::Metrics;
use floodgate::runtime::clock::{ManualClock, SharedClock};
use floodgate::services::audit::{AuditReport, AuditSources, RepairReport, Repairer, audit_all};
use floodgate::services::catalog::Catalog;
use floodgate::services::sales::{Gates, SalesService};
use floodgate::tier::Backends;
use tempfile::TempDir;

use crate::support::faulty_ledger::FaultyLedger;
use crate::support::faulty_stock::FaultyStock;
use crate::support::gate::{GateFixture, PATIENT};
use crate::support::harness::{Offer, START_MS, UNLIMITED, broken, in_system, settings};
use crate::support::wait::until;

struct NoGates;

impl Gates for NoGates {
    fn open(&self, _: &Arc<Sku>) {}

    fn close(&self, _: floodgate::domain::SkuNo) -> bool {
        false
    }
}

enum Storage {
    File(TempDir),
    Servers(GateFixture),
}

/// An open sale of 40 units in two buckets, of which the requests 1 to 3 ordered one each.
pub(super) struct Shop {
    storage: Storage,
    pub(super) backends: Backends,
    sales: SalesService,
    pub(super) sku: Arc<Sku>,
    pub(super) metrics: Metrics,
}

impl Shop {
    /// One on books in memory and SQLite, one on Redis and MariaDB.
    pub(super) async fn each() -> [Self; 2] {
        [Self::in_memory().await, Self::on_redis().await]
    }

    pub(super) async fn in_memory() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = OpenOptions::new(directory.path().join("ledger.db"));
        let ledger: Arc<dyn Ledger> = Arc::new(SqliteLedger::open(&options).unwrap());
        let settings = settings(Tier::Memory);
        let clock: SharedClock = Arc::new(ManualClock::new(START_MS));
        let backends = Backends::embedded(settings.tier, ledger, &clock);
        Self::open(Storage::File(directory), &settings, backends, clock).await
    }

    async fn on_redis() -> Self {
        let fixture = GateFixture::new();
        let settings = fixture.settings(&PATIENT);
        let ledger: Arc<dyn Ledger> =
            Arc::new(MysqlLedger::open(&fixture.mariadb.options()).unwrap());
        let clock: SharedClock = Arc::new(ManualClock::new(START_MS));
        let backends = Backends::on_redis(&settings, ledger, &clock).await.unwrap();
        Self::open(Storage::Servers(fixture), &settings, backends, clock).await
    }

    async fn open(
        storage: Storage,
        settings: &Settings,
        backends: Backends,
        clock: SharedClock,
    ) -> Self {
        let catalog = Arc::new(Catalog::default());
        let sales = SalesService::new(catalog, &backends, Arc::new(NoGates), clock, settings);
        let offer = Offer { policy: UNLIMITED, stock: 40, buckets: 2 };
        sales.create(offer.draft("sale", START_MS - 1_000)).await.unwrap();
        let sale = sales.set_phase(&"sale".parse().unwrap(), Phase::Open, None).await.unwrap();
        let sku = sale.skus[0].clone();
        let shop = Self { storage, backends, sales, sku, metrics: Metrics::default() };
        for request in 1..=3 {
            sell(&shop.backends, &shop.sku, request).await;
        }
        shop.assert_holds().await;
        shop
    }

    /// The violation of a request that is in no stage.
    pub(super) fn lost(&self, intent: &OrderIntent) -> Violation {
        let (verdict, action) = (AuditVerdict::Leak, RepairAction::Submit);
        Violation::new(InvariantId::NothingLost, verdict, action, String::new())
            .of_sku(self.sku.no)
            .of_request(Some(intent.request))
    }

    pub(super) async fn state(&self, intent: &OrderIntent) -> RecordState {
        let key = BucketKey { sku: self.sku.no, bucket: intent.bucket };
        let stored = self.backends.stock.record(key, intent.request, None).await.unwrap();
        stored.unwrap().state
    }

    /// Changes rows of the ledger.
    pub(super) fn tamper(&self, sql: &str) {
        match &self.storage {
            Storage::File(directory) => {
                let file = directory.path().join("ledger.db");
                let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
                conn.batch_execute(&format!("PRAGMA busy_timeout = 5000; {sql}")).unwrap();
            }
            Storage::Servers(fixture) => fixture.mariadb.sql(sql),
        }
    }

    fn sources(&self, recheck: Duration) -> AuditSources<'_> {
        let (ledger, stock) = (self.backends.ledger.as_ref(), self.backends.stock.as_ref());
        AuditSources { ledger, stock: Some(stock), pipeline: None, recheck }
    }

    async fn audit(&self) -> AuditReport {
        audit_all(self.sources(Duration::ZERO), None, START_MS).await.unwrap()
    }

    async fn assert_holds(&self) {
        let report = self.audit().await;
        assert!(report.holds && report.could_tell, "{report:#?}");
    }

    /// Repairs with this ledger.
    pub(super) fn repairer<'a>(&'a self, ledger: &'a dyn Ledger) -> Repairer<'a> {
        let sources = AuditSources { ledger, ..self.sources(Duration::ZERO) };
        let (sales, metrics) = (&self.sales, &self.metrics);
        Repairer { sources, sales, metrics, by: None, now_ms: START_MS }
    }

    pub(super) async fn repair(&self, violations: &[Violation]) -> Vec<RepairReport> {
        let by = olga();
        let repairer = Repairer { by: Some(&by), ..self.repairer(self.backends.ledger.as_ref()) };
        repairer.repair(violations).await.unwrap()
    }

    /// Asserts that the audit finds this, that a dry run changes nothing, that the repair ends as
    /// compensated and is recorded, and that the next audit finds nothing.
    async fn assert_repaired(&self, verdict: AuditVerdict, action: RepairAction) {
        let found = self.audit().await;
        let is_expected = |one: &&Violation| one.verdict == verdict && one.action == Some(action);
        assert!(found.violations.iter().any(|one| is_expected(&one)), "{found:#?}");
        let planned = Repairer::plan(&found.violations);
        assert!(planned.iter().all(|one| one.outcome.is_none()), "{planned:#?}");
        assert_eq!(self.audit().await.violations, found.violations, "a dry run changes nothing");

        let repairs = self.repair(&found.violations).await;
        assert_eq!(repairs.len(), found.violations.len());
        let compensated = Some(RepairOutcome::Compensated);
        assert!(repairs.iter().all(|one| one.outcome == compensated), "{repairs:#?}");
        let recorded = self.backends.ledger.repairs(None, 100).await.unwrap();
        assert!(recorded.iter().any(|(_, one)| (one.verdict, one.action) == (verdict, action)));
        let verbs = self.backends.ledger.verbs(Some("sale:sale".to_owned()), None, 9).await;
        let verbs: Vec<_> = verbs.unwrap().into_iter().map(|(_, one)| (one.verb, one.by)).collect();
        assert_eq!(verbs, [("repair".to_owned(), olga())], "once for all its repairs");
        self.assert_holds().await;
    }
}

/// Accepts a request of the buyer with its number, without bringing it to the ledger.
pub(super) async fn accept(backends: &Backends, sku: &Sku, request: u64) -> OrderIntent {
    let (request, buyer) = (RequestId::new(request).unwrap(), BuyerId::new(request).unwrap());
    let intent = sku.intent(request, buyer, floodgate::domain::Epoch(1), 1, START_MS);
    let key = BucketKey { sku: sku.no, bucket: intent.bucket };
    let verdicts = backends.stock.reserve(key, vec![intent]).await.unwrap();
    assert_eq!(verdicts, [Verdict::Reserved]);
    intent
}

/// Sells a unit to the buyer with the number of the request.
async fn sell(backends: &Backends, sku: &Sku, request: u64) {
    let intent = accept(backends, sku, request).await;
    let recorded_at_ms = backends.ledger.place(vec![intent]).await.unwrap().unwrap();
    let order = (intent.bucket, intent.order(recorded_at_ms));
    backends.stock.settle(vec![order]).await.unwrap();
}

fn olga() -> ByOperator {
    ByOperator { name: "olga".to_owned(), reason: Some("drift".to_owned()) }
}

#[test]
fn drift_of_the_units_left_is_recounted() {
    in_system(async {
        for shop in Shop::each().await {
            shop.tamper("UPDATE skus SET available = available - 2");
            shop.assert_repaired(AuditVerdict::Drift, RepairAction::Recount).await;
            assert_eq!(shop.backends.ledger.available(shop.sku.no).await.unwrap(), 37);
        }
    });
}

#[test]
fn an_order_that_only_a_book_has_stays_after_a_recount() {
    in_system(async {
        let shop = Shop::in_memory().await;
        shop.tamper("DELETE FROM orders WHERE request_id = 3; UPDATE skus SET available = 30");
        let repairs = shop.repair(&shop.audit().await.violations).await;
        let outcomes = [RepairAction::Recount, RepairAction::LoadBuckets]
            .map(|action| repairs.iter().find(|one| one.action == action).unwrap().outcome);
        let expected = [RepairOutcome::Compensated, RepairOutcome::FailedFinal];
        assert_eq!(outcomes, expected.map(Some), "{repairs:#?}");
    });
}

#[test]
fn an_order_without_a_record_is_loaded() {
    in_system(async {
        let shop = Shop::on_redis().await;
        let Storage::Servers(fixture) = &shop.storage else { unreachable!("on Redis") };
        let pages = fixture.names("*requests:*");
        let names = fixture.redis.cmd(&["HKEYS", &pages[0]]);
        let names: Vec<String> = redis::from_redis_value(names).unwrap();
        fixture.redis.cmd(&["HDEL", &pages[0], &names[0]]);
        shop.assert_repaired(AuditVerdict::Drift, RepairAction::LoadBuckets).await;
    });
}

#[test]
fn an_unfinished_transfer_is_finished() {
    in_system(async {
        for shop in Shop::each().await {
            let lender = BucketKey { sku: shop.sku.no, bucket: BucketNo(0) };
            let loan = shop.backends.stock.lend(lender, BucketNo(1), 1).await.unwrap();
            assert!(loan.is_some());
            shop.assert_repaired(AuditVerdict::Leak, RepairAction::FinishTransfers).await;
        }
    });
}

#[test]
fn an_oversell_is_recorded_once() {
    in_system(async {
        for shop in Shop::each().await {
            shop.tamper("UPDATE skus SET initial_stock = 1, available = 0");
            for _ in 0..2 {
                let found = shop.audit().await;
                assert_eq!(found.verdicts.over_sell, 1, "{found:#?}");
                shop.repair(&found.violations).await;
            }
            let recorded = shop.backends.ledger.repairs(None, 100).await.unwrap();
            let oversold = recorded.iter().filter(|(_, one)| one.verdict == AuditVerdict::OverSell);
            let outcomes: Vec<_> = oversold.map(|(_, one)| (one.action, one.outcome)).collect();
            assert_eq!(outcomes, [(RepairAction::Record, RepairOutcome::FailedFinal)]);
        }
    });
}

#[test]
fn every_order_is_compared_with_its_opening_and_its_terms() {
    in_system(async {
        for shop in Shop::each().await {
            shop.sales.set_phase(&"sale".parse().unwrap(), Phase::Paused, None).await.unwrap();
            shop.assert_holds().await;
            for (change, invariant) in [
                ("placed_at_ms = placed_at_ms + 3600000", InvariantId::Fenced),
                ("placed_at_ms = placed_at_ms - 3600000 * 24", InvariantId::Fenced),
                ("epoch = 2", InvariantId::Fenced),
                ("amount = amount + 1", InvariantId::TermsHeld),
            ] {
                shop.tamper("CREATE TABLE kept AS SELECT * FROM orders WHERE request_id = 2");
                shop.tamper(&format!("UPDATE orders SET {change} WHERE request_id = 2"));
                let found = shop.audit().await;
                assert_eq!(broken(&found), [invariant], "{change}: {found:#?}");
                assert_eq!((found.verdicts.over_sell, found.verdicts.matched), (1, 2));
                shop.tamper("DELETE FROM orders WHERE request_id = 2");
                shop.tamper("INSERT INTO orders SELECT * FROM kept");
                shop.tamper("DROP TABLE kept");
            }
            shop.assert_holds().await;
        }
    });
}

#[test]
fn a_difference_that_is_gone_at_the_second_read_is_no_violation() {
    in_system(async {
        for shop in Shop::each().await {
            shop.tamper("UPDATE skus SET available = available - 2");
            let ledger = FaultyLedger::new(Arc::clone(&shop.backends.ledger));
            let release = ledger.hold_next_audit();
            let sources = AuditSources { ledger: &ledger, ..shop.sources(Duration::ZERO) };
            let audit = audit_all(sources, None, START_MS);
            let restore = async {
                until("the first read", async || ledger.holds_audit().then_some(())).await;
                shop.tamper("UPDATE skus SET available = available + 2");
                release.send(()).unwrap();
            };
            let (report, ()) = tokio::join!(audit, restore);
            let report = report.unwrap();
            assert!(report.holds && report.could_tell, "{report:#?}");
            assert!(report.notes.iter().any(|note| note.contains("were gone")), "{report:#?}");
        }
    });
}

#[test]
fn orders_that_are_settled_after_the_rows_were_read_are_not_missing() {
    in_system(async {
        let shop = Shop::in_memory().await;
        let stock = FaultyStock::new(Arc::clone(&shop.backends.stock));
        let (backends, sku) = (shop.backends.clone(), Arc::clone(&shop.sku));
        let next = AtomicU64::new(4);
        stock.set_before_facts(move || {
            let (backends, sku) = (backends.clone(), Arc::clone(&sku));
            let request = next.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move { sell(&backends, &sku, request).await })
        });
        let sources = AuditSources { stock: Some(&stock), ..shop.sources(Duration::ZERO) };
        let report = audit_all(sources, None, START_MS).await.unwrap();
        assert!(report.holds && !report.could_tell, "{report:#?}");
        let moved = |note: &String| note.contains("the buckets did not stand still");
        assert!(report.notes.iter().any(moved), "{report:#?}");
    });
}
