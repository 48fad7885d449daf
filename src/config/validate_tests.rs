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
    ("http.trusted_proxies", |s| s.http.trusted_proxies = vec![[192, 0, 2, 1].into()]),
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
    assert_eq!(keys, ["namespace", "http.bind", "internal.bind", "gate.batch_max", "log.filter"]);
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
