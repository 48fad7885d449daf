//! How SQLite runs the queries: along keys, and without sorting what may be ten million rows.

use std::sync::{Arc, Mutex};

use diesel::connection::{Instrumentation, InstrumentationEvent};
use diesel::prelude::*;
use diesel::sql_types::Text;

use crate::db::sql::{Database, Queries, audit, examine};
use crate::db::{Error, OrderCursor, migrate};
use crate::domain::samples::intent;
use crate::domain::{OrderIntent, RequestId, SkuNo};

#[derive(QueryableByName)]
struct Step {
    #[diesel(sql_type = Text)]
    detail: String,
}

/// The plans of every query that `job` runs.
fn plans<T>(job: impl FnOnce(&mut SqliteConnection) -> Result<T, Error>) -> Vec<String> {
    let mut conn = SqliteConnection::establish(":memory:").unwrap();
    migrate::run(&mut conn).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    conn.set_instrumentation(move |event: InstrumentationEvent<'_>| {
        if let InstrumentationEvent::StartQuery { query, .. } = event {
            log.lock().unwrap().push(query.to_string());
        }
    });
    job(&mut conn).unwrap();
    conn.set_instrumentation(None::<Box<dyn Instrumentation>>);
    let asked = asked.lock().unwrap().clone();
    let is_query = |text: &String| text.contains("SELECT");
    let explained = asked.iter().filter(|text| is_query(text)).map(|text| {
        let sql = text.split(" -- binds").next().unwrap();
        let steps: Vec<Step> =
            diesel::sql_query(format!("EXPLAIN QUERY PLAN {sql}")).load(&mut conn).unwrap();
        steps.into_iter().map(|step| step.detail).collect::<Vec<_>>().join("; ")
    });
    explained.collect()
}

/// Nothing is read from end to end.
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
    without_sorting(&plans(|conn| audit::tally(conn, SkuNo(1))));
}

#[test]
fn an_examination_reads_only_what_it_was_asked_for() {
    let batch = [intent(1), OrderIntent { quota: Some(3), slot: 1, ..intent(1) }];
    let plans = plans(|conn| examine::examine(conn, &batch));
    assert!(plans.len() >= 5, "{plans:#?}");
    without_sorting(&plans);
}

#[test]
fn single_rows_are_found_by_key() {
    without_sorting(&plans(|conn| Ok(conn.order_row(1).unwrap())));
    without_sorting(&plans(|conn| Ok(conn.journey_row(1).unwrap())));
    without_sorting(&plans(|conn| Ok(conn.failure_row(1).unwrap())));
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
}
