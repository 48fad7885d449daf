//! Webhooks that a test signs in the place of a payment provider: no kill of a process loses what
//! the provider reports.

use std::net::SocketAddr;
use std::time::Duration;

use floodgate::config::{ConfigSources, Settings};
use floodgate::payment::WebhookVerifier;
use floodgate::runtime::clock::wall_ms;
use reqwest::{Client, StatusCode};
use serde_json::{Value as Json, json};

/// The settings of the processes that receive these webhooks, with short times to pay.
pub const SETTINGS: [(&str, &str); 5] = [
    ("payment.provider", "demo"),
    ("payment.webhook_secrets", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ("payment.paying_window_s", "1"),
    ("payment.extension_max_s", "1"),
    ("payment.every_ms", "100"),
];

/// The price of every order of these tests.
const PRICE: i64 = 100;
/// Tries of one webhook; then the sender gives up, as providers do.
const TRIES_MAX: u32 = 60;
const RETRY_WAIT: Duration = Duration::from_millis(50);

/// Sends webhooks.
pub struct WebhookSender {
    client: Client,
    signer: WebhookVerifier,
}

impl WebhookSender {
    pub fn new(client: Client) -> Self {
        let set = SETTINGS.map(|(key, value)| format!("{key}={value}")).to_vec();
        let settings = Settings::load(&ConfigSources { set, ..ConfigSources::default() }).unwrap();
        Self { client, signer: WebhookVerifier::new(&settings.payment, &[]) }
    }

    /// Sends `paid`, `failed` or `refunded` until it is answered with 200, and returns its outcome.
    pub async fn report(&self, to: SocketAddr, payment_id: &str, kind: &str) -> Option<String> {
        for _ in 0..TRIES_MAX {
            if let Some(outcome) = self.try_report(to, payment_id, kind).await {
                assert_ne!(outcome, "unmatched", "{payment_id} was started");
                return Some(outcome);
            }
            tokio::time::sleep(RETRY_WAIT).await;
        }
        None
    }

    async fn try_report(&self, to: SocketAddr, payment_id: &str, kind: &str) -> Option<String> {
        let refunded_total = if kind == "refunded" { PRICE } else { 0 };
        let data = json!({
            "payment_id": payment_id, "amount": PRICE, "currency": "CNY",
            "refunded_total": refunded_total,
        });
        let body = json!({"type": kind, "data": data}).to_string();
        let mut call = self.client.post(format!("http://{to}/v1/payments/events"));
        let event_id = format!("{kind}-{payment_id}");
        for (name, value) in self.signer.sign(&event_id, body.as_bytes(), wall_ms()) {
            call = call.header(name, value);
        }
        let answer = call.body(body).send().await.ok()?;
        let is_recorded = answer.status() == StatusCode::OK;
        let answer: Json = answer.json().await.ok()?;
        is_recorded.then(|| answer["outcome"].as_str().unwrap().to_owned())
    }
}
