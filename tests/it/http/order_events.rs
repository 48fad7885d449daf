//! The feed of order events on the internal listener.

use std::time::Duration;

use floodgate::config::{PaymentBackend, Tier};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Ledger, OrderWriter};
use floodgate::domain::Refusal;
use floodgate::runtime::clock::now_monotonic;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value as Json, json};

use super::payments::{call, cancel, order, pressed, reaches, started};
use super::{Case, cases, problem, settings, unlimited};
use crate::support::TestApp;
use crate::support::app::fresh_settings;
use crate::support::offers::{ANY, intent, open_offer};
use crate::support::wait::until;

/// A server with the demo provider, and an open sale of one SKU.
async fn selling() -> TestApp {
    let (mut settings, stores) = settings();
    settings.payment.provider = PaymentBackend::Demo;
    let app = TestApp::on((settings, stores));
    app.open_sale("sale", unlimited(), 50, 2).await;
    app
}

async fn ask(app: &TestApp, query: &str) -> Response {
    let url = format!("http://{}/admin/v1/order-events{query}", app.internal);
    app.client.get(url).send().await.unwrap()
}

async fn events(app: &TestApp, query: &str) -> Vec<Json> {
    let answer = ask(app, query).await;
    let status = answer.status();
    let content_type = answer.headers()["content-type"].clone();
    let text = answer.text().await.unwrap();
    assert_eq!(status, StatusCode::OK, "{query}: {text}");
    assert_eq!(content_type, "application/cloudevents-batch+json");
    serde_json::from_str(&text).unwrap()
}

/// The request's number, which its signed id begins with.
fn number(id: &str) -> &str {
    id.split('-').next().unwrap()
}

fn sequences(events: &[Json]) -> Vec<i64> {
    events.iter().map(|event| event["sequence"].as_str().unwrap().parse().unwrap()).collect()
}

/// Id and type of each event of a request.
fn of_request(events: &[Json], id: &str) -> Vec<(String, String)> {
    let text = |event: &Json, name: &str| event[name].as_str().unwrap().to_owned();
    let own = events.iter().filter(|event| event["subject"] == number(id));
    own.map(|event| (text(event, "id"), text(event, "type"))).collect()
}

fn expected(id: &str, kinds: &[&str]) -> Vec<(String, String)> {
    let event = |(version, kind)| (format!("{}.{version}", number(id)), format!("order.{kind}"));
    kinds.iter().enumerate().map(event).collect()
}

#[tokio::test]
async fn changes_of_orders_come_in_their_order_with_their_numbers() {
    let app = selling().await;
    assert_eq!(events(&app, "").await, [] as [Json; 0]);
    let paid = order(&app, 1).await;
    let payment = started(&app, &paid).await;
    pressed(&app, &payment, "pay").await;
    reaches(&app, &paid, "paid", "applied").await;
    let cancelled = order(&app, 2).await;
    assert_eq!(cancel(&app, &cancelled, 2).await.status(), StatusCode::OK);

    // A page ends at the last number given so far.
    assert_eq!(sequences(&events(&app, "?after=4&wait_ms=20000").await), [5]);
    let all = events(&app, "?limit=1000").await;
    assert_eq!(of_request(&all, &paid), expected(&paid, &["placed", "paying", "paid"]));
    assert_eq!(of_request(&all, &cancelled), expected(&cancelled, &["placed", "cancelled"]));
    assert_eq!(sequences(&all), [1, 2, 3, 4, 5]);
    for limit in [1, 2, 4] {
        let mut pages: Vec<Json> = Vec::new();
        loop {
            let after = pages.last().map_or("0", |event| event["sequence"].as_str().unwrap());
            let page = events(&app, &format!("?after={after}&limit={limit}")).await;
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            pages.extend(page);
        }
        assert_eq!(pages, all);
    }

    let of_payment = all.iter().find(|event| event["type"] == "order.paid").unwrap();
    assert_eq!(of_payment["specversion"], "1.0");
    assert_eq!(of_payment["datacontenttype"], "application/json");
    let source = of_payment["source"].as_str().unwrap();
    assert!(source.starts_with("/floodgate/") && source.ends_with("/sale"), "{source}");
    assert!(chrono::DateTime::parse_from_rfc3339(of_payment["time"].as_str().unwrap()).is_ok());
    let data = &of_payment["data"];
    assert_eq!(
        data["payment"],
        json!({
            "payment_id": payment["payment_id"], "provider": "demo", "state": "applied",
            "refunded_total": 0,
        })
    );
    assert_eq!(data["actor"], "provider");
    let names = ["request_id", "version", "sale_id", "sku_id", "buyer_id", "quantity", "amount"];
    let order = names.map(|name| data["order"][name].clone());
    let [id, version] = [json!(number(&paid)), json!(2)];
    assert_eq!(order, [id, version, json!("sale"), json!("sku"), json!("1"), json!(1), json!(100)]);
    assert_eq!(
        (&data["order"]["state"], &data["order"]["currency"]),
        (&json!("paid"), &json!("CNY"))
    );
    assert!(data["order"].get("due_at").is_none(), "{data}");
    let placed = &all.first().unwrap()["data"];
    assert_eq!((placed.get("payment"), &placed["actor"]), (None, &json!("buyer")));
    assert_eq!(placed["order"]["state"], "pending_payment");
    assert_eq!(placed["order"]["due_at"], placed["order"]["pay_by"]);
}

#[tokio::test]
async fn waiting_readers_get_the_next_event() {
    let app = selling().await;
    let mut placed = 1;
    // An answer by the end of the wait is never in time; on a slow machine the first may not be.
    until("an event before the end of the wait", async || {
        let id = order(&app, 1).await;
        let path = format!("?after={}&wait_ms=20000", placed - 1);
        assert_eq!(sequences(&events(&app, &path).await), [placed]);
        let begun = now_monotonic();
        let path = format!("?after={placed}&wait_ms=600");
        assert_eq!(events(&app, &path).await, [] as [Json; 0]);
        assert!(now_monotonic().duration_since(begun) >= Duration::from_millis(600));
        let begun = now_monotonic();
        let path = format!("?after={placed}&wait_ms=30000");
        let first = async {
            let page = events(&app, &path).await;
            (page, now_monotonic().duration_since(begun))
        };
        let changing = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            call(&app, Method::DELETE, &format!("/v1/orders/{id}"), 1).await.status()
        };
        let ((first, took), second, changed) = tokio::join!(first, events(&app, &path), changing);
        assert_eq!(changed, StatusCode::OK);
        assert!(took >= Duration::from_millis(500), "{took:?}");
        let cancelled = (format!("{}.1", number(&id)), "order.cancelled".to_owned());
        assert_eq!(of_request(&first, &id), [cancelled]);
        assert_eq!(first, second);
        placed += 2;
        (took < Duration::from_secs(25)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_page_that_cannot_be_asked_for_is_refused() {
    let app = selling().await;
    for query in [
        "?after=-1",
        "?after=x",
        "?limit=0",
        "?limit=1001",
        "?wait_ms=30001",
        "?wait_ms=-1",
        "?from=1",
    ] {
        problem(ask(&app, query).await, 400, "invalid-request").await;
    }
}

/// A restored ledger gives its next events numbers that such a reader takes for read.
#[tokio::test]
async fn a_reader_beyond_the_end_of_the_feed_is_refused() {
    let app = selling().await;
    let id = order(&app, 1).await;
    // The order may have no number yet.
    assert_eq!(events(&app, "?after=1").await, [] as [Json; 0]);
    for query in ["?after=2", "?after=2&wait_ms=30000", "?after=9223372036854775807&limit=1000"] {
        let problem = problem(ask(&app, query).await, 400, "invalid-request").await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("the feed ends at 1"), "{detail}");
    }
    let cancelled = call(&app, Method::DELETE, &format!("/v1/orders/{id}"), 1).await;
    assert_eq!(cancelled.status(), StatusCode::OK);
    assert_eq!(sequences(&events(&app, "?after=1&wait_ms=20000").await), [2]);
    assert_eq!(events(&app, "?after=2").await, [] as [Json; 0]);
}

#[tokio::test]
async fn an_accepted_request_that_failed_is_an_event() {
    let (settings, stores) = fresh_settings(Tier::Memory);
    let file = settings.ledger.url.strip_prefix("sqlite://").unwrap();
    let ledger = SqliteLedger::open(&OpenOptions::new(file)).unwrap();
    let sku = open_offer(&ledger, "sale", ANY, 5).await;
    let reasons = [
        (Refusal::QuotaExceeded { owned: 1, limit: 2 }, "ledger"),
        (Refusal::CancelledByBuyer, "buyer"),
        (Refusal::QueueTimeout, "timer"),
        (Refusal::Discarded, "operator"),
    ];
    let failures = (7..).zip(&reasons).map(|(number, (reason, _))| {
        intent(&sku, number, 40 + number, 3).failure(*reason, 1_800_000_000_123)
    });
    ledger.record_failures(failures.collect()).await.unwrap();
    ledger.close().await;

    let app = TestApp::on((settings, stores));
    let all = events(&app, "?wait_ms=20000").await;
    assert_eq!(sequences(&all), [1, 2, 3, 4]);
    for ((number, (reason, actor)), event) in (7..).zip(reasons).zip(&all) {
        let id = (&event["type"], &event["id"], &event["subject"]);
        let [id_text, subject] = [format!("{number}.0"), number.to_string()].map(Json::from);
        assert_eq!(id, (&json!("request.refused"), &id_text, &subject));
        assert_eq!(event["time"], "2027-01-15T08:00:00.123Z");
        let code = reason.code();
        let request = json!({
            "request_id": number.to_string(), "sale_id": "sale", "sku_id": "sku",
            "buyer_id": (40 + number).to_string(), "quantity": 3, "reason": code,
        });
        assert_eq!(event["data"], json!({"request": request, "actor": actor, "reason": code}));
    }
}

pub const CASES: &[Case] = &cases![
    changes_of_orders_come_in_their_order_with_their_numbers,
    waiting_readers_get_the_next_event,
    a_page_that_cannot_be_asked_for_is_refused,
    a_reader_beyond_the_end_of_the_feed_is_refused,
];
