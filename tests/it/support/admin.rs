//! The admin API of a server in another process.

use std::net::SocketAddr;

use reqwest::Response;
use serde_json::{Value as Json, json};

use super::app::sale_body;
use super::wait::until;

/// Creates and opens a sale of one SKU, `sku`.
pub async fn open_sale(internal: SocketAddr, sale: &str, policy: Json, stock: u32, buckets: u16) {
    call(internal, "/sales", sale_body(sale, policy, stock, buckets)).await;
    call(internal, &format!("/sales/{sale}/open"), json!({})).await;
}

/// A call that must succeed. A server that says `busy` is asked again, as its answer demands.
pub async fn call(internal: SocketAddr, path: &str, body: Json) -> Json {
    let client = reqwest::Client::new();
    let url = format!("http://{internal}/admin/v1{path}");
    until(path, || async {
        let response = client.post(&url).json(&body).send().await.unwrap();
        succeeded(path, response).await
    })
    .await
}

/// The document of an answer that must be a success; `None` for `busy`.
pub async fn succeeded(path: &str, response: Response) -> Option<Json> {
    let status = response.status();
    let json: Json = response.json().await.unwrap();
    assert!(status.is_success() || json["code"] == "busy", "{path}: {status} {json}");
    status.is_success().then_some(json)
}

/// Panics of all actors of a kind.
pub async fn panics(internal: SocketAddr, kind: &str) -> Option<u64> {
    let url = format!("http://{internal}/admin/v1/actors");
    let report: Json = reqwest::get(url).await.ok()?.json().await.ok()?;
    let actors = report["actors"].as_array()?.iter().filter(|one| one["kind"] == kind);
    actors.map(|one| one["panics"].as_u64()).sum()
}

/// Requires that every invariant could be judged and holds.
pub async fn assert_audit_holds(internal: SocketAddr) {
    let report = call(internal, "/audit", json!({})).await;
    assert!(report["holds"] == true && report["could_tell"] == true, "{report:#}");
}

/// A stage of a sale's funnel, once it can be counted.
pub async fn stage(internal: SocketAddr, sale: &str, stage: &str) -> u64 {
    let url = format!("http://{internal}/admin/v1/sales/{sale}/funnel");
    until(stage, async || {
        let funnel: Json = reqwest::get(&url).await.unwrap().json().await.unwrap();
        count_in(&funnel["stages"], stage)
    })
    .await
}

/// How many are at a stage, if that can be told; the stage must be there.
pub fn count_in(stages: &Json, stage: &str) -> Option<u64> {
    let found = stages.as_array().unwrap().iter().find(|found| found["stage"] == stage);
    found.unwrap_or_else(|| panic!("{stage} in {stages}"))["count"].as_u64()
}
