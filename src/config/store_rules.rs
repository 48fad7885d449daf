//! Rules about the URLs of ledger, Redis and broker.

use super::effective::redact_url;
use super::kinds::Tier;
use super::settings::Settings;
use super::transport::{MysqlUrl, broker_urls, host_of};
use super::validate::RuleCheck;
use crate::redis::transport::RedisUrl;

/// Parameters of `amqp://` URLs.
const AMQP_PARAMETERS: [&str; 4] = ["auth_mechanism", "channel_max", "frame_max", "heartbeat"];

/// What is wrong with a URL, and the remedy.
type Problem = Option<(String, &'static str)>;

pub(super) fn check(settings: &Settings, check: &mut RuleCheck) {
    check.require(
        !settings.limits.shared || matches!(settings.tier, Tier::Gate | Tier::Pipeline),
        "limits.shared",
        &format!("tier `{}` has one process and no Redis", settings.tier.name()),
        "remove it, or use tier `gate` or `pipeline`",
    );
    let urls = [
        ("ledger.url", ledger_url(settings)),
        ("redis.url", redis_url(settings)),
        ("amqp.url", amqp_url(settings)),
    ];
    for (key, problem) in urls {
        if let Some((problem, remedy)) = problem {
            check.require(false, key, &problem, remedy);
        }
    }
}

fn ledger_url(settings: &Settings) -> Problem {
    let url = &settings.ledger.url;
    let shown = redact_url(url);
    match url.split_once("://") {
        Some(("sqlite", path)) => (path.is_empty() || path.starts_with(":memory:")).then(|| {
            let problem = format!("{shown:?} names no file, and orders must survive the process");
            (problem, "use sqlite://path, such as sqlite://./floodgate.db")
        }),
        Some(("mysql", rest)) => {
            let named = rest.split_once('/');
            let is_named = named.is_some_and(|(host, name)| !host.is_empty() && !name.is_empty());
            let remedy = "use mysql://user:password@host:port/database, with \
                          ?ssl-mode=verify-full for TLS";
            let problem = MysqlUrl::parse(url).err().map(|problem| format!("{shown:?}: {problem}"));
            let unnamed = (!is_named).then(|| format!("{shown:?} names no database"));
            unnamed.or(problem).map(|problem| (problem, remedy))
        }
        _ => Some((
            format!("{shown:?} is not a ledger"),
            "use sqlite://path, such as sqlite://./floodgate.db, or \
             mysql://user:password@host:port/database (for MariaDB too)",
        )),
    }
}

fn redis_url(settings: &Settings) -> Problem {
    let (url, tier) = (&settings.redis.url, settings.tier);
    let problem = if url.is_empty() {
        matches!(tier, Tier::Gate | Tier::Pipeline)
            .then(|| format!("is not set, and tier `{}` counts units in Redis", tier.name()))
    } else {
        let error = url.parse::<RedisUrl>().err();
        error.map(|error| format!("{:?}: {error}", redact_url(url)))
    };
    let remedy = "use redis://host:port, redis+cluster://h1:p1,h2:p2 or \
                  redis+sentinel://h1:p1,h2:p2/master-name, with rediss for TLS";
    problem.map(|problem| (problem, remedy))
}

fn amqp_url(settings: &Settings) -> Problem {
    let url = &settings.amqp.url;
    let (shown, remedy) = (
        redact_url(url),
        "use amqp://user:password@host1:port1,host2:port2/vhost, a host for each node",
    );
    match url.split_once("://") {
        _ if url.is_empty() => (settings.tier == Tier::Pipeline).then(|| {
            let problem = "is not set, and tier `pipeline` sends orders through RabbitMQ";
            (problem.to_owned(), remedy)
        }),
        Some(("amqp" | "amqps", server)) if !server.is_empty() => {
            let parameters = server.split_once('?').map_or("", |(_, parameters)| parameters);
            let is_known = |parameter: &str| {
                let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
                parameter.is_empty() || AMQP_PARAMETERS.contains(&name)
            };
            let nodes = broker_urls(url);
            let lacks_host = nodes.len() > 1 && nodes.iter().any(|node| host_of(node).is_empty());
            let is_odd = !parameters.split('&').all(is_known);
            let problem = match (is_odd, lacks_host) {
                (true, _) => "has a parameter that is not known",
                (false, true) => "has a node without a host",
                (false, false) => return None,
            };
            Some((format!("{shown:?} {problem}"), remedy))
        }
        _ => Some((format!("{shown:?} is not a broker"), remedy)),
    }
}
