//! Query plans of the ledger's statements: SQLite must use keys and must not sort, because a table
//! may have ten million rows. The statements are read from diesel's events.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use diesel::connection::{
    Instrumentation, InstrumentationEvent, SimpleConnection, set_default_instrumentation,
};
use diesel::prelude::*;
use diesel::sql_types::Text;
use floodgate::db::DeadLetterStore;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{
    EventCursor, FollowUps, OrderChanges, OrderCursor, OrderReader, OrderWriter, Refunds, Retakes,
    RetentionStore, SaleStore,
};
use floodgate::domain::{
    ArchiveCursor, ArchiveTable, AttemptKey, DeadLetterNo, Failure, OrderIntent, OrderKey,
    OrderState, PaymentState, Refusal, Sku,
};
use floodgate::runtime::clock::{ManualClock, SharedClock};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::support::offers::{ANY, ONE, buyer, intent, offer, quota, request, run};

/// The statements of all connections of this process, each with the file.
static STATEMENTS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Records the statements of one connection.
#[derive(Default)]
struct Recorder {
    file: String,
}

impl Instrumentation for Recorder {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        match event {
            InstrumentationEvent::StartEstablishConnection { url, .. } => {
                url.clone_into(&mut self.file);
            }
            InstrumentationEvent::StartQuery { query, .. } => {
                STATEMENTS.lock().push((self.file.clone(), query.to_string()));
            }
            _ => {}
        }
    }
}

#[derive(QueryableByName)]
struct Step {
    #[diesel(sql_type = Text)]
    detail: String,
}

struct Store {
    directory: TempDir,
    ledger: SqliteLedger,
    clock: Arc<ManualClock>,
    sku: Sku,
}

impl Store {
    async fn open() -> Self {
        set_default_instrumentation(|| Some(Box::new(Recorder::default()))).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(1_800_000_000_000));
        let options = OpenOptions::new(directory.path().join("ledger.db"));
        let options = OpenOptions { clock: Arc::clone(&clock) as SharedClock, ..options };
        let ledger = SqliteLedger::open(&options).unwrap();
        let sku = offer(&ledger, "sale", ANY, 1_000).await;
        Self { directory, ledger, clock, sku }
    }

    fn conn(&self) -> SqliteConnection {
        let file = self.directory.path().join("ledger.db");
        SqliteConnection::establish(file.to_str().unwrap()).unwrap()
    }

    /// The plan of each query that the ledger runs during `work`.
    async fn plans<T>(&self, work: impl Future<Output = T>) -> Vec<String> {
        let file = self.directory.path().to_str().unwrap();
        STATEMENTS.lock().retain(|(of, _)| !of.contains(file));
        work.await;
        let statements = STATEMENTS.lock().clone();
        let mut conn = self.conn();
        let queries = statements
            .iter()
            .filter(|(of, text)| {
                let is_query = ["SELECT", "UPDATE"].iter().any(|verb| text.contains(verb));
                of.contains(file) && is_query
            })
            .map(|(_, text)| text.split(" -- binds").next().unwrap());
        let explain = |sql: &str| {
            let explain = diesel::sql_query(format!("EXPLAIN QUERY PLAN {sql}"));
            let steps: Vec<Step> = explain.load(&mut conn).unwrap();
            steps.into_iter().map(|step| step.detail).collect::<Vec<_>>().join("; ")
        };
        queries.map(explain).collect()
    }
}

/// The orders of these requests, placed and due.
async fn due(store: &Store, requests: RangeInclusive<u64>) -> Vec<OrderKey> {
    let batch: Vec<_> = requests.map(|n| intent(&store.sku, n, n, 1)).collect();
    let keys =
        batch.iter().map(|it| OrderKey { sku: it.sku, buyer: it.buyer, request: it.request });
    let keys = keys.collect();
    assert!(store.ledger.place(batch).await.unwrap().is_some());
    store.clock.advance(Duration::from_secs(900));
    keys
}

#[test]
fn a_batch_of_due_orders_ends_by_the_statements_of_one() {
    run(async {
        let store = Store::open().await;
        let (one, many) = (due(&store, 1..=1).await, due(&store, 2..=500).await);
        let of_one = store.plans(store.ledger.end_due(one, 0)).await;
        along_keys(&of_one);
        let of_many = store.plans(store.ledger.end_due(many, 0)).await;
        assert_eq!(of_one.len(), of_many.len());
        assert_eq!(store.ledger.available(store.sku.no).await.unwrap(), 1_000);
    });
}

#[test]
fn what_is_due_is_found_by_its_state_and_its_time() {
    run(async {
        let store = Store::open().await;
        let ledger = &store.ledger;
        for (plans, index) in [
            (
                store.plans(ledger.due_orders(OrderState::Paying, 1, 9)).await,
                "INDEX orders_due (state=? AND due_ms<?)",
            ),
            (
                store.plans(ledger.due_refunds(1, 9)).await,
                "INDEX payments_refund_due (state=? AND refund_due_ms<?)",
            ),
            (store.plans(ledger.due_retakes(9)).await, "INDEX payments_refund_due (state=?"),
            (
                store.plans(ledger.barred(store.sku.no, 1)).await,
                "INDEX bars_by_time (sku_no=? AND at_ms>?)",
            ),
        ] {
            without_sorting(&plans);
            assert!(plans[0].contains(index), "{plans:#?}");
        }
    });
}

/// Asserts that no plan contains a full table scan.
#[track_caller]
fn along_keys(plans: &[String]) {
    assert!(!plans.is_empty());
    for plan in plans {
        for table in ["orders", "quotas", "failed_requests"] {
            assert!(!plan.contains(&format!("SCAN {table}")), "{plans:#?}");
        }
    }
}

#[track_caller]
fn without_sorting(plans: &[String]) {
    along_keys(plans);
    assert!(!plans.iter().any(|plan| plan.contains("TEMP B-TREE")), "{plans:#?}");
}

#[test]
fn a_scan_follows_a_key_and_does_not_sort() {
    run(async {
        let store = Store::open().await;
        let (ledger, sku) = (&store.ledger, store.sku.no);
        without_sorting(&store.plans(ledger.scan_orders(sku, Box::new(|_| true))).await);
        without_sorting(&store.plans(ledger.scan_failures(sku, Box::new(|_| true))).await);
        without_sorting(&store.plans(ledger.ledger_size(sku)).await);
        let held = store.plans(ledger.holding_dead_letters(vec![sku], DeadLetterNo(0), 9)).await;
        assert!(held.iter().any(|plan| plan.contains("dead_requests_by_letter")), "{held:#?}");
        assert!(!held.iter().any(|plan| plan.contains("SCAN dead_requests")), "{held:#?}");
    });
}

#[test]
fn an_examination_reads_only_the_rows_of_its_batch() {
    run(async {
        let store = Store::open().await;
        let slot_0 = Sku { policy: ONE, ..store.sku.clone() };
        let counted = Sku { policy: quota(3), ..store.sku.clone() };
        let batch: Vec<OrderIntent> = vec![intent(&slot_0, 1, 1, 1), intent(&counted, 2, 2, 1)];
        let plans = store.plans(store.ledger.examine(batch)).await;
        assert!(plans.len() >= 5, "{plans:#?}");
        without_sorting(&plans);
    });
}

#[test]
fn single_rows_are_found_by_key() {
    run(async {
        let store = Store::open().await;
        let placed = store.ledger.place(vec![intent(&store.sku, 1, 1, 1)]).await.unwrap();
        assert!(placed.is_some());
        let plans = store.plans(store.ledger.order_timeline(request(1))).await;
        assert_eq!(plans.len(), 1, "found by the index: {plans:#?}");
        without_sorting(&plans);
        let key = OrderKey { sku: store.sku.no, buyer: buyer(1), request: request(1) };
        let plans = store.plans(store.ledger.order(key)).await;
        without_sorting(&plans);
        assert!(plans[0].contains("PRIMARY KEY (sku_no=? AND buyer_id=?)"), "{plans:#?}");
        without_sorting(&store.plans(store.ledger.failure(request(1))).await);
    });
}

#[test]
fn payments_that_wait_and_changes_are_found_by_their_indexes() {
    run(async {
        let store = Store::open().await;
        let ledger = &store.ledger;
        let order = OrderKey { sku: store.sku.no, buyer: buyer(1), request: request(1) };
        for after in [None, Some(AttemptKey { order, no: 1 })] {
            let failed = ledger.payments_in(PaymentState::RefundFailed, after, 9);
            let (failed, in_doubt) = (
                store.plans(failed).await,
                store.plans(ledger.payments_in_doubt(1, after, 9)).await,
            );
            for plans in [failed, in_doubt] {
                without_sorting(&plans);
                assert!(plans[0].contains("INDEX payments_by_state (state=?"), "{plans:#?}");
            }
        }
        for after in [None, Some(EventCursor { at_ms: 1, event_id: "e".to_owned() })] {
            let plans = store.plans(ledger.unmatched_events(false, after, 9)).await;
            without_sorting(&plans);
            assert!(plans[0].contains("INDEX payment_events_unmatched"), "{plans:#?}");
        }
        let plans = store.plans(ledger.matchable_events(1, 9)).await;
        without_sorting(&plans);
        assert!(plans[0].contains("(provider=? AND payment_id=?)"), "{plans:#?}");
        let plans = store.plans(ledger.changes_after(1, 9)).await;
        without_sorting(&plans);
    });
}

#[test]
fn requests_are_found_by_their_index_and_in_slot_0_by_their_buyer() {
    run(async {
        let store = Store::open().await;
        let failure = Failure {
            request: request(1),
            sku: store.sku.no,
            buyer: buyer(1),
            quantity: 1,
            reason: Refusal::SoldOut,
            recorded_at_ms: 1,
        };
        let plans = store.plans(store.ledger.record_failures(vec![failure])).await;
        without_sorting(&plans);
        let plans: Vec<String> = plans.into_iter().filter(|plan| plan.contains("orders")).collect();
        // Before and after the failures are written.
        let [by_request, by_buyer, again, _] = &plans[..] else { panic!("{plans:#?}") };
        assert_eq!(by_request, again);
        let index = "USING INDEX orders_by_request (request_id=?)";
        assert!(by_request.contains(index), "{by_request}");
        let key = "PRIMARY KEY (sku_no=? AND buyer_id=? AND slot=?)";
        assert!(by_buyer.contains(key), "{by_buyer}");
    });
}

#[test]
fn the_index_of_requests_omits_slot_0() {
    run(async {
        let store = Store::open().await;
        let mut conn = store.conn();
        let insert = |slot: i64, buyer: i64, request: i64| {
            format!(
                "INSERT INTO orders (sku_no, buyer_id, slot, request_id, epoch, quantity, amount, \
                 state, placed_at_ms, pay_by_ms, trace_id, recorded_at_ms) \
                 VALUES (1, {buyer}, {slot}, {request}, 1, 1, 1, 0, 1, 1, x'00', 1)"
            )
        };
        for row in [insert(0, 1, 7), insert(0, 2, 7), insert(8, 1, 8)] {
            conn.batch_execute(&row).unwrap();
        }
        conn.batch_execute(&insert(9, 2, 8)).unwrap_err();
        conn.batch_execute(&insert(0, 1, 9)).unwrap_err();
    });
}

#[test]
fn a_buyers_page_sorts_only_the_buyers_orders() {
    run(async {
        let store = Store::open().await;
        for cursor in [None, Some(OrderCursor { placed_at_ms: 5, request: request(1) })] {
            let plans = store.plans(store.ledger.orders_of(buyer(1), cursor, 10)).await;
            along_keys(&plans);
            assert!(plans[0].contains("PRIMARY KEY (sku_no=? AND buyer_id=?)"), "{plans:#?}");
        }
    });
}

#[test]
fn a_page_of_an_archive_begins_at_its_key() {
    run(async {
        let store = Store::open().await;
        let sale = store.ledger.sales().await.unwrap().remove(0);
        let (buyer, request) = ("sku_no=? AND buyer_id>?", "sku_no=? AND request_id>?");
        for (table, key, range) in [
            (ArchiveTable::Orders, vec![5, 0], buyer),
            (ArchiveTable::OrderEvents, vec![5, 0], buyer),
            (ArchiveTable::OrderEvents, vec![5], request),
            (ArchiveTable::Payments, vec![5, 6, 1], buyer),
            (ArchiveTable::FailedRequests, vec![5], request),
            (ArchiveTable::Bars, vec![5], buyer),
        ] {
            let after = ArchiveCursor { scope_no: store.sku.no.0, key };
            let plans = store.plans(store.ledger.archive_page(&sale, table, after, 10)).await;
            assert!(plans[0].contains(range), "{}: {plans:#?}", table.name());
        }
    });
}

#[test]
fn an_audit_reads_one_sku() {
    run(async {
        let store = Store::open().await;
        along_keys(&store.plans(store.ledger.anomalies(store.sku.no)).await);
        let plans = store.plans(store.ledger.anomalies_across_skus()).await;
        let (repeated, others) = plans.split_first().unwrap();
        assert!(repeated.starts_with("SCAN orders;"), "without the index: {repeated}");
        along_keys(others);
    });
}
