//! The same contract in every tier: all cases, one after another, on servers that they share, each
//! with a ledger and a namespace of its own. Tier `memory` runs them as tests of their own.

use std::cell::RefCell;
use std::sync::Arc;

use floodgate::config::{Settings, Tier};

use super::{Case, auth, buy, events, malformed, operators, problems, reading, request_ids};
use crate::support::app::{Ground, fresh_settings};
use crate::support::servers::mariadb::MariaDb;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::servers::redis::Redis;

const ALL: [&[Case]; 8] = [
    auth::CASES,
    buy::CASES,
    events::CASES,
    malformed::CASES,
    operators::CASES,
    problems::CASES,
    reading::CASES,
    request_ids::CASES,
];

/// A tier and the servers that its cases share.
struct Stage {
    tier: Tier,
    /// `None`: each case has a ledger in a file.
    mariadb: Option<MariaDb>,
    redis: Option<Redis>,
    rabbit: Option<RabbitMq>,
}

thread_local! {
    /// Where the cases of this thread run; `None`: in memory.
    static STAGE: RefCell<Option<Arc<Stage>>> = const { RefCell::new(None) };
}

/// Settings of the tier of this thread, on stores that nobody has used.
pub fn settings() -> (Settings, Ground) {
    let (mut settings, ground) = fresh_settings(Tier::Memory);
    let Some(stage) = STAGE.with_borrow(Option::clone) else { return (settings, ground) };
    settings.tier = stage.tier;
    settings.namespace = format!("t{:08x}", fastrand::u32(..));
    (settings.maintenance.every_ms, settings.http.sales_refresh_ms) = (50, 50);
    if let Some(mariadb) = &stage.mariadb {
        settings.ledger.url = mariadb.new_database();
    }
    if let Some(redis) = &stage.redis {
        settings.redis.url = redis.url();
    }
    if let Some(rabbit) = &stage.rabbit {
        settings.amqp.url = rabbit.url();
    }
    (settings, ground)
}

fn all_cases_on(stage: Stage) {
    STAGE.set(Some(Arc::new(stage)));
    for (name, case) in ALL.into_iter().flatten() {
        println!("{name}");
        case();
    }
    STAGE.set(None);
}

#[test]
fn the_contract_holds_in_tier_ledger_in_a_file() {
    all_cases_on(Stage { tier: Tier::Ledger, mariadb: None, redis: None, rabbit: None });
}

#[test]
fn the_contract_holds_in_tier_ledger_on_mariadb() {
    let mariadb = Some(MariaDb::start());
    all_cases_on(Stage { tier: Tier::Ledger, mariadb, redis: None, rabbit: None });
}

#[test]
fn the_contract_holds_in_tier_gate() {
    let (mariadb, redis) = (Some(MariaDb::start()), Some(Redis::start()));
    all_cases_on(Stage { tier: Tier::Gate, mariadb, redis, rabbit: None });
}

#[test]
fn the_contract_holds_in_tier_pipeline() {
    let (mariadb, redis) = (Some(MariaDb::start()), Some(Redis::start()));
    let rabbit = Some(RabbitMq::start());
    all_cases_on(Stage { tier: Tier::Pipeline, mariadb, redis, rabbit });
}

#[test]
fn a_test_of_the_contract_that_is_no_case_is_found() {
    let files = [
        (include_str!("auth.rs"), auth::CASES, 0),
        (include_str!("buy.rs"), buy::CASES, 0),
        (include_str!("events.rs"), events::CASES, 0),
        (include_str!("malformed.rs"), malformed::CASES, 0),
        (include_str!("operators.rs"), operators::CASES, 0),
        (include_str!("problems.rs"), problems::CASES, 0),
        // A page that changes by itself, because units are counted elsewhere, is sent again.
        (include_str!("reading.rs"), reading::CASES, 1),
        (include_str!("request_ids.rs"), request_ids::CASES, 0),
    ];
    for (text, cases, left_out) in files {
        assert_eq!(text.matches("#[tokio::test]").count(), cases.len() + left_out);
    }
}
