//! Dead letters that cannot be stored: C21. They stay at their source until they can be stored.

use std::time::Duration;

use serde_json::Value as Json;

use crate::support::gate::metric;
use crate::support::pipeline::PipelineFixture;
use crate::support::poison::{Intruder, dead_letter_of};
use crate::support::shop::Shop;
use crate::support::wait::until;

#[test]
fn dead_letters_without_room_wait() {
    let fixture = PipelineFixture::new("list");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let mut shop = Shop::open(server.internal, 5_000).await;
        let mut intruder = Intruder::new(&fixture, 4).await;

        // The exchange and the queue are declared again; no message was acknowledged before.
        let crowd = shop.crowd(server.public, 500);
        fixture.rabbit.delete_exchange("fg.dead");
        let first = intruder.publish_junk(1).await;
        dead_letter_of(&fixture, &server, &first, "").await;
        fixture.rabbit.delete_queue("fg.dead");
        let second = intruder.publish_junk(2).await;
        dead_letter_of(&fixture, &server, &second, "").await;
        shop.settle(server.public, crowd).await;

        // The ledger rejects dead letters and still accepts orders.
        fixture.mariadb.sql("RENAME TABLE dead_letters TO set_aside");
        let third = intruder.publish_junk(3).await;
        intruder.write(&fixture, "list", 0, b"no entry");
        shop.sell(server.public, 500).await;
        until("a rejection of each", async || {
            let refused = metric(server.internal, "floodgate_dead_letters_refused", "").await;
            (refused >= 2).then_some(())
        })
        .await;
        fixture.mariadb.sql("RENAME TABLE set_aside TO dead_letters");
        // The collector tries a dead letter that the ledger rejected again after half a minute.
        let open = format!("http://{}/admin/v1/dead-letters?state=open", server.internal);
        until("all dead letters in the ledger", async || {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let page: Json = reqwest::get(&open).await.unwrap().json().await.unwrap();
            (page["dead_letters"].as_array().unwrap().len() == 4).then_some(())
        })
        .await;
        dead_letter_of(&fixture, &server, &third, "").await;
        dead_letter_of(&fixture, &server, b"no entry", "").await;
        shop.check(&fixture, server.internal).await;
    });
}
