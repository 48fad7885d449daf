//! Rules about numbers: bounds that may not be zero, and pairs that have an order.

use super::error::Fault;
use super::settings::Settings;

/// Collects broken rules.
#[derive(Default)]
pub(super) struct Check {
    pub faults: Vec<Fault>,
}

impl Check {
    pub fn require(&mut self, holds: bool, key: &str, problem: &str, remedy: &str) {
        if !holds {
            self.faults.push(Fault::new(key, problem, remedy));
        }
    }

    pub fn positive(&mut self, key: &str, value: u64) {
        self.require(value >= 1, key, "is 0", "set 1 or more");
    }

    pub fn ordered(&mut self, low: (&str, u64), high: (&str, u64)) {
        let problem = format!("{} is larger than {} = {}", low.1, high.0, high.1);
        let remedy = format!("lower it, or raise {}", high.0);
        self.require(low.1 <= high.1, low.0, &problem, &remedy);
    }
}

/// All rules about numbers.
pub(super) fn check(settings: &Settings, check: &mut Check) {
    http(settings, check);
    ledger(settings, check);
    redis_and_keeper(settings, check);
    gate_and_consumer(settings, check);
    pipeline(settings, check);
    supervisor_and_shutdown(settings, check);
}

/// Most orders in one entry: more than any gate decides in one step would mean nothing.
const ENVELOPE_MAX: usize = 512;

fn pipeline(settings: &Settings, check: &mut Check) {
    let (outbox, relay, amqp) = (&settings.outbox, &settings.relay, &settings.amqp);
    check.positive("outbox.entries_max", outbox.entries_max);
    check.require(
        (1..=ENVELOPE_MAX).contains(&outbox.envelope_max),
        "outbox.envelope_max",
        "is not between 1 and 512",
        "the default, 64, suits most",
    );
    check.require(
        (1..=64).contains(&relay.workers),
        "relay.workers",
        "is not between 1 and 64",
        "the default, 4, suits most",
    );
    check.require(
        (1..=1000).contains(&relay.claim_max),
        "relay.claim_max",
        "is not between 1 and 1000",
        "the default, 64, suits most",
    );
    check.positive("relay.confirm_window", wide(relay.confirm_window));
    check.positive("relay.confirm_timeout_ms", relay.confirm_timeout_ms);
    check.require(
        (1..=255).contains(&relay.attempts_max),
        "relay.attempts_max",
        "is not between 1 and 255",
        "the default, 10, suits most",
    );
    check.positive("relay.poll_min_ms", relay.poll_min_ms);
    check.ordered(
        ("relay.poll_min_ms", relay.poll_min_ms),
        ("relay.poll_max_ms", relay.poll_max_ms),
    );
    check.require(
        relay.lease_ttl_ms >= 1000,
        "relay.lease_ttl_ms",
        "is below 1000, and a process that is only slow would be taken for dead",
        "set 1000 or more",
    );
    check.positive("keeper.rescue_every_ms", settings.keeper.rescue_every_ms);
    check.positive("keeper.stray_after_ms", settings.keeper.stray_after_ms);
    check.require(
        (1..=1000).contains(&settings.keeper.dead_letters_max),
        "keeper.dead_letters_max",
        "is not between 1 and 1000",
        "the default, 64, suits most; each may have a mebibyte",
    );
    check.positive("consumer.prefetch", u64::from(settings.consumer.prefetch));
    check.require(
        (1..=64).contains(&amqp.queues),
        "amqp.queues",
        "is not between 1 and 64",
        "one queue suits most; more help when one SKU is not the bottleneck",
    );
    check.positive("amqp.connect_timeout_ms", amqp.connect_timeout_ms);
    check.positive("amqp.reconnect_min_ms", amqp.reconnect_min_ms);
    check.ordered(
        ("amqp.reconnect_min_ms", amqp.reconnect_min_ms),
        ("amqp.reconnect_max_ms", amqp.reconnect_max_ms),
    );
    check.positive("amqp.deliveries_max", u64::from(amqp.deliveries_max));
    check.require(
        amqp.retry_delays_ms.len() <= 8 && !amqp.retry_delays_ms.contains(&0),
        "amqp.retry_delays_ms",
        "has more than 8 delays, or one of 0",
        "the default, [1000, 5000, 30000], suits most",
    );
}

fn http(settings: &Settings, check: &mut Check) {
    let http = &settings.http;
    check.require(
        http.workers <= 1024,
        "http.workers",
        "is above 1024",
        "use 0 (one per core) or the number of cores",
    );
    check.positive("http.backlog", u64::from(http.backlog));
    check.positive("http.connections_max", wide(http.connections_max));
    check.require(
        http.body_max_bytes >= 256,
        "http.body_max_bytes",
        "is too small for a purchase",
        "set 256 or more; the default is 4096",
    );
    check.positive("http.keep_alive_ms", http.keep_alive_ms);
    check.positive("http.answer_deadline_ms", http.answer_deadline_ms);
    check.positive("http.sales_refresh_ms", http.sales_refresh_ms);
    check.require(
        http.sales_refresh_ms <= 1000,
        "http.sales_refresh_ms",
        "is above 1000; buyers are promised stock numbers at most 1 s old",
        "set 1000 or less",
    );
}

fn ledger(settings: &Settings, check: &mut Check) {
    let ledger = &settings.ledger;
    check.positive("ledger.readers", wide(ledger.readers));
    check.positive("ledger.writers", wide(ledger.writers));
    check.positive("ledger.statement_timeout_ms", ledger.statement_timeout_ms);
    check.positive("ledger.connect_timeout_ms", ledger.connect_timeout_ms);
    check.positive("ledger.job_queue_max", wide(ledger.job_queue_max));
    check.positive("ledger.job_deadline_ms", ledger.job_deadline_ms);
    check.ordered(
        ("ledger.busy_timeout_ms", ledger.busy_timeout_ms),
        ("ledger.job_deadline_ms", ledger.job_deadline_ms),
    );
    check.require(
        (64..=4_194_304).contains(&ledger.cache_kib),
        "ledger.cache_kib",
        "is not between 64 and 4194304 (4 GiB)",
        "the default, 16384 (16 MiB), suits most",
    );
}

fn redis_and_keeper(settings: &Settings, check: &mut Check) {
    let redis = &settings.redis;
    check.positive("redis.replicas_min", u64::from(redis.replicas_min));
    check.positive("redis.replicas_wait_ms", redis.replicas_wait_ms);
    check.positive("redis.connect_timeout_ms", redis.connect_timeout_ms);
    check.positive("redis.command_timeout_ms", redis.command_timeout_ms);
    check.positive("redis.user_timeout_ms", redis.user_timeout_ms);
    check.positive("redis.sold_out_refresh_ms", redis.sold_out_refresh_ms);
    let keeper = &settings.keeper;
    check.positive("keeper.every_ms", keeper.every_ms);
    check.require(
        keeper.every_ms.saturating_mul(3) <= keeper.lease_ttl_ms,
        "keeper.every_ms",
        "is more than a third of keeper.lease_ttl_ms: one late renewal would lose the lease",
        "lower it, or raise keeper.lease_ttl_ms",
    );
}

fn gate_and_consumer(settings: &Settings, check: &mut Check) {
    let gate = &settings.gate;
    check.positive("gate.batch_max", wide(gate.batch_max));
    check.ordered(("gate.batch_max", wide(gate.batch_max)), ("gate.permits", wide(gate.permits)));
    check.positive("gate.resubmit_backoff_min_ms", gate.resubmit_backoff_min_ms);
    check.ordered(
        ("gate.resubmit_backoff_min_ms", gate.resubmit_backoff_min_ms),
        ("gate.resubmit_backoff_max_ms", gate.resubmit_backoff_max_ms),
    );
    check.positive("gate.ask_attempts_max", u64::from(gate.ask_attempts_max));
    check.positive("gate.sweep_every_ms", gate.sweep_every_ms);

    let consumer = &settings.consumer;
    check.positive("consumer.batch_max", wide(consumer.batch_max));
    check.ordered(
        ("consumer.batch_max", wide(consumer.batch_max)),
        ("consumer.permits", wide(consumer.permits)),
    );
    check.positive("consumer.attempts_max", u64::from(consumer.attempts_max));
    check.positive("consumer.retry_backoff_min_ms", consumer.retry_backoff_min_ms);
    check.ordered(
        ("consumer.retry_backoff_min_ms", consumer.retry_backoff_min_ms),
        ("consumer.retry_backoff_max_ms", consumer.retry_backoff_max_ms),
    );
}

fn supervisor_and_shutdown(settings: &Settings, check: &mut Check) {
    let supervisor = &settings.supervisor;
    check.positive("supervisor.restart_window_ms", supervisor.restart_window_ms);
    check.positive("supervisor.backoff_min_ms", supervisor.backoff_min_ms);
    check.ordered(
        ("supervisor.backoff_min_ms", supervisor.backoff_min_ms),
        ("supervisor.backoff_max_ms", supervisor.backoff_max_ms),
    );
    check.positive("supervisor.heartbeat_ms", supervisor.heartbeat_ms);
    let half_of_a_stall = |ms: u64| ms.saturating_mul(2) <= supervisor.stalled_after_ms;
    check.require(
        half_of_a_stall(supervisor.heartbeat_ms),
        "supervisor.heartbeat_ms",
        "is more than half of supervisor.stalled_after_ms: one late look would count as a stall",
        "lower it, or raise supervisor.stalled_after_ms",
    );
    check.require(
        half_of_a_stall(settings.relay.confirm_timeout_ms),
        "relay.confirm_timeout_ms",
        "is more than half of supervisor.stalled_after_ms: a broker that is slow would count as \
         a stalled relay, which is replaced and sends again",
        "lower it, or raise supervisor.stalled_after_ms",
    );

    let shutdown = &settings.shutdown;
    check.positive("shutdown.deadline_ms", shutdown.deadline_ms);
    check.require(
        shutdown.drain_ms < shutdown.deadline_ms,
        "shutdown.drain_ms",
        "leaves no time before shutdown.deadline_ms to settle work in hand",
        "lower it, or raise shutdown.deadline_ms",
    );
}

fn wide(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
