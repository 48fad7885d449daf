//! Query plans of the ledger's statements: MariaDB must use keys and must not sort, because a table
//! may have ten million rows. The statements are read from the general log of the server.

use diesel::prelude::*;
use diesel::sql_types::{Nullable, Text};
use diesel_async::RunQueryDsl;
use floodgate::db::mysql::MysqlLedger;
use floodgate::db::{
    DeadLetterStore, OrderChanges, OrderCursor, OrderReader, OrderWriter, Refunds, Retakes,
};
use floodgate::domain::{DeadLetterNo, Failure, OrderState, Refusal, Sku, SkuNo};

use crate::support::offers::{ANY, ONE, buyer, intent, offer, quota, request, run};
use crate::support::servers::mariadb::MariaDb;

struct Store {
    server: MariaDb,
    ledger: MysqlLedger,
    one: Sku,
    some: Sku,
}

/// One row of EXPLAIN.
#[derive(Debug, QueryableByName)]
struct Step {
    #[diesel(sql_type = Nullable<Text>)]
    table: Option<String>,
    #[diesel(sql_type = Nullable<Text>, column_name = "type")]
    access: Option<String>,
    #[diesel(sql_type = Nullable<Text>)]
    key: Option<String>,
    /// The bytes of the key that the search uses.
    #[diesel(sql_type = Nullable<Text>)]
    key_len: Option<String>,
    #[diesel(sql_type = Nullable<Text>, column_name = "Extra")]
    extra: Option<String>,
}

/// A statement and its steps.
type Plan = (String, Vec<Step>);

impl Store {
    /// Three SKUs with 2,000 orders and 1,000 failures each, among 20,000 other rows per table.
    async fn filled() -> Self {
        let server = MariaDb::start_with(&[
            "--innodb-flush-log-at-trx-commit=0",
            "--log-output=TABLE",
            "--general-log=1",
        ]);
        let ledger = MysqlLedger::open(&server.options()).unwrap();
        let mut skus = Vec::new();
        for (id, policy) in [("one", ONE), ("any", ANY), ("quota", quota(3))] {
            let sku = offer(&ledger, id, policy, 1_000_000).await;
            let base = u64::try_from(sku.no.0).unwrap() * 1_000_000;
            for batch in 0..4 {
                let first = batch * 500 + 1;
                let intents = (first..first + 500).map(|n| intent(&sku, base + n, n, 1)).collect();
                assert!(ledger.place(intents).await.unwrap().is_some());
            }
            let failure = |number| Failure {
                request: request(base + 500_000 + number),
                sku: sku.no,
                buyer: buyer(number),
                quantity: 1,
                reason: Refusal::SoldOut,
                recorded_at_ms: 1,
            };
            ledger.record_failures((1..=1_000).map(failure).collect()).await.unwrap();
            skus.push(sku);
        }
        // Other rows make a SKU a small part of its tables, so that MariaDB prefers keys.
        server.sql(
            "INSERT INTO failed_requests SELECT 90000000 + seq, 99, seq, 1, 'ended', NULL, NULL, \
               NULL, 1 FROM seq_1_to_20000; \
             INSERT INTO orders SELECT 99, seq, 0, 80000000 + seq, 1, 1, 1, 0, 1, 1, '', NULL, \
               1, 0, NULL, 1 FROM seq_1_to_20000; \
             INSERT INTO quotas SELECT 99, seq, 0, 1 FROM seq_1_to_20000",
        );
        server.sql("ANALYZE TABLE orders, quotas, failed_requests, skus, sales");
        let some = skus.pop().unwrap();
        Self { server, ledger, one: skus.swap_remove(0), some }
    }

    /// The plans of the statements that the ledger sends during `work`, without the one that the
    /// driver sends when it connects.
    async fn plans<T>(&self, work: impl Future<Output = T>) -> Vec<Plan> {
        self.server.sql("TRUNCATE mysql.general_log");
        work.await;
        let logged = self.server.texts(
            "SELECT CONVERT(argument USING utf8mb4) AS text FROM mysql.general_log \
             WHERE command_type IN ('Query', 'Execute') AND user_host LIKE 'floodgate%' \
             AND argument NOT LIKE 'SELECT @@max_allowed_packet%' ORDER BY event_time",
        );
        let reads = |text: &&str| {
            let first = text.trim_start_matches('(');
            ["SELECT", "UPDATE"].iter().any(|verb| first.starts_with(verb))
        };
        // A text may have several statements, of numbers only.
        let each = logged.iter().flat_map(|text| text.split("; "));
        let statements: Vec<String> = each.filter(reads).map(str::to_owned).collect();
        self.server.as_root(async |conn| {
            let mut plans = Vec::new();
            for text in statements {
                let explain = diesel::sql_query(format!("EXPLAIN {text}"));
                plans.push((text, explain.load(conn).await.unwrap()));
            }
            plans
        })
    }
}

/// Requires that no large table is scanned.
#[track_caller]
fn assert_uses_keys(plans: &[Plan]) {
    assert!(!plans.is_empty());
    for (text, steps) in plans {
        for step in steps {
            let table = step.table.as_deref().unwrap_or_default();
            let large = ["orders", "quotas", "failed_requests", "o", "q"].contains(&table);
            let scans = matches!(step.access.as_deref(), Some("ALL" | "index"));
            assert!(!large || !scans, "{text}: {steps:#?}");
        }
    }
}

#[track_caller]
fn assert_does_not_sort(plans: &[Plan]) {
    assert_uses_keys(plans);
    for (text, steps) in plans {
        for step in steps {
            let extra = step.extra.as_deref().unwrap_or_default();
            assert!(!extra.contains("filesort"), "{text}: {steps:#?}");
            assert!(!extra.contains("temporary"), "{text}: {steps:#?}");
        }
    }
}

fn reads_by(plans: &[Plan], table: &str, key: &str) -> bool {
    plans
        .iter()
        .flat_map(|(_, steps)| steps)
        .any(|step| step.table.as_deref() == Some(table) && step.key.as_deref() == Some(key))
}

#[test]
fn a_scan_follows_a_key_and_does_not_sort() {
    run(async {
        let store = Store::filled().await;
        let (ledger, sku) = (&store.ledger, store.one.no);
        let plans = store.plans(ledger.scan_orders(sku, Box::new(|_| true))).await;
        assert_does_not_sort(&plans);
        assert!(reads_by(&plans, "orders", "PRIMARY"), "{plans:#?}");
        let plans = store.plans(ledger.scan_failures(sku, Box::new(|_| true))).await;
        assert_does_not_sort(&plans);
        assert!(reads_by(&plans, "failed_requests", "failed_requests_by_sku"), "{plans:#?}");
        assert_does_not_sort(&store.plans(ledger.ledger_size(sku)).await);
        assert_uses_keys(&store.plans(ledger.scan_audit(sku, Box::new(|_| true))).await);
        let held = store.plans(ledger.holding_dead_letters(vec![sku], DeadLetterNo(0), 9)).await;
        assert!(reads_by(&held, "dead_requests", "dead_requests_by_letter"), "{held:#?}");
    });
}

#[test]
fn placing_and_examining_read_only_what_they_are_about() {
    run(async {
        let store = Store::filled().await;
        let fresh = |sku: &Sku, n: u64| intent(sku, 70_000_000 + n, 50_000 + n, 1);
        let mut batch: Vec<_> = (1..=200).map(|n| fresh(&store.one, n)).collect();
        batch.extend((201..=400).map(|n| fresh(&store.some, n)));
        let plans = store.plans(store.ledger.place(batch.clone())).await;
        assert_does_not_sort(&plans);
        assert!(reads_by(&plans, "quotas", "PRIMARY"), "{plans:#?}");
        assert!(reads_by(&plans, "failed_requests", "PRIMARY"), "{plans:#?}");
        let expected = "token, bars, failures, what both found, quota, stocks";
        assert!(plans.len() <= 6, "{expected}: {plans:#?}");

        let plans = store.plans(store.ledger.examine(batch)).await;
        assert_eq!(plans.len(), 7, "the read-only mode and six tables: {plans:#?}");
        assert_does_not_sort(&plans);
        assert!(reads_by(&plans, "orders", "orders_by_request"), "{plans:#?}");
        assert!(reads_by(&plans, "orders", "PRIMARY"), "{plans:#?}");
    });
}

#[test]
fn single_rows_and_pages_are_found_by_key() {
    run(async {
        let store = Store::filled().await;
        let ledger = &store.ledger;
        assert_does_not_sort(&store.plans(ledger.order_timeline(request(1_000_001))).await);
        assert_does_not_sort(&store.plans(ledger.order_timeline(request(1_000_001))).await);
        assert_does_not_sort(&store.plans(ledger.failure(request(1_500_001))).await);
        for cursor in [None, Some(OrderCursor { placed_at_ms: 5, request: request(1) })] {
            let plans = store.plans(ledger.orders_of(buyer(7), cursor, 10)).await;
            assert_uses_keys(&plans);
            assert!(reads_by(&plans, "orders", "PRIMARY"), "{plans:#?}");
        }
    });
}

#[test]
fn what_is_due_is_found_by_its_state_and_its_time() {
    run(async {
        let store = Store::filled().await;
        let ledger = &store.ledger;
        // A few rows of each wanted state among many that are due in another state.
        store.server.sql(
            "UPDATE orders SET due_ms = buyer_id, state = IF(buyer_id % 1000, 0, 5); \
             INSERT INTO payments (sku_no, buyer_id, request_id, attempt_no, provider, price, \
               currency, state, refunded_total, refund_attempts, refund_due_ms) \
               SELECT 99, seq, 80000000 + seq, 1, 'demo', 1, 'CNY', \
               IF(seq % 1000, 4, IF(seq % 2000, 3, 6)), 0, 0, seq FROM seq_1_to_20000",
        );
        store.server.sql("ANALYZE TABLE orders, payments");
        for (plans, table, key) in [
            (
                store.plans(ledger.due_orders(OrderState::Paying, i64::MAX, 9)).await,
                "orders",
                "orders_due",
            ),
            (store.plans(ledger.due_refunds(i64::MAX, 9)).await, "payments", "payments_refund_due"),
            (store.plans(ledger.due_retakes(9)).await, "payments", "payments_refund_due"),
        ] {
            // The payments of the orders that were found follow, by their key.
            let plans = &plans[..1];
            assert_does_not_sort(plans);
            assert!(reads_by(plans, table, key), "{plans:#?}");
            // State and time: 2 bytes, and 9 with the one of NULL.
            assert_eq!(plans[0].1[0].key_len.as_deref(), Some("11"), "{plans:#?}");
        }
    });
}

#[test]
fn the_latest_bars_are_found_by_their_time() {
    run(async {
        let store = Store::filled().await;
        store.server.sql(
            "INSERT INTO bars (sku_no, buyer_id, request_id, at_ms) \
               SELECT 99, seq, seq, seq FROM seq_1_to_20000; \
             ANALYZE TABLE bars",
        );
        let plans = store.plans(store.ledger.barred(SkuNo(99), 19_990)).await;
        assert!(reads_by(&plans, "bars", "bars_by_time"), "{plans:#?}");
        // SKU and time.
        assert_eq!(plans[0].1[0].key_len.as_deref(), Some("12"), "{plans:#?}");
    });
}

#[test]
fn an_audit_reads_one_sku() {
    run(async {
        let store = Store::filled().await;
        let plans = store.plans(store.ledger.anomalies(store.some.no)).await;
        assert_eq!(plans.len(), 3, "requests, quotas, money: {plans:#?}");
        assert_uses_keys(&plans);
    });
}

#[test]
fn an_audit_of_all_skus_counts_requests_without_their_index() {
    run(async {
        let store = Store::filled().await;
        let plans = store.plans(store.ledger.anomalies_across_skus()).await;
        let (repeated, skus) = plans.split_first().unwrap();
        assert!(repeated.0.contains("GROUP BY request_id"), "{repeated:#?}");
        assert!(!reads_by(&plans, "orders", "orders_by_request"), "{plans:#?}");
        assert_uses_keys(skus);
        assert!(skus.len() < 20, "one step for each SKU that has rows: {skus:#?}");
    });
}
