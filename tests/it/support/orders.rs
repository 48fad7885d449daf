//! Reads the orders out of a ledger, beside a running server or after it.

use std::sync::Arc;

use floodgate::config::Settings;
use floodgate::db::{Ledger, Visit};
use floodgate::domain::{Failure, LetterFilter, LetterState, Order, OrderIntent, SkuNo};
use floodgate::scripts::intent::{INTENT_BYTES, unpack};
use floodgate::tier::open_ledger_for_reading;
use floodgate::tokens::RequestTokens;
use parking_lot::Mutex;

/// What became of all accepted requests of a ledger. Request ids are as buyers read them.
#[derive(Debug, Default)]
pub struct Orders {
    /// Of the orders.
    pub request_ids: Vec<String>,
    pub units: u64,
    /// Of the recorded failures.
    pub failed: Vec<String>,
    /// Of the dead letters.
    pub dead: Vec<String>,
}

/// Reads the end of every request of every sale.
pub async fn orders_in(settings: &Settings) -> Orders {
    let ledger = open_ledger_for_reading(settings).unwrap();
    let key = ledger.secret("request-ids").await.unwrap();
    let tokens = RequestTokens::new(&key, 0, 1);
    let mut orders = Orders::default();
    let dead = all_dead(ledger.as_ref()).await;
    for sale in ledger.sales().await.unwrap() {
        for sku in &sale.skus {
            for order in all_orders(ledger.as_ref(), sku.no).await {
                orders.units += u64::from(order.quantity);
                let id = tokens.show(order.request, &sale.id, order.sku, order.buyer);
                orders.request_ids.push(id);
            }
            for failure in all_failures(ledger.as_ref(), sku.no).await {
                let id = tokens.show(failure.request, &sale.id, failure.sku, failure.buyer);
                orders.failed.push(id);
            }
            for intent in dead.iter().filter(|intent| intent.sku == sku.no) {
                let id = tokens.show(intent.request, &sale.id, intent.sku, intent.buyer);
                orders.dead.push(id);
            }
        }
    }
    ledger.close().await;
    orders
}

async fn all_orders(ledger: &dyn Ledger, sku: SkuNo) -> Vec<Order> {
    let (visit, rows) = keep_all();
    ledger.scan_orders(sku, visit).await.unwrap();
    std::mem::take(&mut *rows.lock())
}

/// What can be read of the letters that end a request.
async fn all_dead(ledger: &dyn Ledger) -> Vec<OrderIntent> {
    let letters = ledger.dead_letters(LetterFilter::default(), u32::MAX).await.unwrap();
    let mut dead = Vec::new();
    for letter in letters.iter().filter(|letter| letter.state != LetterState::Replayed) {
        let whole = ledger.dead_letter(letter.no).await.unwrap().expect("it was listed");
        let intents = whole.body.chunks(INTENT_BYTES).filter_map(|bytes| unpack(bytes).ok());
        dead.extend(intents.filter(|intent| whole.requests.contains(&intent.request)));
    }
    dead
}

async fn all_failures(ledger: &dyn Ledger, sku: SkuNo) -> Vec<Failure> {
    let (visit, rows) = keep_all();
    ledger.scan_failures(sku, visit).await.unwrap();
    std::mem::take(&mut *rows.lock())
}

fn keep_all<T: Send + 'static>() -> (Visit<T>, Arc<Mutex<Vec<T>>>) {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let seen = rows.clone();
    let visit = Box::new(move |row| {
        seen.lock().push(row);
        true
    });
    (visit, rows)
}
