//! Webhooks of the payment provider: forged, repeated, late and malformed.

use diesel::connection::SimpleConnection;
use floodgate::config::{PaymentBackend, Tier, WebhookSecret};
use floodgate::payment::WebhookVerifier;
use floodgate::runtime::clock::wall_ms;
use reqwest::{Method, Response};
use serde_json::{Value as Json, json};

use super::dead_letters::{connect, ids};
use super::{one_per_buyer, problem};
use crate::support::TestApp;
use crate::support::app::fresh_settings;
use crate::support::gate::metric;
use crate::support::process::Server;
use crate::support::wait::until;

/// A server whose webhooks are signed with a known secret, and a payment that is open there.
struct Webhooks {
    app: TestApp,
    signer: WebhookVerifier,
    request_id: String,
    payment_id: String,
}

impl Webhooks {
    async fn start() -> Self {
        let (mut settings, stores) = fresh_settings(Tier::Memory);
        settings.payment.provider = PaymentBackend::Demo;
        settings.maintenance.rescue_every_ms = 10;
        settings.payment.webhook_keys = vec![WebhookSecret::of_key(&[7; 32])];
        let signer = WebhookVerifier::new(&settings.payment, &[]);
        let app = TestApp::on((settings, stores));
        app.open_sale("sale", one_per_buyer(), 5, 2).await;
        let bought = app.bought("sale", 1, json!({"sku_id": "sku", "quantity": 1})).await;
        let request_id = bought["request_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/orders/{request_id}/payment");
        let call = app.client.request(Method::POST, app.url(&path)).header("x-buyer-id", 1);
        let payment: Json = call.send().await.unwrap().json().await.unwrap();
        let payment_id = payment["payment_id"].as_str().unwrap().to_owned();
        Self { app, signer, request_id, payment_id }
    }

    fn paid(&self) -> Json {
        let data = json!({"payment_id": self.payment_id, "amount": 100, "currency": "CNY"});
        json!({"type": "paid", "data": data})
    }

    async fn send(&self, headers: &[(&'static str, String)], body: &[u8]) -> Response {
        let mut call = self.app.client.post(self.app.url("/v1/payments/events"));
        for (name, value) in headers {
            call = call.header(*name, value);
        }
        call.body(body.to_vec()).send().await.unwrap()
    }

    /// Sends a signed webhook.
    async fn signed(&self, id: &str, body: &[u8]) -> Response {
        self.send(&self.signer.sign(id, body, wall_ms()), body).await
    }

    async fn outcome(&self, id: &str, body: &Json) -> String {
        let answer = self.signed(id, body.to_string().as_bytes()).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let view: Json = answer.json().await.unwrap();
        view["outcome"].as_str().unwrap().to_owned()
    }

    /// The state of the order, which its request has, too, without a wait.
    async fn order_state(&self) -> Json {
        let (_, request) = self.app.get(&format!("/v1/requests/{}", self.request_id), 1).await;
        let (_, page) = self.app.get("/v1/orders", 1).await;
        assert_eq!(page["orders"][0]["request_id"], json!(self.request_id));
        assert_eq!(page["orders"][0]["state"], request["order"]["state"]);
        request["order"]["state"].clone()
    }
}

#[tokio::test]
async fn an_event_has_its_effect_once() {
    let webhooks = Webhooks::start().await;
    let paid = webhooks.paid();
    assert_eq!(webhooks.outcome("evt-1", &paid).await, "applied");
    assert_eq!(webhooks.order_state().await, "paid", "committed before the answer");
    assert_eq!(webhooks.outcome("evt-1", &paid).await, "known");
    assert_eq!(webhooks.outcome("evt-2", &paid).await, "unchanged");
    let mut partly = paid.clone();
    (partly["type"], partly["data"]["refunded_total"]) = (json!("refunded"), json!(40));
    assert_eq!(webhooks.outcome("evt-3", &partly).await, "partly_refunded");
    assert_eq!(webhooks.order_state().await, "paid");
    partly["data"]["refunded_total"] = json!(100);
    assert_eq!(webhooks.outcome("evt-4", &partly).await, "refunded");
    assert_eq!(webhooks.order_state().await, "refunded");
    webhooks.app.assert_audit_holds().await;
}

#[tokio::test]
async fn a_refund_that_does_not_say_how_much_was_paid_back_pays_nothing() {
    let webhooks = Webhooks::start().await;
    let mut refund = webhooks.paid();
    refund["type"] = json!("refunded");
    let mut of_nothing = refund.clone();
    of_nothing["data"]["refunded_total"] = json!(0);
    let refunds = [refund, of_nothing].map(|refund| refund.to_string().into_bytes());
    for (id, state) in [("evt-1", "paying"), ("evt-3", "paid")] {
        for refund in &refunds {
            assert_eq!(webhooks.signed(id, refund).await.status(), 400, "{state}");
        }
        assert_eq!(webhooks.order_state().await, state);
        let outcome = webhooks.outcome("evt-2", &webhooks.paid()).await;
        assert!(["applied", "known"].contains(&outcome.as_str()), "{outcome}");
    }
    webhooks.app.assert_audit_holds().await;
}

#[tokio::test]
async fn events_without_a_payment_are_stored_and_other_types_ignored() {
    let webhooks = Webhooks::start().await;
    let mut unknown = webhooks.paid();
    unknown["data"]["payment_id"] = json!("never-started");
    assert_eq!(webhooks.outcome("evt-1", &unknown).await, "unmatched");
    assert_eq!(webhooks.outcome("evt-1", &unknown).await, "known");
    let other = json!({"type": "customer.created", "data": [1]});
    assert_eq!(webhooks.outcome("evt-2", &other).await, "ignored");
    assert_eq!(webhooks.order_state().await, "paying");
}

#[tokio::test]
async fn forged_and_late_webhooks_are_not_authenticated() {
    let webhooks = Webhooks::start().await;
    let body = webhooks.paid().to_string().into_bytes();
    let now_ms = wall_ms();
    let mut settings = webhooks.app.settings.payment.clone();
    settings.webhook_keys = vec![WebhookSecret::of_key(&[8; 32])];
    let other_key = WebhookVerifier::new(&settings, &[]);
    let valid = webhooks.signer.sign("evt-1", &body, now_ms);
    let (mut renamed, mut dated) = (valid.clone(), valid.clone());
    renamed[0].1 = "evt-2".to_owned();
    dated[1].1 = (now_ms / 1000 + 1).to_string();
    let changed = webhooks.paid().to_string().replace("100", "101").into_bytes();
    let rewritten = webhooks.paid().to_string().replace(':', ": ").into_bytes();
    let (forged, late) = ("no signature is of a secret", "too long ago, or in the future");
    for (headers, body, expected) in [
        (other_key.sign("evt-1", &body, now_ms), &body, forged),
        (webhooks.signer.sign("evt-1", &body, now_ms - 310_000), &body, late),
        (webhooks.signer.sign("evt-1", &body, now_ms + 320_000), &body, late),
        (other_key.sign("evt-1", &body, now_ms - 310_000), &body, late),
        (renamed, &body, forged),
        (dated, &body, forged),
        (valid.clone(), &changed, forged),
        (valid.clone(), &rewritten, forged),
    ] {
        let answer = webhooks.send(&headers, body).await;
        assert_eq!(answer.headers()["www-authenticate"], "Webhook-Signature");
        let refused = problem(answer, 401, "unauthenticated").await;
        assert!(refused["detail"].as_str().unwrap().contains(expected), "{refused}");
    }
    assert_eq!(webhooks.order_state().await, "paying");
    assert_eq!(webhooks.send(&valid, &body).await.status(), 200);
}

#[tokio::test]
async fn malformed_webhooks_are_named() {
    let webhooks = Webhooks::start().await;
    let body = webhooks.paid().to_string().into_bytes();
    let valid = webhooks.signer.sign("evt-1", &body, wall_ms());
    let refused = async |headers: &[(&'static str, String)], named: &str, status, code| {
        let refused = problem(webhooks.send(headers, &body).await, status, code).await;
        assert!(refused["detail"].as_str().unwrap().contains(named), "{refused}");
    };
    refused(&[], valid[0].0, 401, "unauthenticated").await;
    for missing in 0..valid.len() {
        let mut headers = valid.clone();
        let (name, _) = headers.remove(missing);
        refused(&headers, name, 401, "unauthenticated").await;
    }
    let doubled: Vec<_> = valid.iter().chain(&valid[..1]).cloned().collect();
    refused(&doubled, valid[0].0, 400, "invalid-request").await;
    let long = "m".repeat(129);
    for id in ["evt.1", "", &long] {
        let headers = webhooks.signer.sign(id, &body, wall_ms());
        refused(&headers, "webhook-id", 400, "invalid-request").await;
    }
    for time in ["yesterday", &format!("+{}", valid[1].1), "-1"] {
        let mut headers = valid.clone();
        headers[1].1 = time.to_owned();
        refused(&headers, "webhook-timestamp", 400, "invalid-request").await;
    }
    for body in [&b"paid"[..], b"{\"type\": \"paid\"}", b"{\"data\": {}}", b"[]", b""] {
        problem(webhooks.signed("evt-1", body).await, 400, "invalid-request").await;
    }
    for (name, value) in [
        ("payment_id", json!("")),
        ("payment_id", json!("é")),
        ("payment_id", json!("p".repeat(129))),
        ("attempt", json!("7-42-123")),
        ("attempt", json!("7-42-0123-1")),
        ("amount", json!(-1)),
        ("amount", json!("100")),
        ("refunded_total", json!(-1)),
    ] {
        let mut changed = webhooks.paid();
        changed["data"][name] = value;
        let answer = webhooks.signed("evt-1", changed.to_string().as_bytes()).await;
        problem(answer, 400, "invalid-request").await;
    }
    for (len, status, code) in [(65_537, 413, "body-too-large"), (65_536, 400, "invalid-request")] {
        let blank = vec![b' '; len];
        problem(webhooks.signed("evt-1", &blank).await, status, code).await;
    }
    assert_eq!(webhooks.order_state().await, "paying");
}

#[tokio::test]
async fn a_signed_webhook_that_cannot_be_read_is_one_dead_letter() {
    let webhooks = Webhooks::start().await;
    let mut unreadable = webhooks.paid();
    unreadable["data"]["currency"] = json!("cny");
    let body = unreadable.to_string().into_bytes();
    for _ in 0..2 {
        let answer = webhooks.signed("evt-1", &body).await;
        problem(answer, 400, "invalid-request").await;
    }
    let page = webhooks.app.admin("/dead-letters", None).await;
    let [found] = page["dead_letters"].as_array().unwrap().as_slice() else { panic!("{page}") };
    let facts = ["origin", "state", "message_id"].map(|name| found[name].clone());
    assert_eq!(facts, [json!("consumer"), json!("open"), json!("evt-1")]);
    assert!(found["reason"].as_str().unwrap().contains("currency"), "{found}");
    let internal = webhooks.app.internal;
    assert_eq!(metric(internal, "floodgate_dead_letters_stored", "consumer").await, 1);
    until("the gauge", async || {
        (metric(internal, "floodgate_dead_letters{", "open").await == 1).then_some(())
    })
    .await;
    // Anyone can send one without a valid signature.
    webhooks.send(&[], &body).await;
    let page = webhooks.app.admin("/dead-letters", None).await;
    assert_eq!(page["dead_letters"].as_array().unwrap().len(), 1);
    webhooks.app.assert_audit_holds().await;
}

/// A provider repeats what is answered with 503, and nothing that is answered with 400.
#[tokio::test]
async fn a_signed_webhook_that_can_be_neither_read_nor_stored_is_to_be_repeated() {
    let webhooks = Webhooks::start().await;
    let mut ledger = connect(&webhooks.app);
    ledger
        .batch_execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON dead_letters \
             BEGIN SELECT RAISE(ABORT, 'on purpose'); END",
        )
        .unwrap();
    let refused = webhooks.signed("evt-1", b"paid").await;
    assert!(refused.status().is_server_error(), "{refused:?}");
    ledger.batch_execute("DROP TRIGGER refuse").unwrap();
    problem(webhooks.signed("evt-1", b"paid").await, 400, "invalid-request").await;
    let page = webhooks.app.admin("/dead-letters", None).await;
    assert_eq!(ids(&page).len(), 1, "{page}");
}

/// Strangers choose neither what is logged nor how much: their webhooks are counted.
#[tokio::test]
async fn forged_webhooks_are_counted_and_not_logged() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [("FLOODGATE__PAYMENT__PROVIDER", "demo")];
    let server = Server::start(folder.path(), &keys);
    let client = reqwest::Client::new();
    for _ in 0..20 {
        let call = client.post(format!("http://{}/v1/payments/events", server.public));
        let call = call.header("webhook-id", "chosen-by-a-stranger");
        let call = call.header("webhook-timestamp", (wall_ms() / 1000).to_string());
        let answer = call.header("webhook-signature", "v1,AAAA").body("{}").send().await.unwrap();
        assert_eq!(answer.status(), 401);
    }
    assert_eq!(metric(server.internal, "floodgate_webhooks_rejected", "signature").await, 20);
    let log = server.log();
    assert!(!log.contains("chosen-by-a-stranger") && !log.contains("webhook:"), "{log}");
}
