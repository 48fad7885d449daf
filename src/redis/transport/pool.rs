//! All connections of the process.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use super::identity::TopologyDoubts;
use super::request::PipelineRequest;
use super::router::{MasterRouter, SlotMap};
use super::url::ServerAddress;
use super::{ConnectionOptions, ConnectionPurpose, Error};
use crate::redis::transport::connection::{Connection, PipelineAnswers};
use crate::runtime::single_flight::{RetryPace, SingleFlight};

/// Connections to wherever the masters are, made when they are needed. Cheap to clone; the
/// connections close when the last clone is dropped.
#[derive(Clone)]
pub struct ConnectionPool {
    inner: Arc<Inner>,
}

struct Inner {
    options: Arc<ConnectionOptions>,
    doubts: Arc<TopologyDoubts>,
    router: MasterRouter,
    places: Mutex<PoolEntries>,
    /// Drives every connection on a thread of its own, so that a connection does not end with the
    /// thread that happened to make it.
    io: Option<Runtime>,
}

#[derive(Default)]
struct PoolEntries {
    by_node: HashMap<(ServerAddress, ConnectionPurpose), Arc<SingleFlight<Arc<Connection>>>>,
    /// The number of the map for which the places were last weeded.
    weeded: Option<u64>,
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPool")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl ConnectionPool {
    /// Gets ready; connects to nothing yet.
    pub fn new(options: ConnectionOptions) -> Result<Self, Error> {
        let mut builder = Builder::new_multi_thread();
        let io = builder.worker_threads(1).thread_name("redis-io").enable_all().build();
        let io = io.map_err(|error| Error::not_sent(format!("no thread for Redis: {error}")))?;
        let doubts = Arc::<TopologyDoubts>::default();
        let options = Arc::new(options);
        let router = MasterRouter::new(options.clone(), doubts.clone());
        let places = Mutex::default();
        Ok(Self { inner: Arc::new(Inner { options, doubts, router, places, io: Some(io) }) })
    }

    /// What the connections were asked to be.
    #[must_use]
    pub fn options(&self) -> &ConnectionOptions {
        &self.inner.options
    }

    /// A connection to the master that has this key. Returns at once if there is one or if there
    /// cannot be one yet; otherwise makes one, within the time for connecting.
    pub async fn link(
        &self,
        lane: ConnectionPurpose,
        key: impl AsRef<[u8]>,
    ) -> Result<Arc<Connection>, Error> {
        let map = self.map().await?;
        let node = map.master_of(key.as_ref())?;
        self.link_to(lane, node).await
    }

    /// [`Self::link`] and [`Connection::call`].
    pub async fn call<R: PipelineRequest>(
        &self,
        lane: ConnectionPurpose,
        key: impl AsRef<[u8]>,
        requests: &[R],
    ) -> Result<PipelineAnswers, Error> {
        self.link(lane, key).await?.call(requests).await
    }

    /// Every master, as far as is known.
    pub async fn masters(&self) -> Result<Vec<ServerAddress>, Error> {
        Ok(self.map().await?.masters().to_vec())
    }

    /// A connection to one of the [`Self::masters`].
    pub async fn link_to(
        &self,
        lane: ConnectionPurpose,
        node: &ServerAddress,
    ) -> Result<Arc<Connection>, Error> {
        let flight = {
            let mut places = self.inner.places.lock();
            if let Some(flight) = places.by_node.get(&(node.clone(), lane)) {
                flight.clone()
            } else {
                let options = &self.inner.options;
                let pace = RetryPace { min: options.reconnect_min, max: options.reconnect_max };
                let flight = SingleFlight::new(pace);
                places.by_node.insert((node.clone(), lane), flight.clone());
                flight
            }
        };
        let again = flight.last().is_some();
        flight.get(self.io()?, |before| self.make(lane, node, again, before)).await
    }

    /// Asks every master who it is, on each connection to it: a server that was demoted and
    /// promoted again keeps its connections, its `run_id` and not all of its data.
    ///
    /// # Errors
    /// The first error; the other masters were asked all the same.
    pub async fn verify(&self) -> Result<(), Error> {
        let mut verified = Ok(());
        for node in self.masters().await? {
            verified =
                verified.and(self.link_to(ConnectionPurpose::Results, &node).await.map(drop));
            let links: Vec<_> = {
                let places = self.inner.places.lock();
                let here = places.by_node.iter().filter(|((place, _), _)| *place == node);
                here.filter_map(|(_, flight)| flight.last()).collect()
            };
            for link in links.iter().filter(|link| link.is_alive()) {
                verified = verified.and(link.verify().await);
            }
        }
        verified
    }

    fn make(
        &self,
        lane: ConnectionPurpose,
        node: &ServerAddress,
        again: bool,
        before: u32,
    ) -> impl Future<Output = Result<Arc<Connection>, Error>> + Send + use<> {
        let (options, doubts) = (self.inner.options.clone(), self.inner.doubts.clone());
        let node = node.clone();
        async move {
            let made = Connection::make(&options, &node, lane, doubts.clone()).await;
            match &made {
                Ok(link) => {
                    let run_id = &link.identity().run_id;
                    if again {
                        tracing::warn!(%node, run_id, ?lane, "redis connected again");
                    } else {
                        tracing::info!(%node, run_id, ?lane, "redis connected");
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    if before == 0 {
                        tracing::warn!(%node, ?lane, reason,
                            "redis not connected, will keep trying");
                    } else {
                        tracing::debug!(%node, ?lane, reason, before, "redis not connected");
                    }
                    doubts.look_again();
                }
            }
            made.map(Arc::new)
        }
    }

    async fn map(&self) -> Result<Arc<SlotMap>, Error> {
        let map = self.inner.router.map(self.io()?).await?;
        self.weed(&map);
        Ok(map)
    }

    /// Gives up connections to servers that are no longer masters.
    fn weed(&self, map: &SlotMap) {
        let mut places = self.inner.places.lock();
        if places.weeded >= Some(map.number) {
            return;
        }
        places.weeded = Some(map.number);
        places.by_node.retain(|(node, _), flight| {
            let stays = map.masters().contains(node);
            if let Some(link) = flight.last().filter(|_| !stays) {
                link.give_up("it is no longer a master");
            }
            stays
        });
    }

    fn io(&self) -> Result<&Handle, Error> {
        let closed = || Error::not_sent("the connections of this process are closed");
        self.inner.io.as_ref().map(Runtime::handle).ok_or_else(closed)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Waiting for the thread is not allowed where the last clone may be dropped: in a task.
        if let Some(io) = self.io.take() {
            io.shutdown_background();
        }
    }
}
