//! The HTTP interface over real sockets: a complete server, every row of the contract.

pub mod auth;
mod buy;
mod cancelling;
mod connections;
mod dead_letter_bulk;
mod dead_letters;
mod derived_ids;
mod documents;
mod events;
mod every_tier;
mod expired_tickets;
mod fuzz;
mod limits;
mod malformed;
mod openapi;
mod operator_payments;
mod operators;
mod order_events;
mod payments;
mod problems;
mod reading;
mod request_ids;
mod retakes;
mod sale_changes;
mod secret_reload;
mod series;
mod storefront;
mod tickets;
mod webhooks;

use floodgate::config::Settings;
use reqwest::{Response, StatusCode};
use serde_json::{Value as Json, json};

use crate::support::TestApp;
use crate::support::app::Stores;

/// A test by its name. `every_tier.rs` runs it again in each of the other tiers.
pub type Case = (&'static str, fn());

macro_rules! cases {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), $name as fn())),*] };
}
use cases;

/// Settings on fresh stores: tier `memory`, or the tier that `every_tier.rs` currently runs.
fn settings() -> (Settings, Stores) {
    every_tier::settings()
}

fn fresh() -> TestApp {
    TestApp::on(settings())
}

/// A server with one open sale, `sale`, of one SKU, `sku`.
async fn selling(policy: Json, stock: u32) -> TestApp {
    let app = fresh();
    app.open_sale("sale", policy, stock, 2).await;
    app
}

fn one_per_buyer() -> Json {
    json!({"kind": "one_per_buyer", "max_quantity": 2})
}

fn unlimited() -> Json {
    json!({"kind": "unlimited", "max_quantity": 3})
}

/// Requires a problem document of this code and status, and returns it.
async fn problem(response: Response, status: u16, code: &str) -> Json {
    let (got, headers, url) =
        (response.status(), response.headers().clone(), response.url().clone());
    let text = response.text().await.unwrap();
    assert_eq!(got, StatusCode::from_u16(status).unwrap(), "{url}: {text}");
    assert_eq!(headers["content-type"], "application/problem+json", "{url}: {text}");
    assert_eq!(headers["cache-control"], "no-store", "{url}");
    let body: Json = serde_json::from_str(&text).unwrap();
    assert_eq!(body["code"], code, "{url}: {body}");
    assert_eq!(body["status"], status, "{url}: {body}");
    assert_eq!(body["type"], format!("/problems/{code}"), "{url}");
    for text in ["title", "detail"] {
        assert!(body[text].as_str().is_some_and(|text| !text.is_empty()), "{url}: {body}");
    }
    let trace = body["trace_id"].as_str().unwrap();
    assert!(trace.len() == 32 && trace.bytes().all(|b| b.is_ascii_hexdigit()), "{url}: {trace}");
    body
}
