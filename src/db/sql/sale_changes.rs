//! Changes of a sale while it runs, each in one transaction.

use super::sales::load;
use super::tokens::INCREMENT;
use super::verbs::record_by;
use super::{Database, TransactionEnd};
use crate::db::Error;
use crate::db::rows::unstorable;
use crate::db::sale_rows::{StockChangeRow, TermsRow};
use crate::domain::{
    ByOperator, LoaderToken, Phase, Sale, SaleChange, SaleChanged, SaleId, Sku, SkuNo, StockChange,
    StockChangeOutcome, StockChangeRequest, TermsSince, VerbSubject,
};
use crate::runtime::clock::rfc3339;

/// Name of the token sequence of the loads.
const LOADER: &str = "loader";

/// Name of the token of a SKU's latest load.
fn latest_load(sku: SkuNo) -> String {
    format!("{LOADER}:{sku}")
}

pub(super) fn change_sale<D: Database>(
    conn: &mut D,
    id: &SaleId,
    change: &SaleChange,
    now_ms: i64,
) -> Result<TransactionEnd<SaleChanged>, Error> {
    // Serializes the changes of a sale: two must not get the same epoch.
    let Some(row) = conn.lock_sale(id.as_str())? else {
        return Ok(TransactionEnd::RollBack(SaleChanged::Unknown));
    };
    let before = load(conn, row)?;
    let changed = before.changed(change, now_ms);
    let SaleChanged::Changed(sale) = &changed else {
        return Ok(TransactionEnd::RollBack(changed));
    };
    if *sale == before {
        return Ok(TransactionEnd::RollBack(changed));
    }
    conn.change_sale(sale)?;
    if sale.epoch != before.epoch {
        // From here on the old epoch sells only in buckets that do not have the new one yet.
        conn.insert_phase(sale.no, sale.epoch.0, sale.phase.to_db(), now_ms)?;
    }
    for (old, new) in before.skus.iter().zip(&sale.skus) {
        let since = TermsSince { epoch: sale.epoch, since_ms: now_ms, terms: new.terms() };
        conn.change_sku(new.no.0, &new.title, &TermsRow::new(new.no, &since)?)?;
        for since in new.history.terms.iter().skip(old.history.terms.len()) {
            conn.insert_terms(&TermsRow::new(new.no, since)?)?;
        }
    }
    let (subject, detail) = (VerbSubject::Sale(id.clone()), differences(&before, sale));
    record_by(conn, &subject, "change", Some(detail), change.by.as_ref(), now_ms)?;
    Ok(TransactionEnd::Commit(changed))
}

/// What a change changed: each old and new value.
fn differences(old: &Sale, new: &Sale) -> String {
    let mut differences = Vec::new();
    let mut compare = |what: String, old: String, new: String| {
        if old != new {
            differences.push(format!("{what} {old} -> {new}"));
        }
    };
    compare("title".to_owned(), old.title.clone(), new.title.clone());
    compare("ends_at".to_owned(), rfc3339(old.ends_at_ms), rfc3339(new.ends_at_ms));
    let values = |sku: &Sku| {
        let quota = sku.policy.quota().map_or_else(|| "none".to_owned(), |it| it.to_string());
        [
            ("title", sku.title.clone()),
            ("price", sku.price.to_string()),
            ("limit", quota),
            ("max_quantity", sku.policy.max_quantity().to_string()),
            ("payment_window_s", sku.payment_window_s.to_string()),
        ]
    };
    for (old, new) in old.skus.iter().zip(&new.skus) {
        let id = &new.id;
        for ((what, old), (_, new)) in values(old).into_iter().zip(values(new)) {
            compare(format!("{what} of {id}"), old, new);
        }
    }
    differences.join("; ")
}

/// Takes the token of a load and writes it to the SKU: units that the buckets gave up before this
/// load cannot leave the ledger any more.
pub(super) fn begin_load<D: Database>(
    conn: &mut D,
    sku: SkuNo,
) -> Result<TransactionEnd<LoaderToken>, Error> {
    let token = conn.raise_token(LOADER, INCREMENT)?;
    conn.lock_sku(sku.0)?;
    if conn.is_purged(sku.0)? {
        return unstorable("a load of the purged sku", sku);
    }
    conn.raise_token(&latest_load(sku), &token.to_string())?;
    Ok(TransactionEnd::Commit(LoaderToken(token)))
}

pub(super) fn change_stock<D: Database>(
    conn: &mut D,
    request: &StockChangeRequest,
) -> Result<TransactionEnd<StockChangeOutcome>, Error> {
    // Serializes the changes of a stock, the loads that fence them, and the closing of the sale.
    let Some((row, sale)) = conn.lock_sku_and_sale(request.sku.0)? else {
        return unstorable("a change of sku", request.sku);
    };
    if let Some(recorded) = conn.stock_change(request.sku.0, &request.id)? {
        return Ok(TransactionEnd::RollBack(request.repeats(recorded.into())));
    }
    // A purged sale is closed, too: units in it would sell a copy of a deleted order again.
    if sale.phase()? == Phase::Closed {
        return Ok(TransactionEnd::RollBack(StockChangeOutcome::Closed));
    }
    let loaded = conn.token(&latest_load(request.sku))?.unwrap_or(0);
    if request.load.is_some_and(|load| load.0 != loaded) {
        return Ok(TransactionEnd::RollBack(StockChangeOutcome::Reloaded));
    }
    let Some(units) = request.units(row.initial_stock, row.available) else {
        return Ok(TransactionEnd::RollBack(StockChangeOutcome::TooMany));
    };
    let last = conn.stock_changes_after(request.sku.0, 0)?.pop();
    let (last_no, total) = last.map_or((0, 0), |last| (last.change_no, last.total));
    let change = StockChangeRow {
        change_id: request.id.clone(),
        sku_no: request.sku.0,
        change_no: last_no + 1,
        wanted: request.wanted,
        units,
        total: total + units,
        reason: request.reason.clone(),
        at_ms: request.at_ms,
    };
    conn.add_stock(&change)?;
    conn.insert_stock_change(&change)?;
    if let Some(operator) = &request.operator {
        let by = ByOperator { name: operator.clone(), reason: request.reason.clone() };
        let subject = VerbSubject::Sale(sale.id()?);
        let detail = format!("{units:+} units of {}, change {}", row.sku_id, request.id);
        record_by(conn, &subject, "stock", Some(detail), Some(&by), request.at_ms)?;
    }
    Ok(TransactionEnd::Commit(StockChangeOutcome::Recorded(StockChange::from(change))))
}
