//! Dead letters that find no place: C21. They stay where they are, and arrive when there is one.

use std::time::Duration;

use crate::support::gate::metric;
use crate::support::pipeline::PipelineGround;
use crate::support::poison::{Intruder, letter_of};
use crate::support::shop::Shop;
use crate::support::wait::{until, until_true_within};

/// A letter that the ledger refused is tried again after half a minute.
const TRIED_AGAIN_MAX: Duration = Duration::from_secs(90);

fn letters_find_no_place(outbox: &str) {
    let ground = PipelineGround::new(outbox);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = ground.server("all", &[]);
        let mut shop = Shop::open(server.internal, 5_000).await;
        let mut intruder = Intruder::new(&ground, 4);

        // What is missing is declared again, and nothing was acknowledged before.
        let crowd = shop.crowd(server.public, 500);
        ground.rabbit.delete_exchange("fg.dead");
        let first = intruder.publish_junk(1).await;
        letter_of(&ground, &server, &first, "").await;
        ground.rabbit.delete_queue("fg.dead");
        let second = intruder.publish_junk(2).await;
        letter_of(&ground, &server, &second, "").await;
        shop.settle(server.public, crowd).await;

        // The ledger takes no letters, and goes on taking orders.
        ground.mariadb.sql("RENAME TABLE dead_letters TO set_aside");
        let third = intruder.publish_junk(3).await;
        intruder.write(&ground, outbox, 0, b"no entry");
        shop.sell(server.public, 500).await;
        until("an alarm for each source", async || {
            let refused = metric(server.internal, "floodgate_dead_letters_refused", "").await;
            (refused >= 2).then_some(())
        })
        .await;
        let key = intruder.outbox_key(0).replace("outbox", "dead");
        assert_eq!(ground.redis.text(&["LLEN", &key]), "1", "nobody collected it");
        ground.mariadb.sql("RENAME TABLE set_aside TO dead_letters");
        until_true_within(TRIED_AGAIN_MAX, "all letters in the ledger", || {
            ground.open_letters(server.internal).len() == 4
        });
        letter_of(&ground, &server, &third, "").await;
        letter_of(&ground, &server, b"no entry", "").await;
        shop.judge(&ground, server.internal).await;
    });
}

#[test]
fn letters_that_find_no_place_wait_with_a_list() {
    letters_find_no_place("list");
}

#[test]
fn letters_that_find_no_place_wait_with_a_stream() {
    letters_find_no_place("stream");
}
