//! Ids beyond 2^53 from end to end: JSON in, Lua, SQL, JSON out.

use floodgate::config::{Settings, Tier};
use floodgate::domain::{BucketNo, BuyerId};
use floodgate::http::state::signers;
use serde_json::json;

use crate::support::app::{TestApp, fresh_settings};
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::harness::START_MS;
use crate::support::offers::run;
use crate::support::orders::orders_in;

/// Ten ids of 18 and 19 digits; neighbours differ by less than the precision of a double.
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
            let purchase = json!({"sku_id": "sku", "quantity": 1});
            let (status, bought) = app.buy_json("sale", buyer, purchase.clone()).await;
            assert_eq!(status, 200, "{bought}");
            assert_eq!(bought["order"]["buyer_id"], buyer.to_string());

            let request = bought["request_id"].as_str().unwrap();
            let number = request.split('-').next().unwrap();
            let home = BucketNo::home_of(BuyerId::new(buyer).unwrap(), 2);
            let page = format!("fg:{{1:{home}}}:requests:0");
            assert_eq!(app.redis().text(&["HEXISTS", &page, number]), "1");

            let (_, status) = app.get(&format!("/v1/requests/{request}"), buyer).await;
            assert_eq!(status["order"], bought["order"]);
            let (_, again) = app.buy_json("sale", buyer, purchase).await;
            assert_eq!(again["request_id"], request);
            let (_, orders) = app.get("/v1/orders", buyer).await;
            assert_eq!(orders["orders"], json!([bought["order"]]));
        }
        app.assert_audit_holds().await;
        assert_eq!(orders_in(&app.settings).await.units, 10);
    });
}

/// With `one_per_buyer` the derived request id enforces the limit. A new signing key derives other
/// ids, and the ledger still refuses buyers that have an order.
#[test]
fn a_new_signing_key_permits_no_second_order() {
    let key = |letter: &str| Some(letter.repeat(32).into());
    for tier in [Tier::Memory, Tier::Ledger, Tier::Gate] {
        let (mut settings, _stores) = fresh_settings(tier);
        let purchase = || json!({"sku_id": "sku", "quantity": 1});
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            settings.auth.signing_key = key("a");
            let app = TestApp::start(settings.clone());
            app.open_sale("sale", json!({"kind": "one_per_buyer"}), 100, 2).await;
            let mut ids = Vec::new();
            for buyer in 1..=3 {
                let (status, bought) = app.buy_json("sale", buyer, purchase()).await;
                assert_eq!(status, 200, "{bought}");
                ids.push(bought["request_id"].as_str().unwrap().to_owned());
            }
            app.stop();

            settings.auth.signing_key = key("b");
            let app = TestApp::start(settings);
            for (buyer, first) in (1..=3).zip(&ids) {
                for _ in 0..2 {
                    let (status, refused) = app.buy_json("sale", buyer, purchase()).await;
                    assert_eq!(
                        (status.as_u16(), &refused["code"]),
                        (409, &json!("already-purchased"))
                    );
                    let named = refused["request_id"].as_str().unwrap();
                    assert_eq!(named.split('-').next(), first.split('-').next(), "{tier:?}");
                }
            }
            let (status, _) = app.buy_json("sale", 4, purchase()).await;
            assert_eq!(status, 200);
            app.assert_audit_holds().await;
            assert_eq!(orders_in(&app.settings).await.units, 4);
            app.stop();
        });
    }
}

#[test]
fn two_processes_issue_different_ids_in_the_same_millisecond() {
    run(async {
        let settings = Settings::with_ledger("sqlite://unused.db");
        let ledger = DefectiveLedger::new(LedgerDefect::None);
        let (_, one) = signers(&settings, &ledger).await.unwrap();
        let (_, other) = signers(&settings, &ledger).await.unwrap();
        assert_ne!(one.issue(START_MS), other.issue(START_MS));
    });
}
