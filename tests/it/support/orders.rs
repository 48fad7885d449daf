//! Reads the outcome of every request from a ledger, during or after a server's run.

use std::sync::Arc;

use floodgate::config::Settings;
use floodgate::db::{Ledger, Visitor};
use floodgate::domain::{BuyerId, DeadLetterFilter, Failure, Order, OrderIntent, SkuNo};
use floodgate::http::buyers::request_ids::RequestIds;
use floodgate::messages::envelope::intents_in;
use floodgate::tier::open_ledger_for_reading;
use parking_lot::Mutex;
use secrecy::ExposeSecret;

use super::dead_letters::read_dead_letters;

pub use floodgate::services::audit::answers::{Bought, Record, RecordedAs};

/// The outcomes of all accepted requests of a ledger. Request ids are in the form buyers receive.
#[derive(Debug, Default)]
pub struct Orders {
    /// Every outcome of every request.
    pub records: Vec<Record>,
    /// Request ids of the orders.
    pub request_ids: Vec<String>,
    /// Units of the orders.
    pub units: u64,
    /// Request ids of the recorded failures.
    pub failed: Vec<String>,
    /// Request ids of the dead letters.
    pub dead: Vec<String>,
}

impl Orders {
    pub fn add(&mut self, record: Record) {
        let ids = match record.outcome {
            RecordedAs::Order(order) => {
                self.units += u64::from(order.quantity);
                &mut self.request_ids
            }
            RecordedAs::Failure => &mut self.failed,
            RecordedAs::DeadLetter => &mut self.dead,
        };
        ids.push(record.request_id.clone());
        self.records.push(record);
    }
}

/// Reads the outcomes of every request of every sale.
pub async fn orders_in(settings: &Settings) -> Orders {
    let ledger = open_ledger_for_reading(settings).unwrap();
    let key = match &settings.auth.signing_key {
        Some(key) => key.expose_secret().as_bytes().to_vec(),
        None => ledger.secret("request-ids").await.unwrap(),
    };
    let request_ids = RequestIds::new(&key, 0, 1);
    let mut orders = Orders::default();
    let dead = all_dead(ledger.as_ref()).await;
    for sale in ledger.sales().await.unwrap() {
        for sku in &sale.skus {
            let mut add = |request, buyer: BuyerId, outcome| {
                let request_id = request_ids.sign(request, &sale.id, sku.no, buyer);
                let (sale, sku) = (sale.id.to_string(), sku.id.to_string());
                orders.add(Record { sale, sku, buyer: buyer.get(), request_id, outcome });
            };
            for order in all_orders(ledger.as_ref(), sku.no).await {
                let (quantity, placed_at_ms) = (order.quantity, order.placed_at_ms);
                let outcome = RecordedAs::Order(Bought { quantity, placed_at_ms });
                add(order.request, order.buyer, outcome);
            }
            for failure in all_failures(ledger.as_ref(), sku.no).await {
                add(failure.request, failure.buyer, RecordedAs::Failure);
            }
            for intent in dead.iter().filter(|intent| intent.sku == sku.no) {
                add(intent.request, intent.buyer, RecordedAs::DeadLetter);
            }
        }
    }
    ledger.close().await;
    orders
}

async fn all_orders(ledger: &dyn Ledger, sku: SkuNo) -> Vec<Order> {
    let (visit, rows) = collector();
    ledger.scan_orders(sku, visit).await.unwrap();
    std::mem::take(&mut *rows.lock())
}

/// The decodable intents of the dead letters that end their requests.
async fn all_dead(ledger: &dyn Ledger) -> Vec<OrderIntent> {
    let dead_letters = read_dead_letters(ledger, DeadLetterFilter::default(), u32::MAX).await;
    let mut dead = Vec::new();
    for dead_letter in dead_letters.iter().filter(|dead_letter| dead_letter.state.holds_requests())
    {
        let content = ledger.dead_letter(dead_letter.no).await.unwrap().expect("a listed one");
        let intents = intents_in(&content.body).into_iter();
        dead.extend(intents.filter(|intent| content.requests.contains(&intent.request)));
    }
    dead
}

async fn all_failures(ledger: &dyn Ledger, sku: SkuNo) -> Vec<Failure> {
    let (visit, rows) = collector();
    ledger.scan_failures(sku, visit).await.unwrap();
    std::mem::take(&mut *rows.lock())
}

/// A visitor, and the rows that it collects.
fn collector<T: Send + 'static>() -> (Visitor<T>, Arc<Mutex<Vec<T>>>) {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let visited = rows.clone();
    let visit = Box::new(move |row| {
        visited.lock().push(row);
        true
    });
    (visit, rows)
}
