//! Reads orders and failures, for buyers, operators and audits. The memory of a scan does not grow
//! with the number of orders.

use std::collections::BTreeSet;

use async_trait::async_trait;
use diesel::QueryResult;

use super::{Database, SqlLedger, convert_rows};
use crate::db::failure_rows::{FailureRow, refusal_without_details};
use crate::db::rows::{OrderRow, number};
use crate::db::sale_rows::SkuHistories;
use crate::db::{AuditRow, Error, LedgerSize, OrderCursor, OrderReader, Visitor};
use crate::domain::book::gives_back;
use crate::domain::invariants::{SkuFacts, Violation};
use crate::domain::{
    BuyerId, Failure, Order, OrderKey, OrderTimeline, Payment, PhaseHistory, RequestId, Sku, SkuNo,
};

/// The maximum number of anomalies of one kind that are read; an audit lists fewer.
const ANOMALIES_MAX: i32 = 1000;

#[async_trait]
impl<D: Database> OrderReader for SqlLedger<D> {
    async fn ledger_size(&self, sku: SkuNo) -> Result<LedgerSize, Error> {
        self.read_all("counting orders", move |conn| {
            let Some(available) = conn.available(sku.0)? else {
                return Ok(LedgerSize::default());
            };
            let (num_orders, num_failures) = num_rows(conn, sku)?;
            Ok(LedgerSize {
                num_orders,
                num_failures,
                available: number(|| format!("sku {sku}"), "available", available)?,
            })
        })
        .await
    }

    async fn scan_orders(&self, sku: SkuNo, mut visit: Visitor<Order>) -> Result<(), Error> {
        self.read_all("scanning orders", move |conn| {
            conn.snapshot(|conn| each_order(conn, sku, &mut visit))
        })
        .await
    }

    async fn scan_failures(&self, sku: SkuNo, mut visit: Visitor<Failure>) -> Result<(), Error> {
        self.read_all("scanning failures", move |conn| {
            conn.snapshot(|conn| {
                let key = |row: &FailureRow| row.request_id;
                let load = |after| conn.failure_page_after(sku.0, after);
                by_page::<_, Failure, _>(i64::MIN, key, &mut visit, load)
            })
        })
        .await
    }

    async fn order_timeline(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error> {
        self.read_all("reading an order", move |conn| {
            let request = request.to_db();
            let indexed = conn.timeline_row(request, D::INDEXED_REQUESTS)?;
            let row = match D::UNINDEXED_REQUESTS {
                Some(unindexed) if indexed.is_none() => {
                    conn.with_audit_limit(|conn| conn.timeline_row(request, unindexed))?
                }
                _ => indexed,
            };
            row.map(OrderTimeline::try_from).transpose()
        })
        .await
    }

    async fn order(&self, key: OrderKey) -> Result<Option<Order>, Error> {
        self.read("reading an order", move |conn| {
            Ok(convert_rows(conn.orders_by_key(&[key])?)?.pop())
        })
        .await
    }

    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error> {
        self.read("reading a failure", move |conn| {
            let row = conn.failures_by_request(&[request.to_db()])?.pop();
            row.map(Failure::try_from).transpose()
        })
        .await
    }

    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error> {
        self.read("reading a buyer's orders", move |conn| {
            convert_rows(conn.order_page(buyer.to_db(), cursor, limit)?)
        })
        .await
    }

    async fn barred(&self, sku: SkuNo, since_ms: i64) -> Result<Vec<BuyerId>, Error> {
        self.read("reading barred buyers", move |conn| {
            let buyers = conn.barred_since(sku.0, since_ms)?;
            Ok(buyers.into_iter().filter_map(BuyerId::from_db).collect())
        })
        .await
    }

    async fn payments_of(&self, orders: Vec<OrderKey>) -> Result<Vec<Payment>, Error> {
        self.read("reading payments", move |conn| {
            conn.payments_of(&orders)?.iter().map(Payment::try_from).collect()
        })
        .await
    }

    async fn scan_audit(&self, sku: SkuNo, mut visit: Visitor<AuditRow>) -> Result<(), Error> {
        self.read_all("auditing", move |conn| {
            conn.snapshot(|conn| {
                let Some(facts) = facts(conn, sku)? else { return Ok(()) };
                if !visit(AuditRow::Sku(facts)) {
                    return Ok(());
                }
                each_order(conn, sku, &mut |order| visit(AuditRow::Order(order)))
            })
        })
        .await
    }

    async fn anomalies(&self, sku: SkuNo) -> Result<Vec<Violation>, Error> {
        self.read_all("auditing", move |conn| {
            let both =
                conn.with_audit_limit(|conn| conn.ordered_and_failed(sku.0, ANOMALIES_MAX))?;
            let quotas = conn.with_audit_limit(|conn| conn.wrong_quotas(sku.0, ANOMALIES_MAX))?;
            let money = conn.with_audit_limit(|conn| conn.wrong_money(sku.0, ANOMALIES_MAX))?;
            let both = both.into_iter().map(|request| Violation::order_and_failure(sku, request));
            let quotas = quotas
                .into_iter()
                .map(|(buyer, owned, counted)| Violation::wrong_quota(sku, buyer, owned, counted));
            let money = money.into_iter().map(|request| Violation::wrong_money(sku, request));
            Ok(both.chain(quotas).chain(money).collect())
        })
        .await
    }

    async fn anomalies_across_skus(&self) -> Result<Vec<Violation>, Error> {
        self.read_all("auditing", |conn| {
            let repeated = conn.with_audit_limit(|conn| conn.repeated_requests(ANOMALIES_MAX))?;
            let mut used = BTreeSet::new();
            let next_sku: [fn(&mut D, i32) -> QueryResult<Option<i32>>; 2] =
                [D::sku_with_orders, D::sku_with_failures];
            for next_sku in next_sku {
                let mut after = i32::MIN;
                while let Some(sku) = next_sku(conn, after)? {
                    used.insert(sku);
                    after = sku;
                }
            }
            // Read last, because the row of a SKU is written before its first order.
            let sold: BTreeSet<i32> = conn.sku_rows()?.into_iter().map(|row| row.sku_no).collect();
            let repeated = repeated.into_iter();
            let mut found: Vec<Violation> = repeated
                .map(|(request, orders)| Violation::duplicate_request(request, orders))
                .collect();
            for sku in used.difference(&sold).take(usize::try_from(ANOMALIES_MAX).unwrap_or(0)) {
                let sku = SkuNo(*sku);
                let (num_orders, num_failures) = num_rows(conn, sku)?;
                found.push(Violation::unknown_sku(sku, num_orders, num_failures));
            }
            Ok(found)
        })
        .await
    }
}

/// The numbers of orders and of failures of a SKU.
fn num_rows<D: Database>(conn: &mut D, sku: SkuNo) -> QueryResult<(u64, u64)> {
    let num_orders = conn.with_audit_limit(|conn| conn.num_orders(sku.0))?;
    let num_failures = conn.with_audit_limit(|conn| conn.num_failures(sku.0))?;
    Ok((num_orders.unsigned_abs(), num_failures.unsigned_abs()))
}

/// Visits the orders of a SKU by buyer and slot; part of a snapshot.
fn each_order<D: Database>(
    conn: &mut D,
    sku: SkuNo,
    visit: &mut dyn FnMut(Order) -> bool,
) -> Result<(), Error> {
    let key = |row: &OrderRow| (row.buyer_id, row.slot);
    by_page((i64::MIN, i64::MIN), key, visit, |after| conn.order_page_after(sku.0, after))
}

/// Visits rows page by page along a key, until the visitor returns `false`: client and server hold
/// at most one page in memory, and each page is one statement with its own limit. All pages read
/// the snapshot of the transaction. Until it ends, MySQL keeps the old versions of changed rows,
/// and the log of SQLite cannot be checkpointed beyond the snapshot.
fn by_page<R, T: TryFrom<R, Error = Error>, K>(
    mut after: K,
    key: impl Fn(&R) -> K,
    visit: &mut dyn FnMut(T) -> bool,
    mut load: impl FnMut(K) -> QueryResult<Vec<R>>,
) -> Result<(), Error> {
    loop {
        let rows = load(after)?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = key(last);
        for row in rows {
            if !visit(row.try_into()?) {
                return Ok(());
            }
        }
    }
}

fn facts<D: Database>(conn: &mut D, sku: SkuNo) -> Result<Option<SkuFacts>, Error> {
    let Some((row, sale)) = conn.sku_and_sale(sku.0)? else { return Ok(None) };
    let available = i64::from(row.available);
    let changes = conn.stock_changes_after(sku.0, 0)?;
    let histories = SkuHistories::new(conn.terms_rows_of(sku.0)?, changes);
    let Sku { initial, policy, price, history, .. } = row.with_history(&histories)?;
    let by_reason = conn.with_audit_limit(|conn| conn.failed_units(sku.0))?;
    let given_back_units = by_reason
        .iter()
        // Every refusal with details gives units back.
        .filter(|(reason, _)| {
            refusal_without_details(reason).is_none_or(|refusal| gives_back(&refusal))
        })
        .map(|(_, units)| units.unwrap_or(0).unsigned_abs())
        .sum();
    Ok(Some(SkuFacts {
        sku,
        initial,
        available,
        policy,
        price,
        history,
        starts_at_ms: sale.starts_at_ms,
        ends_at_ms: sale.ends_at_ms,
        phases: PhaseHistory::new(convert_rows(conn.phase_rows(sale.sale_no)?)?),
        given_back_units,
    }))
}
