//! Reads the orders out of a ledger file, beside a running server or after it.

use std::sync::Arc;

use floodgate::config::Settings;
use floodgate::db::Ledger;
use floodgate::domain::Order;
use floodgate::tier::open_ledger_for_reading;
use floodgate::tokens::RequestTokens;
use parking_lot::Mutex;

/// All orders of a ledger.
#[derive(Debug, Default)]
pub struct Orders {
    /// Request ids, as buyers read them.
    pub request_ids: Vec<String>,
    pub units: u64,
}

/// Reads every order of every sale.
pub async fn orders_in(settings: &Settings) -> Orders {
    let ledger = open_ledger_for_reading(settings).unwrap();
    let key = ledger.secret("request-ids").await.unwrap();
    let tokens = RequestTokens::new(&key, 0, 1);
    let mut orders = Orders::default();
    for sale in ledger.sales().await.unwrap() {
        for sku in &sale.skus {
            for order in all_orders(ledger.as_ref(), sku.no).await {
                orders.units += u64::from(order.quantity);
                let id = tokens.show(order.request, &sale.id, order.sku, order.buyer);
                orders.request_ids.push(id);
            }
        }
    }
    ledger.close().await;
    orders
}

async fn all_orders(ledger: &dyn Ledger, sku: floodgate::domain::SkuNo) -> Vec<Order> {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let seen = rows.clone();
    let visit = Box::new(move |order| {
        seen.lock().push(order);
        true
    });
    ledger.scan_orders(sku, visit).await.unwrap();
    std::mem::take(&mut *rows.lock())
}
