//! Rules between keys. Every broken rule is reported with its remedy.

use std::net::SocketAddr;
use std::ops::{RangeBounds, RangeInclusive};

use secrecy::ExposeSecret;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::access::{AuthMode, TOKEN_CHARS_MIN};
use super::error::ConfigFault;
use super::kinds::{PaymentBackend, Role, Tier};
use super::settings::{Settings, check_numbers};
use super::{access, payment_rules, store_rules};

/// Keeps names of keys and queues readable and within the broker's limit of 255 bytes.
const NAMESPACE_CHARS_MAX: usize = 32;

/// Kinds of supervised actor that fault injection can make panic.
const ACTOR_KINDS: [&str; 23] = [
    "stock_gate",
    "ledger_writer",
    "stock_refresher",
    "stock_returner",
    "sale_loader",
    "series_sampler",
    "status_watcher",
    "result_listener",
    "outbox_relay",
    "orphan_rescuer",
    "order_consumer",
    "dead_letter_collector",
    "dead_letter_counter",
    "reconciler",
    "event_publisher",
    "clock_watcher",
    "payment_timer",
    "payment_inquirer",
    "refund_worker",
    "retaker",
    "payment_consumer",
    "hint_publisher",
    "hint_consumer",
];

/// Collects the faults of broken rules.
#[derive(Default)]
pub(super) struct RuleCheck {
    faults: Vec<ConfigFault>,
}

impl RuleCheck {
    pub fn require(&mut self, holds: bool, key: &str, problem: &str, remedy: &str) {
        if !holds {
            self.faults.push(ConfigFault::new(key, problem, remedy));
        }
    }

    pub fn positive(&mut self, key: &str, value: u64) {
        self.require(value >= 1, key, "is 0", "set 1 or more");
    }

    pub fn up_to(&mut self, key: &str, value: u64, other_key: &str, most: u64) {
        let problem = format!("{value} is larger than {other_key} = {most}");
        self.require(value <= most, key, &problem, &format!("lower it, or raise {other_key}"));
    }

    pub fn between(&mut self, key: &str, value: u64, range: RangeInclusive<u64>, remedy: &str) {
        let problem = format!("is not between {} and {}", range.start(), range.end());
        self.range(key, value, range, &problem, remedy);
    }

    pub fn range(
        &mut self,
        key: &str,
        value: u64,
        range: impl RangeBounds<u64>,
        problem: &str,
        remedy: &str,
    ) {
        self.require(range.contains(&value), key, problem, remedy);
    }
}

/// The number of a setting.
pub(super) fn wide(value: impl TryInto<u64>) -> u64 {
    value.try_into().unwrap_or(u64::MAX)
}

/// The faults of these settings; empty if they may be used.
pub(super) fn validate(settings: &Settings) -> Vec<ConfigFault> {
    let mut check = RuleCheck::default();
    tier_and_names(settings, &mut check);
    listeners(settings, &mut check);
    access::check(settings, &mut check);
    store_rules::check(settings, &mut check);
    check_numbers(settings, &mut check);
    payment_rules::check(settings, &mut check);
    log(settings, &mut check);
    faults(settings, &mut check);
    check.faults
}

fn tier_and_names(settings: &Settings, check: &mut RuleCheck) {
    let (tier, role) = (settings.tier.name(), settings.role.name());
    let is_pipeline = settings.tier == Tier::Pipeline;
    check.require(
        settings.role == Role::All || is_pipeline,
        "role",
        &format!("role `{role}` needs tier `pipeline`; in tier `{tier}` one process does it all"),
        "use `all`",
    );
    check.require(
        !settings.events.exchange || is_pipeline,
        "events.exchange",
        &format!("tier `{tier}` has no broker"),
        "remove it and read GET /admin/v1/order-events, or use tier `pipeline`",
    );
    let name = &settings.namespace;
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    check.require(
        !name.is_empty()
            && name.chars().count() <= NAMESPACE_CHARS_MAX
            && name.chars().all(is_allowed),
        "namespace",
        &format!("{name:?} cannot prefix the names of keys and queues"),
        "use 1 to 32 of a-z, 0-9, `-` and `_`",
    );
}

fn listeners(settings: &Settings, check: &mut RuleCheck) {
    let (public, internal) = (settings.http.bind, settings.internal.bind);
    check.require(
        public != internal || public.port() == 0,
        "internal.bind",
        &format!("{internal} is the public listener's address too"),
        "give each listener its own port",
    );
    check.require(
        settings.auth.mode != AuthMode::Header || public.ip().is_loopback(),
        "http.bind",
        &format!(
            "{public} can be reached from other machines, and auth.mode = \"header\" does not \
             verify buyer ids"
        ),
        "set auth.mode = \"jwt\" with auth.jwt_secret_file, or bind to 127.0.0.1",
    );
    check.require(
        settings.payment.provider != PaymentBackend::Demo || settings.http.tls.is_none(),
        "http.tls_cert_file",
        "is set, and payment.provider = \"demo\" sends its webhooks in plain HTTP",
        "remove it, or let a proxy speak TLS",
    );
    if internal.ip().is_loopback() {
        return;
    }
    let lengths = settings.admin.bearers().into_iter();
    match lengths.map(|token| token.expose_secret().chars().count()).min() {
        None => check.require(
            settings.admin.token_file != *"" || settings.admin.tokens_file != *"",
            "internal.bind",
            &format!("{internal} can be reached from other machines, and there is no admin token"),
            "set admin.token_file (a file with 16 or more characters) or admin.tokens_file, or \
             bind to 127.0.0.1",
        ),
        Some(shortest) => check.require(
            shortest >= TOKEN_CHARS_MIN,
            "admin.token",
            &format!("is short enough to guess, and {internal} can be reached from other machines"),
            "use 16 characters or more, such as from `openssl rand -hex 16`",
        ),
    }
}

fn log(settings: &Settings, check: &mut RuleCheck) {
    let filter = &settings.log.filter;
    // A bare word that is no level would be a module, and nothing else would be logged.
    let is_wrong = |part: &&str| {
        !part.contains(['=', '[', ']']) && (part.is_empty() || part.parse::<LevelFilter>().is_err())
    };
    let fault = EnvFilter::try_new(filter).err().map(|error| error.to_string());
    let wrong = || filter.split(',').map(str::trim).find(is_wrong);
    if let Some(fault) = fault.or_else(|| wrong().map(|part| format!("{part:?} is no level"))) {
        check.require(
            false,
            "log.filter",
            &format!("{filter:?} is not a filter: {fault}"),
            "use a level (error, warn, info, debug, trace) or \"info,floodgate::actors=debug\"",
        );
    }
}

fn faults(settings: &Settings, check: &mut RuleCheck) {
    let faults = &settings.faults;
    check.require(
        (0.0..=100.0).contains(&faults.panic_percent),
        "faults.panic_percent",
        "is not between 0 and 100",
        "use percent: 0.5 means one step in 200",
    );
    let percent_set = faults.panic_percent > 0.0;
    check.require(
        !percent_set || !faults.panic_in.is_empty(),
        "faults.panic_in",
        "is empty, so faults.panic_percent would do nothing",
        "name kinds of actor, such as [\"order_consumer\"], or set faults.panic_percent = 0",
    );
    for kind in faults.panic_in.iter().filter(|kind| !ACTOR_KINDS.contains(&kind.as_str())) {
        check.require(
            false,
            "faults.panic_in",
            &format!("{kind:?} is not a kind of actor"),
            &format!("use some of {}", ACTOR_KINDS.join(", ")),
        );
    }
    let injects_faults = percent_set || !faults.panic_in.is_empty();
    let is_local = |bind: SocketAddr| bind.ip().is_loopback();
    check.require(
        !injects_faults || (is_local(settings.http.bind) && is_local(settings.internal.bind)),
        "faults.panic_in",
        "fault injection is refused while a listener can be reached from other machines",
        "bind both listeners to 127.0.0.1, or remove the faults section",
    );
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::JwtKeys;

    /// The keys of the rules that default settings break after this change.
    pub fn broken_by(change: impl FnOnce(&mut Settings)) -> Vec<String> {
        let mut settings = Settings::with_ledger("sqlite://./x.db");
        change(&mut settings);
        let faults = validate(&settings);
        for fault in &faults {
            assert!(!fault.problem.is_empty() && !fault.remedy.is_empty(), "{fault:?}");
        }
        faults.into_iter().map(|fault| fault.key).collect()
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const LONG: &str = "0123456789abcdef0123456789abcdef";

    /// A setting that breaks exactly one rule, and the key the fault must name.
    pub type Case = (&'static str, fn(&mut Settings));

    const SINGLE: &[Case] = &[
        ("redis.url", |s| s.tier = Tier::Gate),
        ("redis.url", |s| s.redis.url = "cache:6379".into()),
        ("redis.url", |s| s.redis.url = "redis+sentinel://a:1,b:2".into()),
        ("log.filter", |s| s.log.filter = "warning".into()),
        ("log.filter", |s| s.log.filter = "info,floodgate=debug,eror".into()),
        ("log.filter", |s| s.log.filter = String::new()),
        ("http.body_max_bytes", |s| s.http.body_max_bytes = 600_000),
        ("redis.replicas_min", |s| s.redis.replicas_min = 0),
        ("maintenance.every_ms", |s| s.maintenance.lease_ttl_ms = 1000),
        ("gate.resubmit_every_ms", |s| s.gate.resubmit_every_ms = 0),
        ("amqp.url", |s| {
            s.tier = Tier::Pipeline;
            s.redis.url = "redis://127.0.0.1:6379".into();
        }),
        ("amqp.url", |s| s.amqp.url = "http://127.0.0.1:5672".into()),
        ("amqp.url", |s| s.amqp.url = "amqp://u:p@a:1,,b:2/v".into()),
        ("amqp.url", |s| s.amqp.url = "amqp://u:p@h/v?connection_timeout=9".into()),
        ("amqp.queues", |s| s.amqp.queues = 0),
        ("outbox.envelope_max", |s| s.outbox.envelope_max = 513),
        ("relay.workers", |s| s.relay.workers = 0),
        ("relay.heartbeat_ttl_ms", |s| s.relay.heartbeat_ttl_ms = 999),
        ("ledger.job_deadline_ms", |s| s.ledger.job_deadline_ms = 15_001),
        ("relay.confirm_timeout_ms", |s| s.relay.confirm_timeout_ms = 15_001),
        ("relay.poll_min_ms", |s| s.relay.poll_max_ms = 0),
        ("maintenance.dead_letters_max", |s| s.maintenance.dead_letters_max = 0),
        ("reconciler.after_ms", |s| s.reconciler.after_ms = 999),
        ("reconciler.recheck_ms", |s| s.reconciler.recheck_ms = 60_001),
        ("role", |s| s.role = Role::Relay),
        ("namespace", |s| s.namespace = String::new()),
        ("namespace", |s| s.namespace = "a{b}".into()),
        ("namespace", |s| s.namespace = "a".repeat(33)),
        ("internal.bind", |s| s.internal.bind = addr("0.0.0.0:9090")),
        ("http.bind", |s| s.http.bind = addr("[::]:8080")),
        ("http.workers", |s| s.http.workers = 2000),
        ("http.backlog", |s| s.http.backlog = 0),
        ("http.connections_max", |s| s.http.connections_max = 0),
        ("http.body_max_bytes", |s| s.http.body_max_bytes = 10),
        ("http.keep_alive_ms", |s| s.http.keep_alive_ms = 0),
        ("http.answer_deadline_ms", |s| s.http.answer_deadline_ms = 0),
        ("http.sales_refresh_ms", |s| s.http.sales_refresh_ms = 0),
        ("http.sales_refresh_ms", |s| s.http.sales_refresh_ms = 551),
        ("http.sales_refresh_ms", |s| s.redis.sold_out_refresh_ms = 301),
        ("auth.jwt_secret_file", |s| s.auth.mode = AuthMode::Jwt),
        ("auth.jwt_secret_file", |s| s.auth.jwt_keys = JwtKeys::of_secret("short and varied")),
        ("auth.jwt_secret_file", |s| s.auth.jwt_keys = JwtKeys::of_secret(&"password".repeat(4))),
        ("auth.jwt_secret_file", |s| s.auth.jwt_keys.secrets = vec![LONG.into(); 3]),
        ("auth.signing_key_file", |s| s.auth.signing_key = Some("short".into())),
        ("auth.request_id_ttl_s", |s| s.auth.request_id_ttl_s = 0),
        ("tickets.challenges", |s| s.tickets.challenges.clear()),
        ("tickets.work_bits", |s| s.tickets.work_bits = 33),
        ("tickets.challenge_ttl_s", |s| s.tickets.challenge_ttl_s = 0),
        ("limits.buyer_per_second", |s| s.limits.buyer_per_second = 1_001),
        ("limits.in_flight_max", |s| s.limits.in_flight_max = 0),
        ("limits.shared", |s| s.limits.shared = true),
        ("ledger.url", |s| s.ledger.url = "sqlite://".into()),
        ("ledger.url", |s| s.ledger.url = "sqlite://:memory:".into()),
        ("ledger.url", |s| s.ledger.url = "mysql://u:p@h".into()),
        ("ledger.writers", |s| s.ledger.writers = 0),
        ("ledger.url", |s| s.ledger.url = "floodgate.db".into()),
        ("ledger.readers", |s| s.ledger.readers = 0),
        ("ledger.job_queue_max", |s| s.ledger.job_queue_max = 0),
        ("ledger.busy_timeout_ms", |s| s.ledger.busy_timeout_ms = 10_001),
        ("ledger.cache_kib", |s| s.ledger.cache_kib = 1),
        ("gate.batch_max", |s| s.gate.batch_max = 0),
        ("gate.batch_max", |s| s.gate.permits = 511),
        ("gate.batch_max", |s| (s.gate.batch_max, s.gate.permits) = (2_001, 10_000)),
        ("gate.resubmit_backoff_min_ms", |s| s.gate.resubmit_backoff_min_ms = 1001),
        ("gate.reserve_attempts_max", |s| s.gate.reserve_attempts_max = 0),
        ("consumer.batch_max", |s| s.consumer.batch_max = 0),
        ("consumer.batch_max", |s| s.consumer.permits = 1),
        ("consumer.attempts_max", |s| s.consumer.attempts_max = 0),
        ("consumer.attempts_max", |s| s.consumer.attempts_max = 12),
        ("consumer.retry_backoff_max_ms", |s| {
            (s.consumer.attempts_max, s.consumer.retry_backoff_max_ms) = (10, 5_000);
        }),
        ("consumer.retry_backoff_min_ms", |s| s.consumer.retry_backoff_min_ms = 501),
        ("supervisor.restart_window_ms", |s| s.supervisor.restart_window_ms = 0),
        ("supervisor.backoff_min_ms", |s| s.supervisor.backoff_min_ms = 10_001),
        ("supervisor.heartbeat_ms", |s| s.supervisor.heartbeat_ms = 0),
        ("supervisor.heartbeat_ms", |s| s.supervisor.heartbeat_ms = 15_001),
        ("shutdown.drain_ms", |s| s.shutdown.drain_ms = 15_000),
        ("log.filter", |s| s.log.filter = "info,=,=".into()),
        ("faults.panic_percent", |s| {
            s.faults.panic_in = vec!["stock_gate".into()];
            s.faults.panic_percent = 101.0;
        }),
        ("faults.panic_percent", |s| s.faults.panic_percent = f64::NAN),
        ("faults.panic_in", |s| s.faults.panic_percent = 1.0),
        ("faults.panic_in", |s| {
            s.faults.panic_in = vec!["stock_gate".into()];
            s.internal.bind = addr("0.0.0.0:9090");
            s.admin.token = LONG.into();
        }),
        ("admin.token", |s| {
            s.internal.bind = addr("0.0.0.0:9090");
            s.admin.token = "short".into();
        }),
        ("internal.bind", |s| {
            (s.http.bind, s.internal.bind) = (addr("[::1]:80"), addr("[::1]:80"));
        }),
    ];

    pub fn check_alone(cases: &[Case]) {
        for (number, (key, change)) in cases.iter().enumerate() {
            assert_eq!(broken_by(change), [*key], "case {number}");
        }
    }

    #[test]
    fn each_rule_is_broken_alone_and_named() {
        check_alone(SINGLE);
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let keys = broken_by(|s| {
            s.namespace = String::new();
            s.http.bind = addr("0.0.0.0:8080");
            s.internal.bind = addr("0.0.0.0:9090");
            s.gate.batch_max = 0;
            s.log.filter = "=".into();
        });
        assert_eq!(
            keys,
            ["namespace", "http.bind", "internal.bind", "gate.batch_max", "log.filter"]
        );
    }

    #[test]
    fn reachable_listeners_are_allowed_with_jwt_and_a_token() {
        let keys = broken_by(|s| {
            s.http.bind = addr("0.0.0.0:8080");
            s.internal.bind = addr("0.0.0.0:9090");
            s.auth.mode = AuthMode::Jwt;
            s.auth.jwt_keys = JwtKeys::of_secret(LONG);
            s.admin.token = LONG.into();
        });
        assert!(keys.is_empty(), "{keys:?}");
    }

    #[test]
    fn fault_injection_on_loopback_is_allowed() {
        let keys = broken_by(|s| {
            s.faults.panic_in = vec!["stock_gate".into()];
            s.faults.panic_percent = 0.5;
        });
        assert!(keys.is_empty(), "{keys:?}");
    }
}
