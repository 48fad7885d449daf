//! Ids beyond 2^53 on their whole way: JSON in, Lua, SQL, JSON out.

use floodgate::config::Tier;
use floodgate::domain::{BucketNo, BuyerId};
use serde_json::json;

use crate::support::app::TestApp;
use crate::support::orders::orders_in;

/// Ten ids of 18 and 19 digits; neighbours differ by less than a double can tell.
fn ids() -> impl Iterator<Item = u64> {
    let eighteen = (0..5).map(|step| 123_456_789_012_345_671 + step);
    eighteen.chain((0..5).map(|step| u64::MAX / 2 - step))
}

#[test]
fn ten_long_ids_travel_through_lua_sql_and_json_unchanged() {
    let app = TestApp::fresh(Tier::Gate);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 100, 2).await;
        for buyer in ids() {
            let wish = json!({"sku_id": "sku", "quantity": 1});
            let (status, bought) = app.buy_json("sale", buyer, wish.clone()).await;
            assert_eq!(status, 200, "{bought}");
            assert_eq!(bought["order"]["buyer_id"], buyer.to_string());

            let request = bought["request_id"].as_str().unwrap();
            let number = request.split('-').next().unwrap();
            let home = BucketNo::home_of(BuyerId::new(buyer).unwrap(), 2);
            let page = |kind| format!("fg:{{1:{home}}}:{kind}:0");
            assert_eq!(app.redis().text(&["HGET", &page("buyers"), &buyer.to_string()]), number);
            assert_eq!(app.redis().text(&["HEXISTS", &page("requests"), number]), "1");

            let (_, asked) = app.get(&format!("/v1/requests/{request}"), buyer).await;
            assert_eq!(asked["order"], bought["order"]);
            let (_, again) = app.buy_json("sale", buyer, wish).await;
            assert_eq!(again["request_id"], request);
            let (_, mine) = app.get("/v1/orders", buyer).await;
            assert_eq!(mine["orders"], json!([bought["order"]]));
        }
        app.assert_audit_holds().await;
        assert_eq!(orders_in(&app.settings).await.units, 10);
    });
}
