//! The query plans of SQLite: queries use keys and do not sort what may be ten million rows.

use std::sync::{Arc, Mutex};

use diesel::connection::{Instrumentation, InstrumentationEvent, SimpleConnection};
use diesel::prelude::*;
use diesel::sql_types::Text;
use diesel_migrations::MigrationHarness;

use super::connection::text_cell;
use crate::db::sql::{Database, Queries, audit, examine};
use crate::db::{Error, OrderCursor, migrate};
use crate::domain::samples::intent;
use crate::domain::{Failure, OrderIntent, Refusal, RequestId, SkuNo};

#[derive(QueryableByName)]
struct Step {
    #[diesel(sql_type = Text)]
    detail: String,
}

/// The plan of each query that `job` runs.
fn plans<T>(job: impl FnOnce(&mut SqliteConnection) -> Result<T, Error>) -> Vec<String> {
    let mut conn = SqliteConnection::establish(":memory:").unwrap();
    migrate::run(&mut conn).unwrap();
    let queries = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&queries);
    conn.set_instrumentation(move |event: InstrumentationEvent<'_>| {
        if let InstrumentationEvent::StartQuery { query, .. } = event {
            log.lock().unwrap().push(query.to_string());
        }
    });
    job(&mut conn).unwrap();
    conn.set_instrumentation(None::<Box<dyn Instrumentation>>);
    let queries = queries.lock().unwrap().clone();
    let is_query = |text: &String| text.contains("SELECT");
    let explained = queries.iter().filter(|text| is_query(text)).map(|text| {
        let sql = text.split(" -- binds").next().unwrap();
        let steps: Vec<Step> =
            diesel::sql_query(format!("EXPLAIN QUERY PLAN {sql}")).load(&mut conn).unwrap();
        steps.into_iter().map(|step| step.detail).collect::<Vec<_>>().join("; ")
    });
    explained.collect()
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
    without_sorting(&plans(|conn| conn.each_order(SkuNo(1), &mut |_| true)));
    without_sorting(&plans(|conn| conn.each_failure(SkuNo(1), &mut |_| true)));
    without_sorting(&plans(|conn| audit::ledger_size(conn, SkuNo(1))));
}

#[test]
fn an_examination_reads_only_the_rows_of_its_batch() {
    let batch = [intent(1), OrderIntent { quota: Some(3), slot: 1, ..intent(1) }];
    let plans = plans(|conn| examine::examine(conn, &batch));
    assert!(plans.len() >= 5, "{plans:#?}");
    without_sorting(&plans);
}

#[test]
fn single_rows_are_found_by_key() {
    let timeline = |conn: &mut SqliteConnection| {
        let indexed = SqliteConnection::INDEXED_REQUESTS;
        Ok(conn.timeline_row(1, indexed).unwrap())
    };
    without_sorting(&plans(timeline));
    without_sorting(&plans(|conn| Ok(conn.failure_row(1).unwrap())));
}

#[test]
fn requests_are_found_by_their_index_and_in_slot_0_by_their_buyer() {
    let failure = Failure {
        request: RequestId::new(1).unwrap(),
        sku: SkuNo(1),
        buyer: intent(1).buyer,
        quantity: 1,
        reason: Refusal::SoldOut,
        recorded_at_ms: 1,
    };
    let plans = plans(|conn| Ok(conn.ordered_among(&[failure]).unwrap()));
    without_sorting(&plans);
    let [by_request, by_buyer] = &plans[..] else { panic!("{plans:#?}") };
    assert!(by_request.contains("USING INDEX orders_by_request (request_id=?)"), "{by_request}");
    assert!(by_buyer.contains("PRIMARY KEY (sku_no=? AND buyer_id=? AND slot=?)"), "{by_buyer}");
}

#[test]
fn the_index_of_requests_omits_slot_0() {
    let mut conn = SqliteConnection::establish(":memory:").unwrap();
    migrate::run(&mut conn).unwrap();
    let insert = |slot: i64, buyer: i64, request: i64| {
        format!(
            "INSERT INTO orders (sku_no, buyer_id, slot, request_id, epoch, quantity, amount, \
             state, placed_at_ms, pay_by_ms, trace_id) \
             VALUES (1, {buyer}, {slot}, {request}, 1, 1, 1, 0, 1, 1, x'00')"
        )
    };
    for row in [insert(0, 1, 7), insert(0, 2, 7), insert(8, 1, 8)] {
        conn.batch_execute(&row).unwrap();
    }
    conn.batch_execute(&insert(9, 2, 8)).unwrap_err();
    conn.batch_execute(&insert(0, 1, 9)).unwrap_err();
}

#[test]
fn orders_of_older_ledgers_are_migrated() {
    let mut conn = SqliteConnection::establish(":memory:").unwrap();
    migrate::run(&mut conn).unwrap();
    for _ in 0..2 {
        conn.revert_last_migration(migrate::SQLITE).unwrap();
    }
    conn.batch_execute(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000) \
         INSERT INTO orders SELECT 1 + n % 3, 1000 - n, CASE WHEN n % 2 THEN n ELSE 0 END, n, 1, \
         2, 3, 1, 4, 5, x'06', NULL, 7 FROM n",
    )
    .unwrap();
    let sum = "SELECT COUNT(*) || ' ' || SUM(sku_no * buyer_id * (slot + 1) * request_id) \
               || ' ' || SUM(epoch + quantity * amount * state + placed_at_ms * pay_by_ms) \
               || ' ' || SUM(recorded_at_ms) || hex(MAX(trace_id)) AS cell FROM orders";
    let before = text_cell(&mut conn, sum).unwrap();
    let newer = ["0007_add_partial_request_index", "0008_add_discarded_letters"];
    assert_eq!(migrate::run(&mut conn).unwrap(), newer);
    assert_eq!(text_cell(&mut conn, sum).unwrap(), before);
    assert!(before.starts_with("1000 "), "{before}");
}

#[test]
fn a_buyers_page_sorts_only_the_buyers_orders() {
    let request = RequestId::new(1).unwrap();
    for cursor in [None, Some(OrderCursor { placed_at_ms: 5, request })] {
        let plans = plans(|conn| Ok(conn.order_page(1, cursor, 10).unwrap()));
        along_keys(&plans);
        assert!(plans[0].contains("PRIMARY KEY (sku_no=? AND buyer_id=?)"), "{plans:#?}");
    }
}

#[test]
fn an_audit_reads_one_sku() {
    along_keys(&plans(|conn| audit::anomalies(conn, SkuNo(1))));
    let plans = plans(audit::anomalies_across_skus);
    let (repeated, others) = plans.split_first().unwrap();
    assert!(repeated.starts_with("SCAN orders;"), "without the index: {repeated}");
    along_keys(others);
}
