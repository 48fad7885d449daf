//! Rules about the URLs of ledger, Redis and broker.

use super::effective::redact_url;
use super::limits::RuleCheck;
use super::settings::{Settings, Tier};
use crate::redis::transport::RedisUrl;

pub(super) fn check(settings: &Settings, check: &mut RuleCheck) {
    ledger_url(settings, check);
    redis_url(settings, check);
    amqp_url(settings, check);
}

fn ledger_url(settings: &Settings, check: &mut RuleCheck) {
    let ledger = &settings.ledger;
    let shown = redact_url(&ledger.url);
    match ledger.url.split_once("://") {
        Some(("sqlite", path)) => check.require(
            !path.is_empty() && !path.starts_with(":memory:"),
            "ledger.url",
            &format!("{shown:?} names no file, and orders must survive the process"),
            "use sqlite://path, such as sqlite://./floodgate.db",
        ),
        Some(("mysql", rest)) => check.require(
            rest.split_once('/').is_some_and(|(host, name)| !host.is_empty() && !name.is_empty()),
            "ledger.url",
            &format!("{shown:?} names no database"),
            "use mysql://user:password@host:port/database",
        ),
        _ => check.require(
            false,
            "ledger.url",
            &format!("{shown:?} is not a ledger"),
            "use sqlite://path, such as sqlite://./floodgate.db, or \
             mysql://user:password@host:port/database (for MariaDB too)",
        ),
    }
}

fn redis_url(settings: &Settings, check: &mut RuleCheck) {
    const REMEDY: &str = "use redis://host:port, redis+cluster://h1:p1,h2:p2 or \
                          redis+sentinel://h1:p1,h2:p2/master-name";
    let url = &settings.redis.url;
    if url.is_empty() {
        check.require(
            !matches!(settings.tier, Tier::Gate | Tier::Pipeline),
            "redis.url",
            &format!("is not set, and tier `{}` counts units in Redis", settings.tier),
            REMEDY,
        );
        return;
    }
    if let Err(error) = url.parse::<RedisUrl>() {
        let shown = redact_url(url);
        check.require(false, "redis.url", &format!("{shown:?}: {error}"), REMEDY);
    }
}

fn amqp_url(settings: &Settings, check: &mut RuleCheck) {
    const REMEDY: &str = "use amqp://user:password@host:port/vhost";
    let url = &settings.amqp.url;
    if url.is_empty() {
        check.require(
            settings.tier != Tier::Pipeline,
            "amqp.url",
            "is not set, and tier `pipeline` sends orders through RabbitMQ",
            REMEDY,
        );
        return;
    }
    let shown = redact_url(url);
    let secured = url.starts_with("amqps://");
    check.require(
        (secured || url.starts_with("amqp://")) && !url.ends_with("://"),
        "amqp.url",
        &format!("{shown:?} is not a broker"),
        REMEDY,
    );
    check.require(
        !secured || cfg!(feature = "tls"),
        "amqp.url",
        &format!("{shown:?} needs TLS, which this build does not have"),
        "build with `--features tls`, or use amqp://",
    );
}
