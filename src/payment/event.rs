//! The JSON of a webhook.
//!
//! ```json
//! {"id": "evt_1", "type": "paid", "data": {"payment_id": "p1", "attempt": "7-42-123-1",
//!  "amount": 49900, "currency": "CNY", "refunded_total": 0}}
//! ```
//!
//! | `type` | meaning |
//! |---|---|
//! | `paid` | `amount` was received |
//! | `failed` | no money was received, and none will be |
//! | `refunded` | of the received `amount`, `refunded_total` was paid back so far |
//! | others | no effect |
//!
//! `id` is read where no header names the event. `attempt` is what the provider was given at the
//! start; it may be missing. `amount` is required: the report of a refund may arrive first, and
//! then it alone says what was received.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::signature::is_event_id;
use super::{WebhookError, WebhookVerifier};
use crate::domain::{Money, PaymentEvent, PaymentReport};

/// Longest id of a payment.
const PAYMENT_ID_CHARS_MAX: usize = 128;

/// The body of a webhook.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EventBody {
    /// Of the event; read where no header has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `paid`, `failed` or `refunded`; others are ignored.
    pub r#type: String,
    pub data: EventData,
}

/// A payment, as its provider reports it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EventData {
    pub payment_id: String,
    /// As the provider was given it at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// The received money, also of `refunded`; of `failed` without a meaning.
    pub amount: i64,
    pub currency: String,
    /// Of `amount`, what was paid back so far; at least 1 in `refunded`, else 0 or left out.
    #[serde(default)]
    pub refunded_total: i64,
}

/// Verifies webhooks and reads their events.
pub struct WebhookReader {
    pub verifier: Arc<WebhookVerifier>,
    /// The name of the provider that sends them.
    provider: &'static str,
}

impl WebhookReader {
    pub fn new(verifier: Arc<WebhookVerifier>, provider: &'static str) -> Self {
        Self { verifier, provider }
    }

    /// Verifies the raw body as [`WebhookVerifier::verify`], then parses it; `None`: an event
    /// without a meaning here.
    pub fn read<'w>(
        &self,
        header: impl Fn(&str) -> Option<&'w str>,
        body: &[u8],
        now_ms: i64,
        may_be_old: bool,
    ) -> Result<Option<PaymentEvent>, WebhookError> {
        let id = self.verifier.verify(header, body, now_ms, may_be_old)?;
        self.parse(id, body).map_err(WebhookError::Body)
    }

    fn parse(&self, id: Option<&str>, body: &[u8]) -> Result<Option<PaymentEvent>, String> {
        /// The members that every event has.
        #[derive(Deserialize)]
        struct Head {
            r#type: String,
        }
        let unreadable = |error: serde_json::Error| format!("body: {error}");
        let head: Head = serde_json::from_slice(body).map_err(unreadable)?;
        if !["paid", "failed", "refunded"].contains(&head.r#type.as_str()) {
            return Ok(None);
        }
        let EventBody { id: named_id, data, .. } =
            serde_json::from_slice(body).map_err(unreadable)?;
        let event_id = id.map(str::to_owned).or(named_id);
        let event_id = event_id.filter(|id| is_event_id(id)).ok_or("id is missing or malformed")?;
        let is_named = (1..=PAYMENT_ID_CHARS_MAX).contains(&data.payment_id.len());
        if !is_named || !data.payment_id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("data.payment_id is malformed".to_owned());
        }
        if data.amount < 0 || data.refunded_total < 0 {
            return Err("data.amount and data.refunded_total cannot be negative".to_owned());
        }
        if head.r#type == "refunded" && data.refunded_total == 0 {
            // Without it the event would be that of a payment of which nothing was paid back.
            return Err("data.refunded_total is missing or 0".to_owned());
        }
        let money = Money { amount: data.amount, currency: data.currency.parse()? };
        let malformed = |_: String| "data.attempt is malformed";
        let attempt = data.attempt.map(|text| text.parse().map_err(malformed));
        let report = match head.r#type.as_str() {
            "failed" => PaymentReport::Closed,
            "refunded" => PaymentReport::Refunded { received: money, total: data.refunded_total },
            _ => PaymentReport::Succeeded(money),
        };
        Ok(Some(PaymentEvent {
            provider: self.provider.to_owned(),
            event_id,
            payment_id: data.payment_id,
            attempt: attempt.transpose()?,
            report,
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::config::Settings;
    use crate::domain::{AttemptKey, BuyerId, OrderKey, RequestId, SkuNo};

    fn reader() -> WebhookReader {
        let settings = Settings::with_ledger("sqlite://x.db").payment;
        WebhookReader::new(Arc::new(WebhookVerifier::new(&settings, &[0; 32])), "demo")
    }

    fn parse(body: &Json) -> Result<Option<PaymentEvent>, String> {
        reader().parse(Some("evt"), body.to_string().as_bytes())
    }

    fn paid() -> Json {
        json!({"type": "paid", "data": {
            "payment_id": "p1", "attempt": "7-42-123-1", "amount": 100, "currency": "CNY",
        }})
    }

    fn attempt() -> AttemptKey {
        let (buyer, request) = (BuyerId::new(42).unwrap(), RequestId::new(123).unwrap());
        AttemptKey { order: OrderKey { sku: SkuNo(7), buyer, request }, no: 1 }
    }

    #[test]
    fn an_event_names_its_attempt() {
        assert_eq!(parse(&paid()).unwrap().unwrap().attempt, Some(attempt()));
        assert_eq!(attempt().to_string(), "7-42-123-1");
    }

    #[test]
    fn the_id_is_in_a_header_or_in_the_body() {
        let mut body = paid();
        body["id"] = json!("in-body");
        let read = |id, body: &Json| reader().parse(id, body.to_string().as_bytes());
        assert_eq!(read(None, &body).unwrap().unwrap().event_id, "in-body");
        assert_eq!(read(Some("in-header"), &body).unwrap().unwrap().event_id, "in-header");
        assert!(read(None, &paid()).is_err());
        body["id"] = json!("a.b");
        assert!(read(None, &body).is_err());
    }
}
