//! Rows that no version of this program writes: the audit finds them, and reads fail instead of
//! guessing.

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::mysql::MysqlLedger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Error, ErrorClass, Ledger};
use floodgate::domain::invariants::Violation;
use floodgate::domain::{
    DeadLetterNo, Failure, InvariantId, OrderKey, OrderState, Policy, Refusal, RepairOutcome, Sku,
    SkuNo,
};
use floodgate::services::audit::audit;
use tempfile::TempDir;

use crate::support::dead_letters::new_dead_letter;
use crate::support::offers::{ANY, ONE, buyer, intent, offer, quota, request, run};
use crate::support::servers::mariadb::MariaDb;

struct Store {
    storage: Storage,
    ledger: Box<dyn Ledger>,
    sku: Sku,
}

enum Storage {
    File(TempDir),
    Server(MariaDb),
}

impl Store {
    /// One store of each kind. The requests 1 to 3 are orders of two units each, for buyers 1 to 3;
    /// request 9 failed.
    async fn each_with(policy: Policy) -> [Self; 2] {
        let server = MariaDb::start();
        let mariadb = Box::new(MysqlLedger::open(&server.options()).unwrap());
        let server = Self::fill(Storage::Server(server), mariadb, policy).await;
        [Self::in_file(policy).await, server]
    }

    async fn in_file(policy: Policy) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = OpenOptions::new(directory.path().join("ledger.db"));
        let ledger = Box::new(SqliteLedger::open(&options).unwrap());
        Self::fill(Storage::File(directory), ledger, policy).await
    }

    async fn fill(storage: Storage, ledger: Box<dyn Ledger>, policy: Policy) -> Self {
        let sku = offer(&*ledger, "sale", policy, 100).await;
        ledger.place((1..=3).map(|n| intent(&sku, n, n, 2)).collect()).await.unwrap();
        let failure = Failure {
            request: request(9),
            sku: sku.no,
            buyer: buyer(9),
            quantity: 1,
            reason: Refusal::SoldOut,
            recorded_at_ms: 1,
        };
        ledger.record_failures(vec![failure]).await.unwrap();
        Self { storage, ledger, sku }
    }

    /// What contradicts `invariant` within the SKU.
    async fn anomalies(&self, invariant: InvariantId) -> Vec<Violation> {
        let mut found = self.ledger.anomalies(self.sku.no).await.unwrap();
        found.retain(|violation| violation.invariant == invariant);
        found
    }

    /// Changes rows directly in the database, with its check constraints disabled.
    fn tamper(&self, sql: &str) {
        match &self.storage {
            Storage::File(directory) => {
                let file = directory.path().join("ledger.db");
                let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
                let before = "PRAGMA busy_timeout = 5000; PRAGMA ignore_check_constraints = ON";
                conn.batch_execute(&format!("{before}; {sql}")).unwrap();
            }
            Storage::Server(server) => {
                server.sql(&format!("SET SESSION check_constraint_checks = 0; {sql}"));
            }
        }
    }
}

#[test]
fn a_quota_row_that_differs_from_the_orders_is_found_and_recounted() {
    run(async {
        for store in Store::each_with(quota(5)).await {
            store.tamper(
                "UPDATE quotas SET owned = 3 WHERE buyer_id = 1; \
                 DELETE FROM quotas WHERE buyer_id = 2; \
                 UPDATE orders SET counts_for_limit = 0 WHERE buyer_id = 3; \
                 INSERT INTO quotas VALUES (1, 4, 0, 5)",
            );
            let wrong =
                |of, owned, counted| Violation::wrong_quota(store.sku.no, of, owned, counted);
            let expected = [wrong(1, 3, 2), wrong(3, 2, 0), wrong(2, 0, 2)];
            assert_eq!(store.anomalies(InvariantId::LimitHeld).await, expected);
            // A lowered limit takes no order away, and the order can end.
            store.tamper("UPDATE skus SET policy_limit = 1");
            for number in 1..=3 {
                let repair = store.ledger.recount(store.sku.no, Some(buyer(number)), 1).await;
                assert_eq!(repair.unwrap().outcome, RepairOutcome::Compensated);
            }
            let key = OrderKey { sku: store.sku.no, buyer: buyer(1), request: request(1) };
            store.ledger.cancel(key).await.unwrap();
            assert_eq!(store.anomalies(InvariantId::LimitHeld).await, []);
        }
    });
}

#[test]
fn an_order_without_its_quota_row_keeps_no_other_of_its_batch_from_ending() {
    run(async {
        let store = Store::in_file(quota(5)).await;
        store.tamper("UPDATE orders SET due_ms = 1; DELETE FROM quotas WHERE buyer_id = 2");
        let key =
            |number| OrderKey { sku: store.sku.no, buyer: buyer(number), request: request(number) };
        let ended = store.ledger.end_due((1..=3).map(key).collect(), 0).await.unwrap();
        let ended: Vec<_> = ended.iter().map(|order| order.request).collect();
        assert_eq!(ended, [request(1), request(3)]);
    });
}

#[test]
fn orders_count_for_a_quota_in_every_state_until_the_limit_returns() {
    run(async {
        for store in Store::each_with(quota(5)).await {
            for counts in [1, 0] {
                for state in OrderState::ALL.map(OrderState::to_db) {
                    store.tamper(&format!(
                        "UPDATE orders SET state = {state}, counts_for_limit = {counts}"
                    ));
                    let found = store.anomalies(InvariantId::LimitHeld).await;
                    assert_eq!(found.is_empty(), counts == 1, "state {state}: {found:?}");
                }
            }
        }
    });
}

#[test]
fn an_order_that_contradicts_its_payments_is_found() {
    let paid = "UPDATE orders SET state = 1 WHERE request_id < 3; \
                INSERT INTO payments (sku_no, buyer_id, request_id, attempt_no, provider, \
                price, currency, state, received, received_currency, refunded_total, \
                refund_attempts) \
                SELECT sku_no, buyer_id, request_id, 1, 'demo', amount, 'CNY', 2, amount, 'CNY', \
                0, 0 FROM orders WHERE request_id < 3";
    run(async {
        for store in Store::each_with(ANY).await {
            let found = async |sql: &str| {
                store.tamper(sql);
                store.anomalies(InvariantId::MoneyAccounted).await
            };
            let wrong = Violation::wrong_money(store.sku.no, 2);
            assert_eq!(found(paid).await, []);
            let of_two = |columns| format!("UPDATE payments SET {columns} WHERE request_id = 2");
            for (columns, both) in [
                ("state = 1", true),
                ("state = 3", false),
                ("received = received - 1", false),
                ("received_currency = 'EUR'", false),
                ("received = NULL, received_currency = NULL", false),
                ("state = 5", true),
            ] {
                let expected = vec![wrong.clone(); if both { 2 } else { 1 }];
                assert_eq!(found(&of_two(columns)).await, expected, "{columns}");
                let healthy = "state = 2, received = price, received_currency = 'CNY'";
                assert_eq!(found(&of_two(healthy)).await, [], "{columns}");
            }
            assert_eq!(found("UPDATE orders SET state = 2 WHERE request_id = 2").await, [wrong]);
            let report = audit(None, &*store.ledger, None, 1).await.unwrap();
            let broken = report.violations.iter().map(|violation| violation.invariant);
            assert!(broken.clone().any(|id| id == InvariantId::MoneyAccounted), "{report:?}");
        }
    });
}

#[test]
fn a_request_that_is_order_and_failure_is_found() {
    run(async {
        for policy in [ANY, ONE] {
            for store in Store::each_with(policy).await {
                store.tamper("UPDATE failed_requests SET request_id = 2, buyer_id = 2");
                let expected = [Violation::order_and_failure(store.sku.no, 2)];
                assert_eq!(store.anomalies(InvariantId::NothingLost).await, expected);
            }
        }
    });
}

#[test]
fn a_request_with_two_orders_is_found_even_without_its_index() {
    const TWICE: &str = "SELECT sku_no, 50, slot, request_id, epoch, quantity, amount, state, \
                         placed_at_ms, pay_by_ms, trace_id, NULL, recorded_at_ms, 0, NULL, 1 \
                         FROM orders \
                         WHERE request_id = 3";
    run(async {
        for store in Store::each_with(ANY).await {
            store.tamper(&match store.storage {
                Storage::File(_) => format!(
                    "CREATE TABLE loose AS SELECT * FROM orders; INSERT INTO loose {TWICE}; \
                     DROP TABLE orders; ALTER TABLE loose RENAME TO orders"
                ),
                Storage::Server(_) => format!(
                    "ALTER TABLE orders DROP KEY orders_by_request; INSERT INTO orders {TWICE}"
                ),
            });
            let found = store.ledger.anomalies_across_skus().await.unwrap();
            assert_eq!(found, [Violation::duplicate_request(3, 2)]);
        }
    });
}

#[test]
fn a_request_with_orders_of_two_skus_is_found() {
    run(async {
        for store in Store::each_with(ONE).await {
            let ledger = &*store.ledger;
            let other = offer(ledger, "other", ONE, 100).await;
            // No process derives the same id for two SKUs.
            let written = ledger.place(vec![intent(&other, 3, 3, 1)]).await.unwrap();
            let expected = match (&store.storage, written) {
                (Storage::File(_), Some(_)) => vec![Violation::duplicate_request(3, 2)],
                (Storage::Server(_), None) => vec![],
                (_, written) => panic!("{written:?}"),
            };
            let found = ledger.anomalies_across_skus().await.unwrap();
            assert_eq!(found, expected);
            let report = audit(None, ledger, None, 1).await.unwrap();
            let broken = report.violations.iter().map(|violation| violation.invariant);
            let request_broken = broken.clone().any(|id| id == InvariantId::OneOrderPerRequest);
            assert_eq!(request_broken, !expected.is_empty(), "{:?}", report.violations);
        }
    });
}

#[test]
fn rows_of_a_sku_that_no_sale_has_are_found() {
    run(async {
        for store in Store::each_with(ANY).await {
            let none = store.ledger.anomalies_across_skus().await.unwrap();
            assert_eq!(none, []);
            store.tamper(
                "UPDATE orders SET sku_no = 70 WHERE request_id < 3; \
                 UPDATE failed_requests SET sku_no = 80",
            );
            let found = store.ledger.anomalies_across_skus().await.unwrap();
            let unknown = |sku, orders, failed| Violation::unknown_sku(SkuNo(sku), orders, failed);
            assert_eq!(found, [unknown(70, 2, 0), unknown(80, 0, 1)]);
            let report = audit(None, &*store.ledger, None, 1).await.unwrap();
            for (invariant, detail) in [
                (InvariantId::NoOversell, "sku 70: no sale has it"),
                (InvariantId::NothingLost, "sku 80: no sale has it"),
            ] {
                let is_reported = |violation: &Violation| {
                    violation.invariant == invariant && violation.detail.contains(detail)
                };
                assert!(report.violations.iter().any(is_reported), "{:#?}", report.violations);
            }
        }
    });
}

#[test]
fn an_invalid_order_row_is_named_and_not_guessed() {
    run(async {
        for (sql, word) in [
            ("UPDATE orders SET buyer_id = -5 WHERE request_id = 1", "buyer_id is -5"),
            ("UPDATE orders SET request_id = -1 WHERE request_id = 1", "request_id is -1"),
            ("UPDATE orders SET state = 9", "state is 9"),
            ("UPDATE orders SET quantity = -1", "quantity"),
        ] {
            for store in Store::each_with(ANY).await {
                store.tamper(sql);
                assert_unreadable(
                    store.ledger.scan_orders(store.sku.no, Box::new(|_| true)).await,
                    word,
                );
            }
        }
    });
}

/// Buckets get the other changes; a reader of the whole feed stops before it.
#[test]
fn an_invalid_change_is_left_out_of_the_changes_and_named_in_the_feed() {
    let of_change =
        |columns| format!("UPDATE order_events SET {columns} WHERE request_id = 2 AND version = 1");
    run(async {
        for (sql, word) in [
            (of_change("kind = 9"), "kind is 9"),
            (of_change("buyer_id = -5"), "buyer_id is -5"),
            ("UPDATE orders SET state = 9 WHERE request_id = 2".to_owned(), "state is 9"),
        ] {
            for store in Store::each_with(ANY).await {
                let (ledger, sku) = (&store.ledger, store.sku.no);
                for number in 1..=3 {
                    let key = OrderKey { sku, buyer: buyer(number), request: request(number) };
                    ledger.cancel(key).await.unwrap();
                }
                while ledger.number_events(9).await.unwrap() > 0 {}
                store.tamper(&sql);
                let page = ledger.changes_after(0, 9).await.unwrap();
                let changed: Vec<_> = page.events.iter().map(|event| event.order.request).collect();
                assert_eq!(changed, [request(1), request(3)], "{sql}");
                // Three placements and a failure come before the changes.
                assert_eq!((page.num_unreadable, page.read_to), (1, 7), "{sql}");
                let page = ledger.changes_after(5, 1).await.unwrap();
                assert_eq!((page.events, page.read_to), (vec![], 6), "{sql}: the cursor goes on");
                assert_unreadable(ledger.events_after(0, 9).await, word);
            }
        }
    });
}

#[test]
fn an_invalid_failure_row_is_named_and_not_guessed() {
    run(async {
        for (sql, word) in [
            ("UPDATE failed_requests SET reason = 'whim'", "reason is whim"),
            ("UPDATE failed_requests SET reason = 'quota-exceeded'", "without details"),
            ("UPDATE failed_requests SET reason = 'already-purchased'", "without details"),
        ] {
            for store in Store::each_with(ANY).await {
                store.tamper(sql);
                let scanned = store.ledger.scan_failures(store.sku.no, Box::new(|_| true)).await;
                assert_unreadable(scanned, word);
                assert_unreadable(store.ledger.failure(request(9)).await, word);
            }
        }
    });
}

/// A load reads the dead letters of its SKU: one of them must not delay it.
#[test]
fn invalid_dead_letters_are_left_out_of_those_that_hold_requests() {
    run(async {
        for store in Store::each_with(ANY).await {
            let dead_letters = [1, 2, 3].map(|number| new_dead_letter(&[number])).to_vec();
            store.ledger.store_dead_letters(dead_letters, 1).await.unwrap();
            let first = DeadLetterNo(0);
            let read = async |after, limit| {
                store.ledger.holding_dead_letters(vec![SkuNo(1)], after, limit).await.unwrap()
            };
            let stored = read(first, 9).await;
            let last = stored[2].0.no;
            let sql = format!("UPDATE dead_letters SET origin = 'x' WHERE letter_no < {}", last.0);
            store.tamper(&sql);
            for limit in [1, 9] {
                assert_eq!(read(first, limit).await, stored[2..], "at most {limit}");
            }
            assert_eq!(read(last, 9).await, []);
        }
    });
}

#[test]
fn an_invalid_sale_row_is_named_and_not_guessed() {
    run(async {
        for (sql, word) in [
            ("UPDATE skus SET policy_kind = 'first_come'", "policy.kind"),
            ("UPDATE skus SET policy_limit = -1", "policy_limit is -1"),
            ("UPDATE sales SET sale_id = 'a b'", "sale_id is a b"),
        ] {
            for store in Store::each_with(ANY).await {
                store.tamper(sql);
                assert_unreadable(store.ledger.sales().await, word);
            }
        }
    });
}

#[test]
fn an_invalid_timeline_is_not_guessed() {
    run(async {
        for store in Store::each_with(ANY).await {
            let order_timeline = async || store.ledger.order_timeline(request(1)).await;
            let whole = order_timeline().await.unwrap().unwrap();
            assert!(whole.recorded_at_ms > 1);
            if let Storage::File(_) = store.storage {
                // The column in MariaDB has a fixed length of 16 bytes.
                store.tamper("UPDATE orders SET trace_id = x'00'");
                assert_unreadable(order_timeline().await, "trace_id is 1 bytes long");
            }
        }
    });
}

#[track_caller]
fn assert_unreadable<T: std::fmt::Debug>(answer: Result<T, Error>, word: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Bug);
    assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
}
