//! What a gate works with.

use std::sync::Arc;

use crate::actors::ledger_writer::LedgerWriterHandle;
use crate::actors::outbox_relay::RelayHandle;
use crate::actors::stock_gate::directory::GateDirectory;
use crate::config::GateSettings;
use crate::domain::{BucketNo, Counting, Sku};
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::stock::{BucketKey, Stock};

/// What a gate does with the requests that its stock accepted.
#[derive(Clone)]
pub enum Dispatch {
    /// Brings them to the consumer; their buyers wait for the ledger.
    Consumer(LedgerWriterHandle),
    /// The stock has put them in the outbox, in the same step: their buyers hear `queued`, and the
    /// relays of this process, where it has any, are told.
    Outbox(Option<RelayHandle>),
}

/// What a gate works with; the same for every gate that follows it in its bucket.
#[derive(Clone)]
pub struct GateDeps {
    /// The SKU.
    pub sku: Arc<Sku>,
    /// The bucket.
    pub bucket: BucketNo,
    /// Where units are counted.
    pub stock: Arc<dyn Stock>,
    /// Whether the stock counts the units, or the ledger.
    pub counting: Counting,
    /// What becomes of accepted requests.
    pub handing: Dispatch,
    /// Sibling gates.
    pub directory: Arc<GateDirectory>,
    /// Limits and waits.
    pub settings: GateSettings,
    /// Whether the ledger is worth asking.
    pub breaker: Breaker,
    /// The time of sweeps.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

impl GateDeps {
    /// The bucket's key.
    pub fn key(&self) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: self.bucket }
    }

    pub(super) fn backoff(&self) -> Backoff {
        let settings = &self.settings;
        Backoff::new(settings.resubmit_backoff_min_ms, settings.resubmit_backoff_max_ms)
    }
}
