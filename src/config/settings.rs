//! The typed settings: one table of sections, keys, types and the rules of single numbers. Each
//! field is named as its key; `config/default.toml` has meaning, unit and default. No field has a
//! default here: a key missing there fails to load. A URL may contain a password: settings have no
//! `Debug`, and `redact_url` shows a URL.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::validate::{RuleCheck, wide};
use super::webhook_secret::{WebhookProfile, WebhookSecret};
use crate::redis::scripts::codes::ITEMS_MAX_USIZE;
use crate::redis::transport::Durability;

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
        workers: usize, range(..=1024, "is above 1024",
            "use 0 (one per core) or the number of cores");
        backlog: u32, positive();
        connections_max: usize, positive();
        body_max_bytes: usize, range(256.., "is too small for a purchase",
            "set 256 or more; the default is 4096");
        keep_alive_ms: u64, positive();
        answer_deadline_ms: u64, positive();
        sales_refresh_ms: u64, positive(), range(..=1000,
            "is above 1000; buyers are promised stock numbers at most 1 s old",
            "set 1000 or less");
    }
    /// The internal listener.
    internal: InternalSettings {
        bind: SocketAddr;
    }
    /// Access to the internal listener.
    admin: AdminSettings {
        token: SecretString;
        token_file: PathBuf;
    }
    /// Authentication of buyers, and request ids.
    auth: AuthSettings {
        mode: AuthMode;
        jwt_secret_file: PathBuf;
        signing_key_file: PathBuf;
        request_id_ttl_s: u64, positive();
        /// The content of `jwt_secret_file`. Not a key.
        #[serde(skip)]
        jwt_secret: Option<SecretString>;
        /// The content of `signing_key_file`. Not a key.
        #[serde(skip)]
        signing_key: Option<SecretString>;
    }
    /// The ledger, which stores orders.
    ledger: LedgerSettings {
        url: String;
        readers: usize, positive();
        writers: usize, positive();
        job_queue_max: usize, positive();
        busy_timeout_ms: u64, up_to("ledger.job_deadline_ms", all.ledger.job_deadline_ms);
        statement_timeout_ms: u64, positive();
        connect_timeout_ms: u64, positive();
        job_deadline_ms: u64, positive();
        cache_kib: u32, range(64..=4_194_304, "is not between 64 and 4194304 (4 GiB)",
            "the default, 16384 (16 MiB), suits most");
    }
    /// Redis, which counts units in tiers `gate` and `pipeline`.
    redis: RedisSettings {
        url: String;
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
        attempts_max: u32, positive();
        retry_backoff_min_ms: u64, positive(),
            up_to("consumer.retry_backoff_max_ms", all.consumer.retry_backoff_max_ms);
        retry_backoff_max_ms: u64;
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

/// The components that a purchase passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Stock counted in memory, orders straight to the ledger.
    Memory,
    /// Stock counted by the database.
    Ledger,
    /// Stock counted by Redis, orders straight to the ledger.
    Gate,
    /// Stock counted by Redis, orders through outbox and broker.
    Pipeline,
}

/// The part of the pipeline that a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    All,
    /// HTTP and gates.
    Api,
    /// Outbox to broker.
    Relay,
    /// Broker to ledger.
    Consumer,
    /// Loading buckets, rescuing abandoned claims, storing dead letters, reconciling.
    #[serde(alias = "keeper")]
    Maintenance,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Role {
    /// Whether it runs the public listener and the gates.
    #[must_use]
    pub const fn sells(self) -> bool {
        matches!(self, Self::All | Self::Api)
    }

    /// Whether it publishes accepted intents to the broker.
    #[must_use]
    pub const fn relays(self) -> bool {
        matches!(self, Self::All | Self::Relay)
    }

    /// Whether it writes delivered intents to the ledger.
    #[must_use]
    pub const fn consumes(self) -> bool {
        matches!(self, Self::All | Self::Consumer)
    }

    /// Whether it loads buckets, rescues abandoned claims, stores dead letters and reconciles.
    #[must_use]
    pub const fn maintains(self) -> bool {
        matches!(self, Self::All | Self::Maintenance)
    }
}

/// How a buyer authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// `X-Buyer-Id`, unverified: for development and tests.
    Header,
    /// HS256 bearer token.
    Jwt,
}

/// The payment provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PaymentBackend {
    /// Orders cannot be paid here.
    None,
    /// The provider of this process, for demonstrations and tests.
    Demo,
}

/// The Redis structure that queues accepted intents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OutboxKind {
    /// A list, and a private list per relay worker.
    List,
    /// A stream with a consumer group.
    Stream,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    /// One JSON object per line.
    Json,
}

impl HttpSettings {
    /// Worker threads, with 0 replaced by the number of cores.
    #[must_use]
    pub fn workers_effective(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            n => n,
        }
    }
}

impl AdminSettings {
    /// The token that callers must present; `None` if unset, which requires a loopback listener.
    #[must_use]
    pub fn bearer(&self) -> Option<&SecretString> {
        (!self.token.expose_secret().is_empty()).then_some(&self.token)
    }
}

impl LedgerSettings {
    /// The database file, if the ledger is SQLite.
    #[must_use]
    pub fn sqlite_path(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite://").filter(|path| !path.is_empty()).map(Path::new)
    }
}
