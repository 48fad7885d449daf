//! In-memory leases that expire by the test's clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use floodgate::lease::{Lease, LeaseGrant};
use floodgate::redis::transport::Error;
use floodgate::runtime::clock::SharedClock;
use parking_lot::Mutex;

use super::injected_faults::{Call, InjectedFaults, When};

/// Holder and expiry of each lease by name.
pub type Holders = Mutex<HashMap<String, (String, Instant)>>;

/// The leases as seen by one process.
#[derive(Debug, Clone)]
pub struct FakeLease {
    pub holders: Arc<Holders>,
    pub clock: SharedClock,
    pub faults: InjectedFaults,
}

#[async_trait]
impl Lease for FakeLease {
    async fn hold(&self, name: &str, holder: &str, ttl: Duration) -> Result<LeaseGrant, Error> {
        let failed = || Error::NotSent { reason: "on purpose".to_owned() };
        if self.faults.apply(Call::Hold, When::Before).await.is_some() {
            return Err(failed());
        }
        let now = self.clock.now();
        let grant = {
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
        match self.faults.apply(Call::Hold, When::After).await {
            Some(_) => Err(failed()),
            None => Ok(grant),
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
