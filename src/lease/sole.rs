//! Leases of an installation with one process: its ledger admits no second one.

use std::time::Duration;

use async_trait::async_trait;

use super::{Error, Lease, LeaseGrant};
use crate::runtime::clock::SharedClock;

/// Grants every lease.
#[derive(Debug)]
pub struct SoleLease {
    clock: SharedClock,
}

impl SoleLease {
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self { clock }
    }
}

#[async_trait]
impl Lease for SoleLease {
    async fn hold(&self, _name: &str, _holder: &str, ttl: Duration) -> Result<LeaseGrant, Error> {
        Ok(LeaseGrant::Held { until: self.clock.now() + ttl })
    }

    async fn release(&self, _name: &str, _holder: &str) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::runtime::clock::{Clock, ManualClock};

    #[test]
    fn a_lease_is_held_until_its_ttl_is_over() {
        let clock = Arc::new(ManualClock::new(0));
        let lease = SoleLease::new(clock.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ttl = Duration::from_secs(1);
        let hold = runtime.block_on(lease.hold("loader", "one", ttl)).unwrap();
        assert!(hold.is_held(clock.now()));
        clock.advance(ttl);
        assert!(!hold.is_held(clock.now()));
        let taken = LeaseGrant::Taken { by: "two".to_owned() };
        assert!(!taken.is_held(clock.now()));
        runtime.block_on(lease.release("loader", "one")).unwrap();
    }
}
