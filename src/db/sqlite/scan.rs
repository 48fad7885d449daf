//! Rows in bulk, and single orders.
//!
//! A scan is one statement, so it sees one instant however long it takes; while it runs, the log
//! cannot be folded back past that instant and grows with what is written meanwhile.

use diesel::connection::DefaultLoadingMode;
use diesel::prelude::*;

use crate::db::rows::{FailureRow, OrderRow};
use crate::db::schema::{failed_requests, orders, skus};
use crate::db::{Error, OrderCursor, Visit};
use crate::domain::{BuyerId, Failure, Order, RequestId, SkuNo};

/// Visits the orders of a SKU by buyer and slot.
pub(super) fn scan_orders(
    conn: &mut SqliteConnection,
    sku: SkuNo,
    mut visit: Visit<Order>,
) -> Result<(), Error> {
    const DOING: &str = "scanning orders";
    let rows = orders::table
        .filter(orders::sku_no.eq(sku.0))
        .order((orders::buyer_id, orders::slot))
        .select(OrderRow::as_select())
        .load_iter::<OrderRow, DefaultLoadingMode>(conn)
        .map_err(Error::refused(DOING))?;
    for row in rows {
        let order = Order::try_from(row.map_err(Error::refused(DOING))?)?;
        if !visit(order) {
            break;
        }
    }
    Ok(())
}

/// Visits the failures of a SKU by request.
pub(super) fn scan_failures(
    conn: &mut SqliteConnection,
    sku: SkuNo,
    mut visit: Visit<Failure>,
) -> Result<(), Error> {
    const DOING: &str = "scanning failures";
    let rows = failed_requests::table
        .filter(failed_requests::sku_no.eq(sku.0))
        .order(failed_requests::request_id)
        .select(FailureRow::as_select())
        .load_iter::<FailureRow, DefaultLoadingMode>(conn)
        .map_err(Error::refused(DOING))?;
    for row in rows {
        let failure = Failure::try_from(row.map_err(Error::refused(DOING))?)?;
        if !visit(failure) {
            break;
        }
    }
    Ok(())
}

/// One order by its request.
pub(super) fn order(
    conn: &mut SqliteConnection,
    request: RequestId,
) -> Result<Option<Order>, Error> {
    orders::table
        .filter(orders::request_id.eq(request.to_db()))
        .select(OrderRow::as_select())
        .first(conn)
        .optional()
        .map_err(Error::refused("reading an order"))?
        .map(Order::try_from)
        .transpose()
}

/// A page of a buyer's orders. The buyer is sought in each SKU along the primary key: an index by
/// buyer would cost every order a second write for a page that few ask for.
pub(super) fn orders_of(
    conn: &mut SqliteConnection,
    buyer: BuyerId,
    cursor: Option<OrderCursor>,
    limit: u32,
) -> Result<Vec<Order>, Error> {
    let mut page = orders::table
        .filter(orders::sku_no.eq_any(skus::table.select(skus::sku_no)))
        .filter(orders::buyer_id.eq(buyer.to_db()))
        .order((orders::placed_at_ms.desc(), orders::request_id.desc()))
        .limit(i64::from(limit))
        .select(OrderRow::as_select())
        .into_boxed();
    if let Some(OrderCursor { placed_at_ms, request }) = cursor {
        page =
            page.filter(orders::placed_at_ms.lt(placed_at_ms).or(
                orders::placed_at_ms.eq(placed_at_ms).and(orders::request_id.lt(request.to_db())),
            ));
    }
    page.load(conn)
        .map_err(Error::refused("reading a buyer's orders"))?
        .into_iter()
        .map(Order::try_from)
        .collect()
}
