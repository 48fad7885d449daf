//! Dependencies of a gate.

use std::sync::Arc;

use crate::actors::ledger_writer::LedgerWriterHandle;
use crate::actors::outbox_relay::RelayHandle;
use crate::actors::stock_gate::GateDirectory;
use crate::config::GateSettings;
use crate::domain::{BucketKey, BucketNo, Counting, Sku};
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::stock::Stock;

/// Where a gate sends the requests that its stock accepted.
#[derive(Clone)]
pub enum Dispatch {
    /// To the ledger writer; the buyers wait for the ledger.
    LedgerWriter(LedgerWriterHandle),
    /// The stock writes them to the outbox in the same atomic step. The buyers are answered
    /// `queued`, and the relays of this process, if any, are notified.
    Outbox(Option<RelayHandle>),
}

/// Dependencies of a gate; shared by all incarnations of the gate of a bucket.
#[derive(Clone)]
pub struct GateDeps {
    pub sku: Arc<Sku>,
    pub bucket: BucketNo,
    pub stock: Arc<dyn Stock>,
    /// Whether the stock counts the units, or the ledger.
    pub counting: Counting,
    pub dispatch: Dispatch,
    /// The sibling gates.
    pub directory: Arc<GateDirectory>,
    pub settings: GateSettings,
    /// Open while the ledger fails.
    pub breaker: Breaker,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl GateDeps {
    pub fn key(&self) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: self.bucket }
    }

    pub(super) fn backoff(&self) -> Backoff {
        let settings = &self.settings;
        Backoff::new(settings.resubmit_backoff_min_ms, settings.resubmit_backoff_max_ms)
    }
}
