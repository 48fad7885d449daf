//! Server-sent events.

use reqwest::StatusCode;
use serde_json::{Value as Json, json};

use super::{Case, cases, problem, selling, unlimited};

#[tokio::test]
async fn a_stream_sends_the_end_state_and_closes() {
    let app = selling(unlimited(), 5).await;
    let id = app.request_id("sale", 1).await;
    let url = app.url(&format!("/v1/requests/{id}/events"));
    let early = app.client.get(&url).header("x-buyer-id", "1").send().await.unwrap();
    problem(early, 404, "not-found").await;
    let head = async || app.client.head(&url).header("x-buyer-id", "1").send().await.unwrap();
    assert_eq!(head().await.status(), 404);

    let purchase = json!({"sku_id": "sku", "quantity": 1, "request_id": id});
    app.bought("sale", 1, purchase).await;
    let stream = app.client.get(&url).header("x-buyer-id", "1").send().await.unwrap();
    let stream_type = stream.headers()["content-type"].clone();
    assert_eq!(stream_type, "text/event-stream");
    assert_eq!(stream.headers()["cache-control"], "no-store");
    assert_eq!(stream.headers()["x-accel-buffering"], "no");
    // The read returns because the server closes the stream.
    let text = stream.text().await.unwrap();
    let data = text.strip_prefix("event: state\nid: success\ndata: ").unwrap();
    let data = data.strip_suffix("\n\n").unwrap();
    let body: Json = serde_json::from_str(data).unwrap();
    assert_eq!((&body["state"], &body["request_id"]), (&json!("success"), &json!(id)));

    let head = head().await;
    assert_eq!((head.status(), &head.headers()["content-type"]), (StatusCode::OK, &stream_type));

    // A client that reconnects after the end state is told to stop.
    for (last_id, status) in [("success", 204), ("failed", 204), ("queued", 200), ("x", 200)] {
        let again = app.client.get(&url).header("x-buyer-id", "1");
        let again = again.header("last-event-id", last_id).send().await.unwrap();
        assert_eq!(again.status(), status, "{last_id}");
    }

    let other_buyer = app.client.get(&url).header("x-buyer-id", "2").send().await.unwrap();
    problem(other_buyer, 404, "not-found").await;
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![a_stream_sends_the_end_state_and_closes,];
