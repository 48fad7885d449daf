//! The current topology: which master has which key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::url::{RedisTopology, ServerAddress};
use super::{ConnectionOptions, Error, cluster, sentinel};
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::{Expirable, SingleFlight, ValueStatus};

/// Hash slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// Sentinels are polled this often even without an error: a replaced master still accepts writes
/// while it is cut off from the sentinels but not from this process.
const SENTINEL_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Counts requests to read the topology again. Shared by all connections.
#[derive(Debug, Default)]
pub(super) struct RefreshRequests(AtomicU64);

impl RefreshRequests {
    /// Requests a read: an error suggests that the masters have changed.
    pub(super) fn request(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Which server has which keys, as of one read.
#[derive(Debug)]
pub(super) struct SlotMap {
    /// Sorted.
    pub(super) masters: Vec<ServerAddress>,
    /// First slot, last slot and their master; one range if one master has every key.
    ranges: Vec<(u16, u16, ServerAddress)>,
    pub(super) made_at: Instant,
    /// Refresh requests counted before the topology was read.
    refreshes_before: u64,
    /// A map that stayed valid this long is replaced without waiting.
    proven_after: Duration,
    refreshes: Arc<RefreshRequests>,
}

impl SlotMap {
    /// The master of this key.
    ///
    /// # Errors
    /// No master has the slot; the topology is then read again.
    pub(super) fn master_of(&self, key: &[u8]) -> Result<&ServerAddress, Error> {
        let slot = slot_of(key);
        let found = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let Some((_, _, node)) = found else {
            self.refreshes.request();
            return Err(Error::not_sent(format!("no master of the cluster has slot {slot}")));
        };
        Ok(node)
    }
}

impl Expirable for Arc<SlotMap> {
    type Error = Error;

    fn not_attempted(reason: &str) -> Error {
        Error::not_sent(reason)
    }

    fn status(&self) -> ValueStatus<Error> {
        if self.refreshes_before == self.refreshes.count() {
            return ValueStatus::Usable;
        }
        let proven = now_monotonic() - self.made_at >= self.proven_after;
        ValueStatus::Expired { proven, why: Error::not_sent("the topology must be read again") }
    }
}

/// Reads the topology, and reads it again on request.
pub(super) struct MasterRouter {
    options: Arc<ConnectionOptions>,
    refreshes: Arc<RefreshRequests>,
    flight: Arc<SingleFlight<Arc<SlotMap>>>,
}

impl MasterRouter {
    pub(super) fn new(
        options: Arc<ConnectionOptions>,
        refreshes: Arc<RefreshRequests>,
    ) -> Arc<Self> {
        let pace = Backoff::between(options.reconnect_min, options.reconnect_max);
        Arc::new(Self { options, refreshes, flight: SingleFlight::new(pace) })
    }

    /// The current map, cheap enough for each call. If the topology cannot be read again, the last
    /// known map.
    pub(super) async fn slot_map(self: &Arc<Self>, io: &Handle) -> Result<Arc<SlotMap>, Error> {
        let read = |failures| self.clone().read(failures);
        match self.flight.get(io, read).await {
            Ok(map) => {
                let has_sentinels =
                    matches!(self.options.url.topology, RedisTopology::Sentinel { .. });
                if has_sentinels && now_monotonic() - map.made_at >= SENTINEL_POLL_INTERVAL {
                    self.flight.renew(io, read);
                }
                Ok(map)
            }
            Err(error) => self.flight.last().ok_or(error),
        }
    }

    async fn read(self: Arc<Self>, failures: u32) -> Result<Arc<SlotMap>, Error> {
        let old = self.flight.last();
        let refreshes_before = self.refreshes.count();
        let every_slot = |node: ServerAddress| vec![(0, SLOTS - 1, node)];
        let found = match &self.options.url.topology {
            RedisTopology::Single(node) => Ok(every_slot(node.clone())),
            RedisTopology::Sentinel { sentinels, master } => {
                sentinel::find_master(&self.options, sentinels, master).await.map(every_slot)
            }
            RedisTopology::Cluster(seeds) => {
                let known = old.as_ref().map(|old| old.masters.as_slice()).unwrap_or_default();
                cluster::find_masters(&self.options, seeds, known).await
            }
        };
        let ranges = found.map_err(|reason| {
            if failures == 0 {
                tracing::warn!(reason, "redis masters not found, retrying");
            } else {
                tracing::debug!(reason, failures, "redis masters not found");
            }
            Error::not_sent(reason)
        })?;
        let masters: BTreeSet<_> = ranges.iter().map(|(_, _, node)| node.clone()).collect();
        let masters: Vec<_> = masters.into_iter().collect();
        if old.is_some_and(|old| old.masters != masters) {
            let list = masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            tracing::warn!(masters = list, "redis masters moved");
        }
        Ok(Arc::new(SlotMap {
            masters,
            ranges,
            made_at: now_monotonic(),
            refreshes_before,
            proven_after: self.options.reconnect_max,
            refreshes: self.refreshes.clone(),
        }))
    }
}

/// The slot of a key, as the Redis Cluster specification defines it. The hash tag between the first
/// `{` and the next `}` is hashed if it is not empty, otherwise the whole key.
fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&byte| byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|&byte| byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

/// CRC16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"shop:{12:3}:bucket"), slot_of(b"12:3"));
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS, "the first tag is empty");
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
    }
}
