//! The typed settings: one table of sections, keys, types and the rules of single numbers. Each
//! field is named as its key; `config/default.toml` has meaning, unit and default. No field has a
//! default here: a key missing there fails to load. A URL may contain a password: settings have no
//! `Debug`, and `redact_url` shows a URL.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use secrecy::SecretString;
use serde::Deserialize;

use super::access::{AuthMode, ChallengeKind, NamedToken};
use super::jwks::JwtKeys;
use super::kinds::{LogFormat, OutboxKind, PaymentBackend, Role, Tier};
use super::payment_rules::LatePayment;
use super::validate::{RuleCheck, wide};
use super::webhook_secret::{WebhookProfile, WebhookSecret};
use crate::net::Trust;
use crate::redis::scripts::codes::ITEMS_MAX_USIZE;
use crate::redis::transport::Durability;

/// RabbitMQ closes the channel of a delivery that is not acknowledged within this time, by default.
const CONSUMER_TIMEOUT_MS: u64 = 1_800_000;

/// Defines the sections: each key with its type, then its rules, which are methods of
/// [`RuleCheck`]. The rules see all settings under the name that the table begins with.
macro_rules! sections {
    ($all:ident; $($(#[$doc:meta])* $section:ident: $kind:ident {
        $($(#[$attr:meta])* $key:ident: $type:ty $(, $rule:ident($($arg:expr),*))*;)+
    })+) => {
        /// Everything that can be configured.
        #[derive(Clone, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            pub tier: Tier,
            pub role: Role,
            pub namespace: String,
            $(pub $section: $kind,)+
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $kind {
                $($(#[$attr])* pub $key: $type,)+
            }
        )+

        /// Checks the rules of the table.
        pub(super) fn check_numbers($all: &Settings, check: &mut RuleCheck) {
            $($($({
                let key = concat!(stringify!($section), ".", stringify!($key));
                check.$rule(key, wide($all.$section.$key), $($arg),*);
            })*)+)+
        }
    };
}

sections! { all;
    /// The public listener.
    http: HttpSettings {
        bind: SocketAddr;
        tls_cert_file: PathBuf;
        tls_key_file: PathBuf;
        /// The content of both. Not a key.
        #[serde(skip)]
        tls: Option<Arc<ServerConfig>>;
        workers: usize, range(..=1024, "is above 1024",
            "use 0 (one per core) or the number of cores");
        backlog: u32, positive();
        connections_max: usize, positive();
        body_max_bytes: usize, between(256..=393_216, "the default, 4096, suits most");
        keep_alive_ms: u64, positive();
        answer_deadline_ms: u64, positive();
        sales_refresh_ms: u64, positive(), range(
            ..=800_u64.saturating_sub(all.redis.sold_out_refresh_ms),
            "is above 800 with redis.sold_out_refresh_ms; buyers are promised stock numbers at \
             most 1 s old: their page and its reads take the rest",
            "lower one of the two");
        trusted_proxies: Vec<IpAddr>;
    }
    /// The internal listener.
    internal: InternalSettings {
        bind: SocketAddr;
        tls_cert_file: PathBuf;
        tls_key_file: PathBuf;
        /// The content of both. Not a key.
        #[serde(skip)]
        tls: Option<Arc<ServerConfig>>;
    }
    /// Access to the internal listener.
    admin: AdminSettings {
        token: SecretString;
        token_file: PathBuf;
        tokens_file: PathBuf;
        ca_file: PathBuf;
        /// The content of `tokens_file`. Not a key.
        #[serde(skip)]
        tokens: Vec<NamedToken>;
    }
    /// Authentication of buyers, and request ids.
    auth: AuthSettings {
        mode: AuthMode;
        jwt_secret_file: PathBuf;
        jwks_file: PathBuf;
        jwt_require_exp: bool;
        jwt_lifetime_max_s: u32;
        jwt_audience: String;
        jwt_issuer: String;
        signing_key_file: PathBuf;
        request_id_ttl_s: u64, positive();
        /// The content of `jwt_secret_file` and `jwks_file`. Not a key.
        #[serde(skip)]
        jwt_keys: JwtKeys;
        /// The content of `signing_key_file`. Not a key.
        #[serde(skip)]
        signing_key: Option<SecretString>;
    }
    /// Tickets, which sales may require, and the challenges that yield them.
    #[derive(Debug)]
    tickets: TicketSettings {
        challenges: Vec<ChallengeKind>;
        work_bits: u8, between(1..=32, "the default, 17, suits most");
        challenge_ttl_s: u32, between(10..=3_600, "the default, 120, suits most");
        ticket_ttl_s: u32, between(10..=86_400, "the default, 600, suits most");
    }
    /// Limits of what one caller, and all together, may do.
    #[derive(Debug)]
    limits: LimitSettings {
        buyer_per_second: u32, range(..=1_000, "is above 1000", "set 1000 or less; 0 = no limit");
        buyer_per_minute: u32, range(..=60_000, "is above 60000", "set 60000 or less");
        address_per_second: u32, range(..=10_000, "is above 10000", "set 0 (no limit) or less");
        in_flight_max: usize, positive();
        shared: bool;
    }
    /// The ledger, which stores orders.
    ledger: LedgerSettings {
        url: String;
        url_file: PathBuf;
        ca_file: PathBuf;
        /// For TLS: `ca_file`, or the authorities of the system. Not a key.
        #[serde(skip)]
        trust: Option<Trust>;
        readers: usize, between(1..=1_000, "the default suits most");
        writers: usize, between(1..=1_000, "the default suits most");
        job_queue_max: usize, between(1..=1_000_000, "the default suits most");
        busy_timeout_ms: u64, up_to("ledger.job_deadline_ms", all.ledger.job_deadline_ms);
        statement_timeout_ms: u64, positive();
        connect_timeout_ms: u64, positive();
        job_deadline_ms: u64, positive(), range(..=all.supervisor.stalled_after_ms / 2,
            "is more than half of supervisor.stalled_after_ms: with a slow ledger its writer would \
             count as stalled",
            "lower it, or raise supervisor.stalled_after_ms");
        cache_kib: u32, range(64..=4_194_304, "is not between 64 and 4194304 (4 GiB)",
            "the default, 16384 (16 MiB), suits most");
    }
    /// Redis, which counts units in tiers `gate` and `pipeline`.
    redis: RedisSettings {
        url: String;
        url_file: PathBuf;
        ca_file: PathBuf;
        /// For TLS: `ca_file`, or the authorities of the system. Not a key.
        #[serde(skip)]
        trust: Option<Trust>;
        durability: Durability;
        replicas_min: u32, positive();
        replicas_wait_ms: u64, positive();
        connect_timeout_ms: u64, positive();
        command_timeout_ms: u64, positive();
        user_timeout_ms: u64, positive();
        sold_out_refresh_ms: u64, positive();
    }
    /// The outbox, which queues accepted intents for the broker.
    outbox: OutboxSettings {
        kind: OutboxKind;
        entries_max: u64, positive();
        // The upper bound is the largest batch of a gate.
        envelope_max: usize, between(1..=512, "the default, 64, suits most");
    }
    /// The relay, which publishes outbox entries to the broker.
    relay: RelaySettings {
        workers: usize, between(1..=64, "the default, 4, suits most");
        claim_max: usize, between(1..=1000, "the default, 64, suits most");
        confirm_window: usize, positive();
        confirm_timeout_ms: u64, positive(), range(..=all.supervisor.stalled_after_ms / 2,
            "is more than half of supervisor.stalled_after_ms: with a slow broker the relay would \
             count as stalled, be replaced and publish again",
            "lower it, or raise supervisor.stalled_after_ms");
        attempts_max: u32, between(1..=255, "the default, 10, suits most");
        poll_min_ms: u64, positive(), up_to("relay.poll_max_ms", all.relay.poll_max_ms);
        poll_max_ms: u64;
        heartbeat_ttl_ms: u64, range(1000..,
            "is below 1000, and the entries of a slow process would be published twice",
            "set 1000 or more");
    }
    /// The broker.
    amqp: AmqpSettings {
        url: String;
        url_file: PathBuf;
        ca_file: PathBuf;
        /// For TLS: `ca_file`, or the authorities of the system. Not a key.
        #[serde(skip)]
        trust: Option<Trust>;
        queues: u16, between(1..=64,
            "one queue suits most; more help when one SKU is not the bottleneck");
        connect_timeout_ms: u64, positive();
        heartbeat_s: u16;
        reconnect_min_ms: u64, positive(),
            up_to("amqp.reconnect_max_ms", all.amqp.reconnect_max_ms);
        reconnect_max_ms: u64;
        deliveries_max: u32, positive();
    }
    /// The maintenance role: loading sales, rescuing claims, storing dead letters.
    maintenance: MaintenanceSettings {
        preload_ms: u64;
        every_ms: u64, positive(), range(..=all.maintenance.lease_ttl_ms / 3,
            "is more than a third of maintenance.lease_ttl_ms: one late renewal would lose the \
             lease",
            "lower it, or raise maintenance.lease_ttl_ms");
        lease_ttl_ms: u64;
        rescue_every_ms: u64, positive();
        dead_letters_max: u16, between(1..=1000,
            "the default, 64, suits most; each may have a mebibyte");
    }
    /// The reconciler, which compares Redis with the ledger.
    reconciler: ReconcilerSettings {
        after_ms: u64, range(1000..=60_000,
            "is not between 1000 and 60000: requests in flight would be looked up, or lost ones \
             late",
            "the default, 5000, suits most");
        recheck_ms: u64, range(..=60_000,
            "is more than 60000: a repair would come late",
            "the default, 2000, suits most");
    }
    /// Stock gates.
    gate: GateSettings {
        permits: usize;
        batch_max: usize, positive(), up_to("gate.permits", wide(all.gate.permits)),
            range(..=wide(ITEMS_MAX_USIZE),
                "is more than the 2000 that one call of a script takes", "set 2000 or less");
        resubmit_backoff_min_ms: u64, positive(),
            up_to("gate.resubmit_backoff_max_ms", all.gate.resubmit_backoff_max_ms);
        resubmit_backoff_max_ms: u64;
        reserve_attempts_max: u32, positive();
        resubmit_every_ms: u64, positive();
        resubmit_after_ms: u64;
    }
    /// The ledger writer and the order consumers.
    consumer: ConsumerSettings {
        permits: usize;
        batch_max: usize, positive(), up_to("consumer.permits", wide(all.consumer.permits));
        prefetch: u16, positive();
        attempts_max: u32, between(1..=11, "the default, 5, suits most");
        retry_backoff_min_ms: u64, positive(),
            up_to("consumer.retry_backoff_max_ms", all.consumer.retry_backoff_max_ms);
        retry_backoff_max_ms: u64,
            range(..=CONSUMER_TIMEOUT_MS >> all.consumer.attempts_max.min(11),
                "lets an order that fails wait longer, over all its attempts, than the 30 minutes \
                 after which RabbitMQ closes the channel",
                "lower it, or consumer.attempts_max");
    }
    /// Payments of orders.
    payment: PaymentSettings {
        provider: PaymentBackend;
        demo_public: bool;
        webhook_profile: WebhookProfile;
        webhook_secrets: Vec<String>;
        webhook_tolerance_s: u32, between(1..=3600, "the default, 300, suits most");
        paying_window_s: u32, between(1..=86_400, "the default, 300, suits most");
        extension_max_s: u32, between(1..=604_800, "the default, 900, suits most");
        calls_max: usize, positive();
        timeout_ms: u64, positive(), range(..=all.supervisor.stalled_after_ms / 2,
            "is more than half of supervisor.stalled_after_ms: with a slow provider the payment \
             timer would count as stalled",
            "lower it, or raise supervisor.stalled_after_ms");
        every_ms: u64, positive();
        batch: u32, between(1..=10_000, "the default, 500, suits most");
        clock_skew_max_ms: u64, between(1_000..=60_000, "the default, 5000, suits most");
        refund_attempts_max: u32, between(1..=1_000, "the default, 20, suits most");
        queue: bool;
        delay_queues_s: Vec<String>;
        late_payment: LatePayment;
        retake_within_s: u32, between(1..=3_600, "the default, 60, suits most");
        /// The secrets of `webhook_secrets`. Not a key.
        #[serde(skip)]
        webhook_keys: Vec<WebhookSecret>;
    }
    /// The feed of order events.
    events: EventSettings {
        exchange: bool;
    }
    /// Restarts of components that panic or stall.
    #[derive(Debug)]
    supervisor: SupervisorSettings {
        restarts_max: u32;
        restart_window_ms: u64, positive();
        backoff_min_ms: u64, positive(),
            up_to("supervisor.backoff_max_ms", all.supervisor.backoff_max_ms);
        backoff_max_ms: u64;
        heartbeat_ms: u64, positive(), range(..=all.supervisor.stalled_after_ms / 2,
            "is more than half of supervisor.stalled_after_ms: one late check would count as a \
             stall",
            "lower it, or raise supervisor.stalled_after_ms");
        stalled_after_ms: u64;
    }
    /// Graceful shutdown.
    shutdown: ShutdownSettings {
        deadline_ms: u64, positive();
        drain_ms: u64, range(..all.shutdown.deadline_ms,
            "leaves no time before shutdown.deadline_ms to settle work in flight",
            "lower it, or raise shutdown.deadline_ms");
    }
    /// Logging.
    log: LogSettings {
        filter: String;
        format: LogFormat;
    }
    /// Fault injection.
    faults: FaultSettings {
        panic_in: Vec<String>;
        panic_percent: f64;
    }
}

impl HttpSettings {
    /// Worker threads, with 0 replaced by the number of cores.
    pub fn workers_effective(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            n => n,
        }
    }
}

impl LedgerSettings {
    /// The database file, if the ledger is SQLite.
    pub fn sqlite_path(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite://").filter(|path| !path.is_empty()).map(Path::new)
    }
}
