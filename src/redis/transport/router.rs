//! The current topology: which master has which key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::identity::RefreshRequests;
use super::slot::slot_of;
use super::url::{RedisTopology, ServerAddress};
use super::{ConnectionOptions, Error, cluster, sentinel};
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::{Expirable, SingleFlight, ValueStatus};

/// Sentinels are polled this often even without an error: a replaced master still accepts writes
/// while it is cut off from the sentinels but not from this process.
const SENTINEL_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// First slot, last slot and their master.
pub(super) type SlotRange = (u16, u16, ServerAddress);

/// Which server has which keys, as of one read.
#[derive(Debug)]
pub(super) struct SlotMap {
    /// Sorted.
    masters: Vec<ServerAddress>,
    /// Sorted; `None` if the one master has every key.
    ranges: Option<Vec<SlotRange>>,
    /// Increases with each map.
    pub(super) version: u64,
    made_at: Instant,
    /// Refresh requests counted before the topology was read.
    refreshes_before: u64,
    /// A map that stayed valid this long is replaced without waiting.
    proven_after: Duration,
    refreshes: Arc<RefreshRequests>,
}

impl SlotMap {
    pub(super) fn masters(&self) -> &[ServerAddress] {
        &self.masters
    }

    /// The master of this key.
    ///
    /// # Errors
    /// No master has the slot; the topology is then read again.
    pub(super) fn master_of(&self, key: &[u8]) -> Result<&ServerAddress, Error> {
        let Some(ranges) = &self.ranges else {
            return self.masters.first().ok_or_else(|| Error::not_sent("no master is known"));
        };
        let slot = slot_of(key);
        let found = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let Some((_, _, node)) = found else {
            self.refreshes.request();
            return Err(Error::not_sent(format!("no master of the cluster has slot {slot}")));
        };
        Ok(node)
    }

    fn master_list(&self) -> String {
        self.masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
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
    reader: Arc<TopologyReader>,
    /// `None` for a single server.
    flight: Option<Arc<SingleFlight<Arc<SlotMap>>>>,
    /// Used for a single server only.
    single: Arc<SlotMap>,
}

impl MasterRouter {
    pub(super) fn new(options: Arc<ConnectionOptions>, refreshes: Arc<RefreshRequests>) -> Self {
        let pace = Backoff::between(options.reconnect_min, options.reconnect_max);
        let reader =
            Arc::new(TopologyReader { options, refreshes, next_version: AtomicU64::new(0) });
        let (masters, flight) = match &reader.options.url.topology {
            RedisTopology::Single(node) => (vec![node.clone()], None),
            RedisTopology::Sentinel { .. } | RedisTopology::Cluster(_) => {
                (Vec::new(), Some(SingleFlight::new(pace)))
            }
        };
        let single = Arc::new(reader.new_map(masters, None, 0));
        Self { reader, flight, single }
    }

    /// The current map, cheap enough for each call. If the topology cannot be read again, the last
    /// known map.
    pub(super) async fn map(&self, io: &Handle) -> Result<Arc<SlotMap>, Error> {
        let Some(flight) = &self.flight else { return Ok(self.single.clone()) };
        let old = flight.last();
        let read = |failures| self.reader.clone().read(old.clone(), failures);
        match flight.get(io, read).await {
            Ok(map) => {
                let has_sentinels =
                    matches!(self.reader.options.url.topology, RedisTopology::Sentinel { .. });
                if has_sentinels && now_monotonic() - map.made_at >= SENTINEL_POLL_INTERVAL {
                    flight.renew(io, |failures| {
                        self.reader.clone().read(Some(map.clone()), failures)
                    });
                }
                Ok(map)
            }
            Err(error) => flight.last().ok_or(error),
        }
    }
}

struct TopologyReader {
    options: Arc<ConnectionOptions>,
    refreshes: Arc<RefreshRequests>,
    next_version: AtomicU64,
}

impl TopologyReader {
    fn new_map(
        &self,
        mut masters: Vec<ServerAddress>,
        ranges: Option<Vec<SlotRange>>,
        refreshes_before: u64,
    ) -> SlotMap {
        masters.sort();
        masters.dedup();
        SlotMap {
            masters,
            ranges,
            version: self.next_version.fetch_add(1, Ordering::SeqCst),
            made_at: now_monotonic(),
            refreshes_before,
            proven_after: self.options.reconnect_max,
            refreshes: self.refreshes.clone(),
        }
    }

    async fn read(
        self: Arc<Self>,
        old: Option<Arc<SlotMap>>,
        failures: u32,
    ) -> Result<Arc<SlotMap>, Error> {
        let refreshes_before = self.refreshes.count();
        let found = match &self.options.url.topology {
            RedisTopology::Single(node) => Ok((vec![node.clone()], None)),
            RedisTopology::Sentinel { sentinels, master } => {
                let found = sentinel::find_master(&self.options, sentinels, master).await;
                found.map(|node| (vec![node], None))
            }
            RedisTopology::Cluster(seeds) => {
                let known = old.as_ref().map(|old| old.masters.clone()).unwrap_or_default();
                let found = cluster::find_masters(&self.options, seeds, known).await;
                found.map(|ranges| {
                    (ranges.iter().map(|(_, _, node)| node.clone()).collect(), Some(ranges))
                })
            }
        };
        match found {
            Ok((masters, ranges)) => {
                let map = self.new_map(masters, ranges, refreshes_before);
                if old.is_some_and(|old| old.masters != map.masters) {
                    tracing::warn!(masters = map.master_list(), "redis masters moved");
                }
                Ok(Arc::new(map))
            }
            Err(reason) => {
                if failures == 0 {
                    tracing::warn!(reason, "redis masters not found, retrying");
                } else {
                    tracing::debug!(reason, failures, "redis masters not found");
                }
                Err(Error::not_sent(reason))
            }
        }
    }
}
