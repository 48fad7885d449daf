//! The same contract in every tier. All cases run in sequence on shared servers, each case with its
//! own ledger and namespace. In tier `memory` every case is a test of its own.

use std::cell::RefCell;
use std::sync::Arc;

use floodgate::config::{Settings, Tier};

use super::{
    Case, auth, buy, cancelling, events, limits, malformed, operators, order_events, problems,
    reading, request_ids, sale_changes, tickets,
};
use crate::support::app::{Stores, fresh_settings};
use crate::support::servers::mariadb::MariaDb;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::servers::redis::Redis;

const ALL: [&[Case]; 13] = [
    auth::CASES,
    buy::CASES,
    cancelling::CASES,
    events::CASES,
    limits::CASES,
    malformed::CASES,
    operators::CASES,
    order_events::CASES,
    problems::CASES,
    reading::CASES,
    request_ids::CASES,
    sale_changes::CASES,
    tickets::CASES,
];

/// A tier and the servers that its cases share.
struct SharedServers {
    tier: Tier,
    /// `None`: each case has a SQLite ledger in a file.
    mariadb: Option<MariaDb>,
    redis: Option<Redis>,
    rabbit: Option<RabbitMq>,
}

thread_local! {
    /// The servers for the cases of this thread. `None`: tier `memory`.
    static SERVERS: RefCell<Option<Arc<SharedServers>>> = const { RefCell::new(None) };
}

/// Settings of the tier of this thread, on unused stores.
pub fn settings() -> (Settings, Stores) {
    let (mut settings, stores) = fresh_settings(Tier::Memory);
    let Some(servers) = SERVERS.with_borrow(Option::clone) else { return (settings, stores) };
    settings.tier = servers.tier;
    settings.namespace = format!("t{:08x}", fastrand::u32(..));
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (50, 50);
    if let Some(mariadb) = &servers.mariadb {
        settings.ledger.url = mariadb.new_database();
    }
    if let Some(redis) = &servers.redis {
        settings.redis.url = redis.url();
    }
    if let Some(rabbit) = &servers.rabbit {
        settings.amqp.url = rabbit.url();
    }
    (settings, stores)
}

fn all_cases_on(servers: SharedServers) {
    SERVERS.set(Some(Arc::new(servers)));
    for (name, case) in ALL.into_iter().flatten() {
        println!("{name}");
        case();
    }
    SERVERS.set(None);
}

#[test]
fn the_contract_holds_in_tier_ledger_in_a_file() {
    all_cases_on(SharedServers { tier: Tier::Ledger, mariadb: None, redis: None, rabbit: None });
}

#[test]
fn the_contract_holds_in_tier_ledger_on_mariadb() {
    let mariadb = Some(MariaDb::start());
    all_cases_on(SharedServers { tier: Tier::Ledger, mariadb, redis: None, rabbit: None });
}

#[test]
fn the_contract_holds_in_tier_gate() {
    let (mariadb, redis) = (Some(MariaDb::start()), Some(Redis::start()));
    all_cases_on(SharedServers { tier: Tier::Gate, mariadb, redis, rabbit: None });
}

#[test]
fn the_contract_holds_in_tier_pipeline() {
    let (mariadb, redis) = (Some(MariaDb::start()), Some(Redis::start()));
    let rabbit = Some(RabbitMq::start());
    all_cases_on(SharedServers { tier: Tier::Pipeline, mariadb, redis, rabbit });
}

#[test]
fn a_test_of_the_contract_that_is_no_case_is_found() {
    let files = [
        (include_str!("auth.rs"), auth::CASES, 0),
        (include_str!("buy.rs"), buy::CASES, 0),
        (include_str!("cancelling.rs"), cancelling::CASES, 0),
        (include_str!("events.rs"), events::CASES, 0),
        (include_str!("limits.rs"), limits::CASES, 0),
        (include_str!("malformed.rs"), malformed::CASES, 1),
        // Lines in the log belong to a process of their own.
        (include_str!("operators.rs"), operators::CASES, 1),
        // The failures are recorded before the server starts.
        (include_str!("order_events.rs"), order_events::CASES, 1),
        (include_str!("problems.rs"), problems::CASES, 0),
        // The `ETag` test runs in tier `memory` only: elsewhere new stock counts change the page.
        (include_str!("reading.rs"), reading::CASES, 1),
        (include_str!("request_ids.rs"), request_ids::CASES, 0),
        // The caller that hangs up holds a lock of the SQLite file.
        (include_str!("sale_changes.rs"), sale_changes::CASES, 1),
        (include_str!("tickets.rs"), tickets::CASES, 0),
    ];
    for (text, cases, excluded) in files {
        assert_eq!(text.matches("#[tokio::test]").count(), cases.len() + excluded);
    }
}
