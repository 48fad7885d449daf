//! Which gate answers for which bucket, in this process.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::actors::stock_gate::StockGate;
use crate::actors::supervisor::supervised::Address;
use crate::domain::{BucketNo, SkuNo};
use crate::runtime::permits::Permits;

/// The way into one gate.
#[derive(Debug, Clone)]
pub struct GateAddress {
    /// How many requests may be inside.
    pub permits: Permits,
    /// Where the gate is now.
    pub address: Address<StockGate>,
}

/// All gates of this process; read without a lock.
#[derive(Debug, Default)]
pub struct GateDirectory {
    gates: ArcSwap<HashMap<SkuNo, Arc<[GateAddress]>>>,
}

impl GateDirectory {
    /// The gate of a bucket.
    #[must_use]
    pub fn gate(&self, sku: SkuNo, bucket: BucketNo) -> Option<GateAddress> {
        self.gates.load().get(&sku)?.get(usize::from(bucket.0)).cloned()
    }

    /// Whether the SKU has gates.
    #[must_use]
    pub fn has(&self, sku: SkuNo) -> bool {
        self.gates.load().contains_key(&sku)
    }

    /// The gates of one SKU, in bucket order.
    #[must_use]
    pub fn of_sku(&self, sku: SkuNo) -> Arc<[GateAddress]> {
        self.gates.load().get(&sku).cloned().unwrap_or_else(|| Arc::from(Vec::new()))
    }

    /// Every gate.
    #[must_use]
    pub fn all(&self) -> Vec<GateAddress> {
        self.gates.load().values().flat_map(|doors| doors.iter().cloned()).collect()
    }

    /// Enters the gates of one SKU.
    pub fn put(&self, sku: SkuNo, doors: Vec<GateAddress>) {
        let doors: Arc<[GateAddress]> = doors.into();
        self.gates.rcu(|old| {
            let mut new = HashMap::clone(old);
            new.insert(sku, Arc::clone(&doors));
            new
        });
    }

    /// Requests inside all gates.
    #[must_use]
    pub fn num_inside(&self) -> usize {
        self.gates
            .load()
            .values()
            .flat_map(|doors| doors.iter())
            .map(|d| d.permits.num_taken())
            .sum()
    }
}
