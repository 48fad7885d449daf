//! Leases in memory, which end by a clock that the test moves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use floodgate::lease::{Error, Lease, LeaseGrant};
use floodgate::runtime::clock::SharedClock;
use parking_lot::Mutex;

use super::mishaps::{Call, Mishaps, When};

/// Who holds what, until when.
pub type Holders = Mutex<HashMap<String, (String, Instant)>>;

/// The leases as one process reaches them.
#[derive(Debug, Clone)]
pub struct FakeLease {
    pub holders: Arc<Holders>,
    pub clock: SharedClock,
    pub mishaps: Mishaps,
}

#[async_trait]
impl Lease for FakeLease {
    async fn hold(&self, name: &str, holder: &str, ttl: Duration) -> Result<LeaseGrant, Error> {
        let failed = || Error { name: name.to_owned(), reason: "on purpose".to_owned() };
        if self.mishaps.meet(Call::Hold, When::Before).await.is_some() {
            return Err(failed());
        }
        let now = self.clock.now();
        let held = {
            let mut holders = self.holders.lock();
            match holders.get(name) {
                Some((by, until)) if by != holder && now < *until => {
                    LeaseGrant::Taken { by: by.clone() }
                }
                _ => {
                    let until = now + ttl;
                    holders.insert(name.to_owned(), (holder.to_owned(), until));
                    LeaseGrant::Held { until }
                }
            }
        };
        match self.mishaps.meet(Call::Hold, When::After).await {
            Some(_) => Err(failed()),
            None => Ok(held),
        }
    }

    async fn release(&self, name: &str, holder: &str) -> Result<(), Error> {
        let mut holders = self.holders.lock();
        if holders.get(name).is_some_and(|(by, _)| by == holder) {
            holders.remove(name);
        }
        Ok(())
    }
}
