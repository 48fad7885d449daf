//! One installation in many processes: two of each role, one sale.

use std::sync::Arc;

use serde_json::json;

use crate::support::admin::open_sale;
use crate::support::crowd::{History, send};
use crate::support::gate::wishes;
use crate::support::pipeline::PipelineGround;
use crate::support::wait::until;

const STOCK: u32 = 400;

#[test]
fn two_processes_of_each_role_sell_one_sale() {
    let ground = PipelineGround::new("list");
    let roles = ["keeper", "keeper", "consumer", "consumer", "relay", "relay", "api", "api"];
    let servers = roles.map(|role| ground.server(role, &[]));
    let [keeper, .., one, other] = &servers;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Any process takes an operator's word; here it is one that does not sell.
        let policy = json!({"kind": "one_per_buyer"});
        open_sale(keeper.internal, "sale", policy, STOCK, 4).await;
        for api in [one, other] {
            until("the sale to be open here", async || {
                let call = reqwest::get(format!("http://{}/v1/sales/sale", api.public));
                let sale: serde_json::Value = call.await.ok()?.json().await.ok()?;
                (sale["skus"][0]["stock_left"] == STOCK).then_some(())
            })
            .await;
        }
        let wishes = Arc::new(wishes(1..601));
        let attempts: Arc<Vec<usize>> = (0..600).chain(0..600).collect::<Vec<_>>().into();
        let (mut history, more) = tokio::join!(
            send(one.public, "sale", wishes.clone(), attempts.clone(), 16),
            send(other.public, "sale", wishes.clone(), attempts, 16),
        );
        history.heard.extend(more.heard);
        let verdict = ground.judge(0, keeper.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok as u64, u64::from(STOCK));
        assert_eq!(history.acknowledged().len() as u64, u64::from(STOCK));
        each_reads_the_same(&history, one.public, other.public).await;
    });
}

/// What one process accepted, its buyer reads at the other one, too.
async fn each_reads_the_same(
    history: &History,
    one: std::net::SocketAddr,
    other: std::net::SocketAddr,
) {
    let heard = history.heard.iter().find(|heard| heard.is_promise()).unwrap();
    let (buyer, id) = (heard.wish + 1, heard.request_id.as_deref().unwrap());
    let client = reqwest::Client::new();
    let mut views = Vec::new();
    for api in [one, other] {
        let call = client.get(format!("http://{api}/v1/requests/{id}"));
        let answer = call.header("x-buyer-id", buyer.to_string()).send().await.unwrap();
        views.push(answer.json::<serde_json::Value>().await.unwrap());
    }
    assert_eq!(views[0]["state"], "success");
    assert_eq!(views[0], views[1]);
}
