//! The admin API of a server in another process.

use std::net::SocketAddr;

use floodgate::services::audit::EVIDENCE;
use reqwest::Response;
use serde_json::{Value as Json, json};

use super::app::sale_body;
use super::wait::until;

/// Creates and opens a sale of one SKU, `sku`.
pub async fn open_sale(internal: SocketAddr, sale: &str, policy: Json, stock: u32, buckets: u16) {
    call(internal, "/sales", sale_body(sale, policy, stock, buckets)).await;
    call(internal, &format!("/sales/{sale}/open"), json!({})).await;
}

/// Waits until the process with this public listener has read that the sale `sale` is open.
pub async fn until_open(public: SocketAddr) {
    until("the sale to be open at this server", async || {
        let call = reqwest::get(format!("http://{public}/v1/sales/sale"));
        let sale: Json = call.await.ok()?.json().await.ok()?;
        (sale["phase"] == "open").then_some(())
    })
    .await;
}

/// Posts to the admin API until the call succeeds. `busy` is retried; any other error fails the
/// test.
pub async fn call(internal: SocketAddr, path: &str, body: Json) -> Json {
    let client = reqwest::Client::new();
    let url = format!("http://{internal}/admin/v1{path}");
    until(path, || async {
        let response = client.post(&url).json(&body).send().await.unwrap();
        succeeded(path, response).await
    })
    .await
}

/// The document of a successful response; `None` for `busy`. Any other error fails the test.
pub async fn succeeded(path: &str, response: Response) -> Option<Json> {
    let status = response.status();
    let json: Json = response.json().await.unwrap();
    assert!(status.is_success() || json["code"] == "busy", "{path}: {status} {json}");
    status.is_success().then_some(json)
}

/// How often actors of this kind panicked.
pub async fn panics(internal: SocketAddr, kind: &str) -> Option<u64> {
    let url = format!("http://{internal}/admin/v1/actors");
    let report: Json = reqwest::get(url).await.ok()?.json().await.ok()?;
    let actors = report["actors"].as_array()?.iter().filter(|actor| actor["kind"] == kind);
    actors.map(|actor| actor["panics"].as_u64()).sum()
}

/// Asserts that the audit evaluated every invariant and found no violation.
pub async fn assert_audit_holds(internal: SocketAddr) {
    assert_all_hold(&call(internal, "/audit", json!({})).await);
}

/// Asserts that this report is of every invariant, that of the money included, and that all hold.
pub fn assert_all_hold(report: &Json) {
    assert!(report["holds"] == true && report["could_tell"] == true, "{report:#}");
    let judged = report["judged"].as_array().unwrap().iter().map(|basis| &basis["invariant"]);
    let every = EVIDENCE.map(|(invariant, _)| serde_json::to_value(invariant).unwrap());
    assert_eq!(judged.collect::<Vec<_>>(), every.iter().collect::<Vec<_>>());
}

/// The count of a funnel stage. Waits until the server can count the stage.
pub async fn stage(internal: SocketAddr, sale: &str, stage: &str) -> u64 {
    let url = format!("http://{internal}/admin/v1/sales/{sale}/funnel");
    until(stage, async || {
        let funnel: Json = reqwest::get(&url).await.unwrap().json().await.unwrap();
        count_in(&funnel["stages"], stage)
    })
    .await
}

/// The count of a stage; `None` if the server could not count it. Panics if the stage is missing.
pub fn count_in(stages: &Json, stage: &str) -> Option<u64> {
    let found = stages.as_array().unwrap().iter().find(|found| found["stage"] == stage);
    found.unwrap_or_else(|| panic!("{stage} in {stages}"))["count"].as_u64()
}
