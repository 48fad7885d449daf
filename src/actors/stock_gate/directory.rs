//! The gates of this process, by SKU and bucket.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::actors::stock_gate::StockGate;
use crate::actors::supervisor::supervised::Address;
use crate::domain::{BucketNo, SkuNo};
use crate::runtime::permits::Permits;

/// Address of one gate, and the permits to send it requests.
#[derive(Debug, Clone)]
pub struct GateAddress {
    /// Bound the requests inside the gate.
    pub permits: Permits,
    pub address: Address<StockGate>,
}

/// All gates of this process; read without a lock.
#[derive(Debug, Default)]
pub struct GateDirectory {
    gates: ArcSwap<HashMap<SkuNo, Arc<[GateAddress]>>>,
}

impl GateDirectory {
    #[must_use]
    pub fn gate(&self, sku: SkuNo, bucket: BucketNo) -> Option<GateAddress> {
        self.gates.load().get(&sku)?.get(usize::from(bucket.0)).cloned()
    }

    /// Whether the SKU has gates in this process.
    #[must_use]
    pub fn has(&self, sku: SkuNo) -> bool {
        self.gates.load().contains_key(&sku)
    }

    /// The gates of one SKU, in bucket order; empty without gates.
    #[must_use]
    pub fn of_sku(&self, sku: SkuNo) -> Arc<[GateAddress]> {
        self.gates.load().get(&sku).cloned().unwrap_or_else(|| Arc::from(Vec::new()))
    }

    #[must_use]
    pub fn all(&self) -> Vec<GateAddress> {
        self.gates.load().values().flat_map(|gates| gates.iter().cloned()).collect()
    }

    /// Inserts the gates of one SKU, in bucket order.
    pub fn put(&self, sku: SkuNo, gates: Vec<GateAddress>) {
        let gates: Arc<[GateAddress]> = gates.into();
        self.gates.rcu(|old| {
            let mut new = HashMap::clone(old);
            new.insert(sku, Arc::clone(&gates));
            new
        });
    }

    /// Requests inside all gates.
    #[must_use]
    pub fn num_inside(&self) -> usize {
        self.gates
            .load()
            .values()
            .flat_map(|gates| gates.iter())
            .map(|gate| gate.permits.num_taken())
            .sum()
    }
}
