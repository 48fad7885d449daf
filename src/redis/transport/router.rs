//! Where the masters are, kept up to date.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::identity::TopologyDoubts;
use super::slot::slot_of;
use super::url::{RedisTopology, ServerAddress};
use super::{ConnectionOptions, Error, cluster, sentinel};
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::{Expirable, RetryPace, SingleFlight, ValueStatus};

/// Sentinels are asked this often although nothing seems wrong: a master that they have replaced
/// may still accept writes, if it is cut off from them but not from us.
const SENTINELS_EVERY: Duration = Duration::from_secs(2);

/// Slots from the first to the second, with the server that has them.
pub(super) type SlotRange = (u16, u16, ServerAddress);

/// Which server has which keys, as of one look.
#[derive(Debug)]
pub(super) struct SlotMap {
    /// Sorted.
    masters: Vec<ServerAddress>,
    /// Sorted; `None`: the one master has every key.
    ranges: Option<Vec<SlotRange>>,
    /// Later maps have greater numbers.
    pub(super) number: u64,
    made_at: Instant,
    /// Reasons to look again that were known before the look.
    known_doubts: u64,
    /// A map that lasted so long was of use.
    proof: Duration,
    doubts: Arc<TopologyDoubts>,
}

impl SlotMap {
    /// Every master.
    pub(super) fn masters(&self) -> &[ServerAddress] {
        &self.masters
    }

    /// The server that has this key.
    pub(super) fn master_of(&self, key: &[u8]) -> Result<&ServerAddress, Error> {
        let Some(ranges) = &self.ranges else {
            return self.masters.first().ok_or_else(|| Error::not_sent("no server is known"));
        };
        let slot = slot_of(key);
        let found = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let Some((_, _, node)) = found else {
            self.doubts.look_again();
            return Err(Error::not_sent(format!("no server of the cluster has slot {slot}")));
        };
        Ok(node)
    }

    fn names(&self) -> String {
        self.masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl Expirable for Arc<SlotMap> {
    type Error = Error;

    fn not_made(reason: &str) -> Error {
        Error::not_sent(reason)
    }

    fn standing(&self) -> ValueStatus<Error> {
        if self.known_doubts == self.doubts.count() {
            return ValueStatus::Good;
        }
        let proven = now_monotonic() - self.made_at >= self.proof;
        ValueStatus::Gone { proven, why: Error::not_sent("the masters have to be found again") }
    }
}

/// Finds the masters, and finds them again.
pub(super) struct MasterRouter {
    finder: Arc<Finder>,
    /// `None` where nothing has to be found.
    flight: Option<Arc<SingleFlight<Arc<SlotMap>>>>,
    fixed: Arc<SlotMap>,
}

impl MasterRouter {
    pub(super) fn new(options: Arc<ConnectionOptions>, doubts: Arc<TopologyDoubts>) -> Self {
        let pace = RetryPace { min: options.reconnect_min, max: options.reconnect_max };
        let finder = Arc::new(Finder { options, doubts, maps: AtomicU64::new(0) });
        let (fixed, flight) = match &finder.options.url.topology {
            RedisTopology::Single(node) => (vec![node.clone()], None),
            RedisTopology::Sentinel { .. } | RedisTopology::Cluster(_) => {
                (Vec::new(), Some(SingleFlight::new(pace)))
            }
        };
        let fixed = Arc::new(finder.map(fixed, None, 0));
        Self { finder, flight, fixed }
    }

    /// Where the masters are; may be asked for each call. If they cannot be found again, what was
    /// known last.
    pub(super) async fn map(&self, io: &Handle) -> Result<Arc<SlotMap>, Error> {
        let Some(flight) = &self.flight else { return Ok(self.fixed.clone()) };
        let old = flight.last();
        let look = |before| self.finder.clone().look(old.clone(), before);
        match flight.get(io, look).await {
            Ok(map) => {
                let watched =
                    matches!(self.finder.options.url.topology, RedisTopology::Sentinel { .. });
                if watched && now_monotonic() - map.made_at >= SENTINELS_EVERY {
                    flight.renew(io, |before| self.finder.clone().look(Some(map.clone()), before));
                }
                Ok(map)
            }
            Err(error) => flight.last().ok_or(error),
        }
    }
}

struct Finder {
    options: Arc<ConnectionOptions>,
    doubts: Arc<TopologyDoubts>,
    maps: AtomicU64,
}

impl Finder {
    fn map(
        &self,
        mut masters: Vec<ServerAddress>,
        ranges: Option<Vec<SlotRange>>,
        known_doubts: u64,
    ) -> SlotMap {
        masters.sort();
        masters.dedup();
        SlotMap {
            masters,
            ranges,
            number: self.maps.fetch_add(1, Ordering::SeqCst),
            made_at: now_monotonic(),
            known_doubts,
            proof: self.options.reconnect_max,
            doubts: self.doubts.clone(),
        }
    }

    async fn look(
        self: Arc<Self>,
        old: Option<Arc<SlotMap>>,
        before: u32,
    ) -> Result<Arc<SlotMap>, Error> {
        let known_doubts = self.doubts.count();
        let found = match &self.options.url.topology {
            RedisTopology::Single(node) => Ok((vec![node.clone()], None)),
            RedisTopology::Sentinel { sentinels, master } => {
                let found = sentinel::find(&self.options, sentinels, master).await;
                found.map(|node| (vec![node], None))
            }
            RedisTopology::Cluster(seeds) => {
                let known = old.as_ref().map(|old| old.masters.clone()).unwrap_or_default();
                let found = cluster::find(&self.options, seeds, known).await;
                found.map(|ranges| {
                    (ranges.iter().map(|(_, _, node)| node.clone()).collect(), Some(ranges))
                })
            }
        };
        match found {
            Ok((masters, ranges)) => {
                let map = self.map(masters, ranges, known_doubts);
                if old.is_some_and(|old| old.masters != map.masters) {
                    tracing::warn!(masters = map.names(), "redis masters moved");
                }
                Ok(Arc::new(map))
            }
            Err(reason) => {
                if before == 0 {
                    tracing::warn!(reason, "redis masters not found, will keep asking");
                } else {
                    tracing::debug!(reason, before, "redis masters not found");
                }
                Err(Error::not_sent(reason))
            }
        }
    }
}
