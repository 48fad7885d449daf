//! The archive and the purge of finished sales.
//!
//! Orders of a sealed sale are not locked for a change (`order_changes::lock`), so that the archive
//! stays complete while rows are deleted. A purge deletes by key range, in short transactions: a
//! crash leaves fewer rows, and the next purge deletes the rest.

use std::collections::HashMap;

use async_trait::async_trait;

use super::sales::commit_change;
use super::statements::{after, list, sorted};
use super::verbs::record_by;
use super::{Database, SqlLedger, TransactionEnd, WRITER, in_transaction};
use crate::db::archive_tables::{ArchiveScope, TableSpec, array, elements, spec};
use crate::db::rows::readable;
use crate::db::{Error, PurgeStep, RetentionStore};
use crate::domain::{
    ArchiveCursor, ArchivePage, ArchiveTable, ByOperator, OpenEnd, Phase, RetentionChange,
    RetentionState, Sale, SaleId, SkuNo, TableContents, VerbSubject,
};

/// Tables with rows of a SKU that belong to no order, with the rest of their keys.
const WITHOUT_ORDER: [(&str, &str); 4] = [
    ("failed_requests", "request_id"),
    ("quotas", "buyer_id"),
    ("bars", "buyer_id"),
    ("repairs", "repair_no"),
];

/// Numbers are summed in two parts: SQLite fails where the sum exceeds 64 bits.
const UPPER: i128 = 1_000_000_000;

#[async_trait]
impl<D: Database> RetentionStore for SqlLedger<D> {
    async fn set_retention(
        &self,
        sale: SaleId,
        change: RetentionChange,
        by: Option<ByOperator>,
    ) -> Result<Option<Sale>, Error> {
        let job =
            move |conn: &mut D, now_ms| set_retention(conn, &sale, &change, by.as_ref(), now_ms);
        self.write_at("changing a sale's retention", job).await
    }

    async fn contents(&self, sale: &Sale) -> Result<Vec<TableContents>, Error> {
        let (no, skus) = numbers(sale);
        self.read_all("counting a sale's rows", move |conn| {
            let of_table = |table: ArchiveTable| contents(conn, table, no, &skus);
            ArchiveTable::ALL.into_iter().map(of_table).collect()
        })
        .await
    }

    async fn open_ends(
        &self,
        sale: &Sale,
        readers: &'static [&'static str],
    ) -> Result<Vec<(OpenEnd, u64)>, Error> {
        let (_, skus) = numbers(sale);
        self.read_all("reading what a sale waits for", move |conn| {
            let mut read_to = i64::MAX;
            for reader in readers {
                read_to = read_to.min(conn.cursor(reader)?.unwrap_or(0));
            }
            let mut ends: Vec<(OpenEnd, u64)> = Vec::new();
            for (end, from) in open_rows(D::BY_PRIMARY_KEY, read_to) {
                let mut num = 0;
                for sku in &skus {
                    let query = format!("SELECT COUNT(*) FROM {from} AND o.sku_no = {sku}");
                    num += conn.with_audit_limit(|conn| conn.number(&query))?.unsigned_abs();
                }
                match ends.last_mut() {
                    Some((last, sum)) if *last == end => *sum += num,
                    _ if num > 0 => ends.push((end, num)),
                    _ => {}
                }
            }
            Ok(ends)
        })
        .await
    }

    async fn archive_page(
        &self,
        sale: &Sale,
        table: ArchiveTable,
        after: ArchiveCursor,
        limit: u32,
    ) -> Result<ArchivePage, Error> {
        let (no, skus) = numbers(sale);
        self.read("reading a page of an archive", move |conn| {
            let spec = spec(table);
            let scopes = if spec.scope == ArchiveScope::Sale { vec![no] } else { skus };
            for scope_no in scopes.into_iter().filter(|no| *no >= after.scope_no) {
                let is_first = scope_no == after.scope_no;
                let key: &[i64] = if is_first { &after.key } else { &[] };
                let page = page(conn, table, scope_no, key, limit)?;
                if page.next.is_some() {
                    return Ok(page);
                }
            }
            Ok(ArchivePage::default())
        })
        .await
    }

    async fn purge_step(&self, sku: SkuNo, limit: u32) -> Result<PurgeStep, Error> {
        self.write("deleting rows of a purged sale", move |conn, fence, clock| {
            let began = clock.now();
            let num_rows = in_transaction(conn, fence, |conn| purge(conn, sku.0, limit))?;
            Ok(PurgeStep { num_rows, took: clock.now().duration_since(began) })
        })
        .await
    }
}

/// The numbers of a sale and of its SKUs.
fn numbers(sale: &Sale) -> (i32, Vec<i32>) {
    (sale.no, sorted(sale.skus.iter().map(|sku| sku.no.0)))
}

/// `None`: unknown sale, not closed, or not allowed.
fn set_retention<D: Database>(
    conn: &mut D,
    id: &SaleId,
    change: &RetentionChange,
    by: Option<&ByOperator>,
    now_ms: i64,
) -> Result<TransactionEnd<Option<Sale>>, Error> {
    let Some(row) = conn.lock_sale(id.as_str())? else { return Ok(TransactionEnd::RollBack(None)) };
    let before = row.retention()?;
    let is_closed = row.phase()? == Phase::Closed;
    let Some(mut after) = change.after(&before).filter(|_| is_closed) else {
        return Ok(TransactionEnd::RollBack(None));
    };
    let is_new = after != before;
    if is_new {
        after.since_ms = (after.state != RetentionState::Kept).then_some(now_ms);
    }
    match change {
        // Every write holds this row with a shared lock: waits for those that have not seen the
        // seal.
        RetentionChange::Seal(_) => conn.raise_token(WRITER, "token").map(drop)?,
        RetentionChange::BeginPurge(archived) => {
            // Waits for the running writes; the next ones wait for this transaction.
            conn.raise_token(WRITER, "token")?;
            if !is_unchanged_since(conn, row.sale_no, archived)? {
                return Ok(TransactionEnd::RollBack(None));
            }
            // A copy of an intent that arrives from now on is refused: its order is not here any
            // more.
            conn.take_all_units(row.sale_no)?;
            record_by(conn, &VerbSubject::Sale(id.clone()), "purge", None, by, now_ms)?;
        }
        RetentionChange::Archive(_) if is_new => {
            record_by(conn, &VerbSubject::Sale(id.clone()), "archive", None, by, now_ms)?;
        }
        RetentionChange::Archive(_) | RetentionChange::Unseal | RetentionChange::EndPurge => {}
    }
    conn.set_retention(row.sale_no, &after)?;
    commit_change(conn, id.as_str())
}

/// Whether no order was placed and no failure recorded since the sale had these contents. Reads
/// only the tables that show it, because every writer waits: an order takes units of its SKU.
fn is_unchanged_since<D: Database>(
    conn: &mut D,
    sale: i32,
    archived: &[TableContents],
) -> Result<bool, Error> {
    let skus: Vec<i32> = conn.sku_rows_of(sale)?.iter().map(|row| row.sku_no).collect();
    for table in [ArchiveTable::Skus, ArchiveTable::FailedRequests] {
        if !archived.contains(&contents(conn, table, sale, &skus)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The rows, as a FROM clause with `o` as the order, that keep orders from being final.
fn open_rows(by_primary_key: &str, read_to: i64) -> [(OpenEnd, String); 4] {
    let unread = format!(
        "JOIN order_events e ON e.request_id = o.request_id \
         WHERE (e.feed_no IS NULL OR e.feed_no > {read_to})"
    );
    // Payments: started, refund_due, refund_failed, retaking.
    [
        (
            OpenEnd::Deadlines,
            format!("orders o {by_primary_key} WHERE (o.due_ms IS NOT NULL OR o.state = 5)"),
        ),
        (OpenEnd::Payments, format!("payments o {by_primary_key} WHERE o.state IN (0, 3, 4, 6)")),
        (OpenEnd::UnreadEvents, format!("orders o {by_primary_key} {unread}")),
        (OpenEnd::UnreadEvents, format!("failed_requests o {unread}")),
    ]
}

fn contents<D: Database>(
    conn: &mut D,
    table: ArchiveTable,
    sale: i32,
    skus: &[i32],
) -> Result<TableContents, Error> {
    let TableSpec { scope, sums, .. } = *spec(table);
    let parts = sums.iter().flat_map(|name| {
        let lower = format!("{name} % {UPPER}");
        // MySQL divides to a decimal.
        [format!("({name} - {lower}) / {UPPER}"), lower]
            .map(|part| format!("CAST(CAST(COALESCE(SUM({part}), 0) AS SIGNED) AS CHAR)"))
    });
    let totals = array(std::iter::once("CAST(COUNT(*) AS CHAR)".to_owned()).chain(parts));
    let name = table.name();
    let mut numbers = vec![0_i128; 2 * sums.len() + 1];
    let scopes = if scope == ArchiveScope::Sale { std::slice::from_ref(&sale) } else { skus };
    for no in scopes {
        let of_requests = |from: &str| {
            format!("{from} JOIN {name} e ON e.request_id = o.request_id WHERE o.sku_no = {no}")
        };
        let parts = match scope {
            ArchiveScope::Sale => vec![format!("{name} WHERE sale_no = {no}")],
            ArchiveScope::Sku => vec![format!("{name} WHERE sku_no = {no}")],
            ArchiveScope::Request => vec![
                of_requests(&format!("orders o {}", D::BY_PRIMARY_KEY)),
                of_requests("failed_requests o"),
            ],
        };
        for from in parts {
            let query = format!("SELECT {totals} FROM {from}");
            for text in conn.with_audit_limit(|conn| conn.texts(&query))? {
                for (sum, digits) in numbers.iter_mut().zip(elements(&text)?) {
                    let number = digits.as_deref().and_then(|digits| digits.parse::<i128>().ok());
                    *sum += readable(number, || name.to_owned(), "sum", &text)?;
                }
            }
        }
    }
    let mut numbers = numbers.into_iter();
    let rows = numbers.next().and_then(|rows| u64::try_from(rows).ok()).unwrap_or(0);
    let sums = sums.iter().zip(numbers.as_slice().as_chunks::<2>().0);
    let sums = sums
        .map(|(name, [upper, lower])| ((*name).to_owned(), (upper * UPPER + lower).to_string()));
    Ok(TableContents { table, rows, sums: sums.collect() })
}

/// The rows of one sale, or of one SKU, after a key; `next` is `None` if there are none.
fn page<D: Database>(
    conn: &mut D,
    table: ArchiveTable,
    scope_no: i32,
    key: &[i64],
    limit: u32,
) -> Result<ArchivePage, Error> {
    let spec = spec(table);
    if spec.scope == ArchiveScope::Request {
        return page_of_requests(conn, table, scope_no, key, limit);
    }
    let column = if spec.scope == ArchiveScope::Sale { "sale_no" } else { "sku_no" };
    let texts = conn.texts(&format!(
        "SELECT {} FROM {} WHERE {column} = {scope_no} AND ({}) ORDER BY {} LIMIT {limit}",
        spec.row(),
        table.name(),
        after(spec.key, key),
        spec.key.join(", "),
    ))?;
    let rows = texts.iter().map(|text| spec.object(text)).collect::<Result<Vec<_>, _>>()?;
    let last = rows.last().map(|row| spec.key_of(row)).transpose()?;
    Ok(ArchivePage { rows, next: last.map(|key| ArchiveCursor { scope_no, key }) })
}

/// The requests of a SKU after a key, each with its key: those of orders by buyer and slot, then
/// those of recorded failures by their number.
fn requests_after<D: Database>(
    conn: &mut D,
    sku: i32,
    key: &[i64],
    limit: u32,
) -> Result<Vec<(Vec<i64>, i64)>, Error> {
    let after = match *key {
        [request] => (None, request),
        [buyer, slot] => (Some((buyer, slot)), i64::MIN),
        _ => (Some((i64::MIN, i64::MIN)), i64::MIN),
    };
    if let (Some(order), _) = after {
        let orders = conn.order_ids(sku, order, limit)?.into_iter();
        let orders: Vec<_> =
            orders.map(|(buyer, slot, request)| (vec![buyer, slot], request)).collect();
        if !orders.is_empty() {
            return Ok(orders);
        }
    }
    let failures = conn.failure_ids(sku, after.1, limit)?;
    Ok(failures.into_iter().map(|request| (vec![request], request)).collect())
}

/// The rows of the requests after a key, in the order of the requests.
fn page_of_requests<D: Database>(
    conn: &mut D,
    table: ArchiveTable,
    sku: i32,
    key: &[i64],
    limit: u32,
) -> Result<ArchivePage, Error> {
    let requests = requests_after(conn, sku, key, limit)?;
    let Some((last, _)) = requests.last() else { return Ok(ArchivePage::default()) };
    let next = Some(ArchiveCursor { scope_no: sku, key: last.clone() });
    let places: HashMap<String, usize> =
        (0..).zip(&requests).map(|(place, (_, request))| (request.to_string(), place)).collect();
    let spec = spec(table);
    let texts = conn.texts(&format!(
        "SELECT {} FROM {} WHERE request_id IN ({}) ORDER BY {}",
        spec.row(),
        table.name(),
        list(requests.iter().map(|(_, request)| *request)),
        spec.key.join(", "),
    ))?;
    let mut rows = texts.iter().map(|text| spec.object(text)).collect::<Result<Vec<_>, _>>()?;
    rows.sort_by_key(|row| places.get(row.get("request_id")?.as_str()?).copied());
    Ok(ArchivePage { rows, next })
}

fn purge<D: Database>(conn: &mut D, sku: i32, limit: u32) -> Result<TransactionEnd<u64>, Error> {
    if !conn.is_purged(sku)? {
        return Ok(TransactionEnd::RollBack(0));
    }
    let orders = conn.order_ids(sku, (i64::MIN, i64::MIN), limit)?;
    if orders.is_empty() {
        for (table, column) in WITHOUT_ORDER {
            let deleted = conn.delete_some(table, column, sku, limit)?;
            if !deleted.is_empty() {
                if table == "failed_requests" {
                    conn.delete_by_request("order_events", &deleted)?;
                }
                return Ok(TransactionEnd::Commit(deleted.len() as u64));
            }
        }
        return Ok(TransactionEnd::RollBack(0));
    }
    let requests: Vec<i64> = orders.iter().map(|(.., request)| *request).collect();
    let mut buyers: Vec<_> = orders.iter().map(|(buyer, ..)| (sku, *buyer)).collect();
    buyers.dedup();
    conn.delete_by_request("order_events", &requests)?;
    conn.delete_by_request("payment_events", &requests)?;
    conn.delete_by_buyer("payments", &buyers, &requests)?;
    conn.delete_by_buyer("orders", &buyers, &requests)?;
    Ok(TransactionEnd::Commit(orders.len() as u64))
}
