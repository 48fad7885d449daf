//! Values of settings that are one of a few words.

use serde::{Deserialize, Serialize};

use crate::domain::named::named_enum;

named_enum! {
    /// The components that a purchase passes.
    Tier {
        /// Stock counted in memory, orders straight to the ledger.
        Memory => "memory",
        /// Stock counted by the database.
        Ledger => "ledger",
        /// Stock counted by Redis, orders straight to the ledger.
        Gate => "gate",
        /// Stock counted by Redis, orders through outbox and broker.
        Pipeline => "pipeline",
    }
}

named_enum! {
    /// The part of the pipeline that a process runs.
    Role {
        All => "all",
        /// HTTP and gates.
        Api => "api",
        /// Outbox to broker.
        Relay => "relay",
        /// Broker to ledger.
        Consumer => "consumer",
        /// Loading buckets, rescuing abandoned claims, storing dead letters, reconciling.
        #[serde(alias = "keeper")]
        Maintenance => "maintenance",
    }
}

impl Role {
    /// Whether it runs the public listener and the gates.
    pub const fn sells(self) -> bool {
        matches!(self, Self::All | Self::Api)
    }

    /// Whether it publishes accepted intents to the broker.
    pub const fn relays(self) -> bool {
        matches!(self, Self::All | Self::Relay)
    }

    /// Whether it writes delivered intents to the ledger.
    pub const fn consumes(self) -> bool {
        matches!(self, Self::All | Self::Consumer)
    }

    /// Whether it loads buckets, rescues abandoned claims, stores dead letters and reconciles.
    pub const fn maintains(self) -> bool {
        matches!(self, Self::All | Self::Maintenance)
    }
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
