//! The statements of the hot path.
//!
//! Each is one text for any number of rows, so that a batch takes half a dozen round trips. A
//! prepared statement would have a fixed number of rows, and the server would describe each of its
//! parameters. The texts contain no values but numbers.

use std::collections::BTreeMap;
use std::fmt::Write;

use diesel::dsl::sql;
use diesel::expression::SqlLiteral;
use diesel::query_builder::SqlQuery;
use diesel::sql_query;
use diesel::sql_types::BigInt;

use crate::db::rows::{NEW_ORDER_COLUMNS, NewOrder};
use crate::db::sql::statements::{list, of_buyers};
use crate::db::sql::{QuotaClaim, SkuAndBuyer};

/// Inserts all orders, or none on a unique violation.
pub(super) fn insert_orders(orders: &[NewOrder]) -> String {
    let mut text = String::with_capacity(200 + 230 * orders.len());
    let _written = write!(text, "INSERT INTO orders ({NEW_ORDER_COLUMNS}) VALUES ");
    let mut before = "(";
    for NewOrder { numbers, trace_id, published_at_ms, recorded_at_ms } in orders {
        let (numbers, trace) = (list(*numbers), u128::from_be_bytes(*trace_id));
        let _written = write!(text, "{before}{numbers},x'{trace:032x}',");
        let _written = match published_at_ms {
            Some(published_at_ms) => write!(text, "{published_at_ms}"),
            None => write!(text, "NULL"),
        };
        let _written = write!(text, ",{recorded_at_ms}");
        before = "),(";
    }
    text.push(')');
    text
}

/// A recorded failure of these requests, if any. A locking read of the latest committed rows, so
/// that the result stays valid; the primary key restricts the locks to these requests.
pub(super) fn failed_among(requests: &[i64]) -> SqlLiteral<BigInt> {
    sql(&format!(
        "SELECT request_id FROM failed_requests FORCE INDEX (PRIMARY) WHERE request_id IN ({}) \
         LIMIT 1 LOCK IN SHARE MODE",
        list(requests.iter().copied())
    ))
}

/// The requests among these that have orders; a locking read as in [`failed_among`].
pub(super) fn ordered_among(requests: impl Iterator<Item = i64>) -> SqlLiteral<BigInt> {
    sql(&format!(
        "SELECT request_id FROM orders FORCE INDEX (orders_by_request) WHERE request_id IN ({}) \
         LOCK IN SHARE MODE",
        list(requests)
    ))
}

/// Inserts a quota row with 0 units for each buyer without one, and locks all these rows
/// exclusively in key order. (`INSERT IGNORE` takes shared locks on existing rows: concurrent
/// writers would deadlock.)
pub(super) fn open_quotas(claims: &[QuotaClaim]) -> String {
    let mut text = "INSERT INTO quotas (sku_no, buyer_id, owned, quota) VALUES ".to_owned();
    let mut before = "(";
    for QuotaClaim { sku_no, buyer_id, quota, .. } in claims {
        let _written = write!(text, "{before}{sku_no},{buyer_id},0,{quota}");
        before = "),(";
    }
    text.push_str(") ON DUPLICATE KEY UPDATE owned = owned");
    text
}

/// Groups buyers by the units that they take, for one statement per group; the groups are few.
pub(super) fn by_units(claims: &[QuotaClaim]) -> BTreeMap<i32, Vec<SkuAndBuyer>> {
    let mut by_units: BTreeMap<i32, Vec<SkuAndBuyer>> = BTreeMap::new();
    for claim in claims {
        by_units.entry(claim.units).or_default().push((claim.sku_no, claim.buyer_id));
    }
    by_units
}

/// Adds units to the quota rows of the buyers that stay within their quota. All of them do if the
/// number of changed rows equals the number of buyers.
pub(super) fn take_quotas(units: i32, buyers: &[SkuAndBuyer]) -> SqlQuery {
    sql_query(format!(
        "UPDATE quotas SET owned = owned + {units} WHERE ({}) AND owned + {units} <= quota",
        of_buyers(buyers)
    ))
}

/// Takes units from those of these SKUs that have enough available. All of them have if the number
/// of changed rows equals the number of SKUs.
pub(super) fn take_stocks(units: &[(i32, i32)]) -> SqlQuery {
    let mut each = "CASE sku_no".to_owned();
    for (sku, units) in units {
        let _written = write!(each, " WHEN {sku} THEN {units}");
    }
    each.push_str(" END");
    let skus = list(units.iter().map(|(sku, _)| i64::from(*sku)));
    sql_query(format!(
        "UPDATE skus SET available = available - {each} \
         WHERE sku_no IN ({skus}) AND available >= {each}"
    ))
}
