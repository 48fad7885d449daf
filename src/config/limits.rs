//! Rules about numbers: values that must be positive, ranges, and pairs with an order.

use std::ops::RangeInclusive;

use super::error::ConfigFault;
use super::settings::Settings;
use crate::redis::scripts::codes::ITEMS_MAX_USIZE;

/// Collects the faults of broken rules.
#[derive(Default)]
pub(super) struct RuleCheck {
    pub faults: Vec<ConfigFault>,
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

    fn up_to(&mut self, key: &str, value: u64, (other_key, most): (&str, u64)) {
        let problem = format!("{value} is larger than {other_key} = {most}");
        self.require(value <= most, key, &problem, &format!("lower it, or raise {other_key}"));
    }

    /// `more` is appended to the problem after the bounds.
    fn within(
        &mut self,
        key: &str,
        value: u64,
        bounds: RangeInclusive<u64>,
        more: &str,
        remedy: &str,
    ) {
        let problem = format!("is not between {} and {}{more}", bounds.start(), bounds.end());
        self.require(bounds.contains(&value), key, &problem, remedy);
    }

    fn at_least(&mut self, key: &str, value: u64, least: u64, problem: &str, remedy: &str) {
        self.require(value >= least, key, problem, remedy);
    }

    fn at_most(&mut self, key: &str, value: u64, most: u64, problem: &str, remedy: &str) {
        self.require(value <= most, key, problem, remedy);
    }

    fn below(&mut self, key: &str, value: u64, limit: u64, problem: &str, remedy: &str) {
        self.require(value < limit, key, problem, remedy);
    }
}

fn wide(value: impl TryInto<u64>) -> u64 {
    value.try_into().unwrap_or(u64::MAX)
}

/// A key's name and its value.
macro_rules! key {
    ($settings:ident.$section:ident.$key:ident) => {
        (concat!(stringify!($section), ".", stringify!($key)), wide($settings.$section.$key))
    };
}

/// Generates `check` from a table of keys and their rules.
macro_rules! rules {
    ($settings:ident; $($section:ident.$key:ident: $($rule:ident($($arg:expr),*)),+;)+) => {
        pub(super) fn check($settings: &Settings, check: &mut RuleCheck) {
            $($({
                let (key, value) = key!($settings.$section.$key);
                check.$rule(key, value, $($arg),*);
            })+)+
        }
    };
}

rules! { settings;
    http.workers: at_most(1024, "is above 1024",
        "use 0 (one per core) or the number of cores");
    http.backlog: positive();
    http.connections_max: positive();
    http.body_max_bytes: at_least(256, "is too small for a purchase",
        "set 256 or more; the default is 4096");
    http.keep_alive_ms: positive();
    http.answer_deadline_ms: positive();
    http.sales_refresh_ms: positive(),
        at_most(1000, "is above 1000; buyers are promised stock numbers at most 1 s old",
            "set 1000 or less");

    ledger.readers: positive();
    ledger.writers: positive();
    ledger.statement_timeout_ms: positive();
    ledger.connect_timeout_ms: positive();
    ledger.job_queue_max: positive();
    ledger.job_deadline_ms: positive();
    ledger.busy_timeout_ms: up_to(key!(settings.ledger.job_deadline_ms));
    ledger.cache_kib: within(64..=4_194_304, " (4 GiB)",
        "the default, 16384 (16 MiB), suits most");

    redis.replicas_min: positive();
    redis.replicas_wait_ms: positive();
    redis.connect_timeout_ms: positive();
    redis.command_timeout_ms: positive();
    redis.user_timeout_ms: positive();
    redis.sold_out_refresh_ms: positive();
    maintenance.every_ms: positive(), at_most(settings.maintenance.lease_ttl_ms / 3,
        "is more than a third of maintenance.lease_ttl_ms: one late renewal would lose the lease",
        "lower it, or raise maintenance.lease_ttl_ms");

    gate.batch_max: positive(), up_to(key!(settings.gate.permits)), at_most(wide(ITEMS_MAX_USIZE),
        "is more than the 2000 that one call of a script takes", "set 2000 or less");
    gate.resubmit_backoff_min_ms: positive(), up_to(key!(settings.gate.resubmit_backoff_max_ms));
    gate.reserve_attempts_max: positive();
    gate.resubmit_every_ms: positive();
    consumer.batch_max: positive(), up_to(key!(settings.consumer.permits));
    consumer.attempts_max: positive();
    consumer.retry_backoff_min_ms: positive(), up_to(key!(settings.consumer.retry_backoff_max_ms));

    outbox.entries_max: positive();
    // The upper bound is the largest batch of a gate.
    outbox.envelope_max: within(1..=512, "", "the default, 64, suits most");
    relay.workers: within(1..=64, "", "the default, 4, suits most");
    relay.claim_max: within(1..=1000, "", "the default, 64, suits most");
    relay.confirm_window: positive();
    relay.confirm_timeout_ms: positive();
    relay.attempts_max: within(1..=255, "", "the default, 10, suits most");
    relay.poll_min_ms: positive(), up_to(key!(settings.relay.poll_max_ms));
    relay.heartbeat_ttl_ms: at_least(1000,
        "is below 1000, and the entries of a slow process would be published twice",
        "set 1000 or more");
    maintenance.rescue_every_ms: positive();
    reconciler.after_ms: within(1000..=60_000,
        ": requests in flight would be looked up, or lost ones late",
        "the default, 5000, suits most");
    maintenance.dead_letters_max: within(1..=1000, "",
        "the default, 64, suits most; each may have a mebibyte");
    consumer.prefetch: positive();
    amqp.queues: within(1..=64, "",
        "one queue suits most; more help when one SKU is not the bottleneck");
    amqp.connect_timeout_ms: positive();
    amqp.reconnect_min_ms: positive(), up_to(key!(settings.amqp.reconnect_max_ms));
    amqp.deliveries_max: positive();

    supervisor.restart_window_ms: positive();
    supervisor.backoff_min_ms: positive(), up_to(key!(settings.supervisor.backoff_max_ms));
    supervisor.heartbeat_ms: positive(), at_most(settings.supervisor.stalled_after_ms / 2,
        "is more than half of supervisor.stalled_after_ms: one late check would count as a \
         stall",
        "lower it, or raise supervisor.stalled_after_ms");
    relay.confirm_timeout_ms: at_most(settings.supervisor.stalled_after_ms / 2,
        "is more than half of supervisor.stalled_after_ms: with a slow broker the relay would \
         count as stalled, be replaced and publish again",
        "lower it, or raise supervisor.stalled_after_ms");
    shutdown.deadline_ms: positive();
    shutdown.drain_ms: below(settings.shutdown.deadline_ms,
        "leaves no time before shutdown.deadline_ms to settle work in flight",
        "lower it, or raise shutdown.deadline_ms");
}
