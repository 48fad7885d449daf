//! Changes of orders that cannot be read: one of them, or all.

use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::actors::periodic::Task;
use floodgate::config::Tier;
use floodgate::observe::metrics::{ErrorClassLabel, Metrics};

use super::unit_returns::{Fixture, STOCK};
use crate::support::faulty_ledger::Fault;
use crate::support::harness::in_system;

impl Fixture {
    /// Changes rows directly in the database.
    fn tamper(&self, sql: &str) {
        let file = self.folder.path().join("ledger.db");
        let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        conn.batch_execute(&format!("PRAGMA busy_timeout = 5000; {sql}")).unwrap();
    }
}

#[test]
fn an_unreadable_change_keeps_no_other_from_its_bucket() {
    in_system(async {
        let fixture = Fixture::open(Tier::Memory).await;
        fixture.sell(1..=3).await;
        for buyer in 1..=3 {
            fixture.cancel(buyer).await;
        }
        fixture.tamper("UPDATE order_events SET actor = '' WHERE request_id = 2 AND version = 1");
        let returner = fixture.returner();
        for _ in 0..2 {
            returner.run(&()).await.unwrap();
            assert_eq!(fixture.free().await, STOCK - 1);
        }
        assert!(fixture.cursor().await >= 6, "three placements and three ends");
        let errors = returner.metrics.ledger_errors.clone();
        assert_eq!(errors.get_or_create(&ErrorClassLabel { class: "bug" }).get(), 1);
    });
}

/// Changes may wait that the process does not see.
#[test]
fn a_feed_that_cannot_be_read_is_reported_as_one_change_that_grows_older() {
    in_system(async {
        let fixture = Fixture::open(Tier::Memory).await;
        let returner = fixture.returner();
        let reported = || {
            let Metrics { order_changes_waiting, order_changes_oldest, .. } = &*returner.metrics;
            (order_changes_waiting.get(), Duration::from_secs_f64(order_changes_oldest.get()))
        };
        fixture.ledger.set(Fault::Down);
        for age in [Duration::ZERO, Duration::from_secs(61)] {
            fixture.harness.clock.advance(age);
            returner.run(&()).await.unwrap_err();
            assert_eq!(reported(), (1, age));
        }
        fixture.ledger.set(Fault::None);
        returner.run(&()).await.unwrap();
        assert_eq!(reported(), (0, Duration::ZERO));
    });
}
