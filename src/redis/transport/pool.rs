//! All Redis connections of the process.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue};
use tokio::runtime::{Builder, Handle, Runtime};

use super::ChannelSubscription;
use super::connection::{Connection, PipelineAnswers, single_answer};
use super::router::{MasterRouter, RefreshRequests, SlotMap};
use super::url::ServerAddress;
use super::{ConnectionOptions, ConnectionPurpose, Error};
use crate::runtime::backoff::Backoff;
use crate::runtime::single_flight::SingleFlight;

/// Connections to the current masters, made on first use. Cheap to clone; the connections close
/// when the last clone is dropped.
#[derive(Clone)]
pub struct ConnectionPool {
    inner: Arc<Inner>,
}

struct Inner {
    options: Arc<ConnectionOptions>,
    refreshes: Arc<RefreshRequests>,
    router: Arc<MasterRouter>,
    entries: Mutex<PoolEntries>,
    /// Drives every connection, so that none ends with the thread of its first caller.
    io: Option<Runtime>,
}

#[derive(Default)]
struct PoolEntries {
    by_node: HashMap<(ServerAddress, ConnectionPurpose), Arc<SingleFlight<Arc<Connection>>>>,
    /// When the topology of the last prune was read.
    pruned_at: Option<Instant>,
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPool").finish_non_exhaustive()
    }
}

impl ConnectionPool {
    /// Starts the thread that drives the connections; connects on first use.
    pub fn new(options: ConnectionOptions) -> Result<Self, Error> {
        let mut builder = Builder::new_multi_thread();
        let io = builder.worker_threads(1).thread_name("redis-io").enable_all().build();
        let io = io.map_err(|error| Error::not_sent(format!("no thread for Redis: {error}")))?;
        let refreshes = Arc::<RefreshRequests>::default();
        let options = Arc::new(options);
        let router = MasterRouter::new(options.clone(), refreshes.clone());
        let entries = Mutex::default();
        Ok(Self { inner: Arc::new(Inner { options, refreshes, router, entries, io: Some(io) }) })
    }

    /// A connection to the master of this key. Returns at once with an open connection, or with an
    /// error while a reconnect attempt runs or waits; otherwise connects within `connect_timeout`.
    pub async fn connection(
        &self,
        purpose: ConnectionPurpose,
        key: impl AsRef<[u8]>,
    ) -> Result<Arc<Connection>, Error> {
        let map = self.slot_map().await?;
        let node = map.master_of(key.as_ref())?;
        self.connection_to(purpose, node).await
    }

    /// [`Self::connection`] and [`Connection::call`].
    pub async fn call(
        &self,
        purpose: ConnectionPurpose,
        key: impl AsRef<[u8]>,
        commands: Vec<Cmd>,
    ) -> Result<PipelineAnswers, Error> {
        self.connection(purpose, key).await?.call(commands).await
    }

    /// Sends one command about a key, for the purpose `Results`, and decodes its answer.
    ///
    /// # Errors
    /// An answer that is no `T` is `Refused`, too. `Refused` names the key: Redis does not.
    pub async fn query<T: FromRedisValue>(&self, key: &str, command: Cmd) -> Result<T, Error> {
        let answers = self.call(ConnectionPurpose::Results, key, vec![command]).await?;
        match single_answer(answers) {
            Ok(answer) => {
                redis::from_redis_value(answer).map_err(|error| Error::refused(key, error))
            }
            Err(Error::Refused { message }) => Err(Error::refused(key, message)),
            Err(error) => Err(error),
        }
    }

    /// Every master of the current topology.
    pub async fn masters(&self) -> Result<Vec<ServerAddress>, Error> {
        Ok(self.slot_map().await?.masters.clone())
    }

    /// A connection to one of the [`Self::masters`].
    pub async fn connection_to(
        &self,
        purpose: ConnectionPurpose,
        node: &ServerAddress,
    ) -> Result<Arc<Connection>, Error> {
        let flight = {
            let ConnectionOptions { reconnect_min: min, reconnect_max: max, .. } =
                *self.inner.options;
            let mut entries = self.inner.entries.lock();
            let entry = entries.by_node.entry((node.clone(), purpose));
            entry.or_insert_with(|| SingleFlight::new(Backoff::between(min, max))).clone()
        };
        let is_reconnect = flight.last().is_some();
        let make = |failures| {
            let (options, refreshes) = (self.inner.options.clone(), self.inner.refreshes.clone());
            connect(options, refreshes, purpose, node.clone(), is_reconnect, failures)
        };
        flight.get(self.io()?, make).await
    }

    /// Subscribes to a channel within `connect_timeout`, at the master that has its name as a key.
    /// Publish there, too.
    pub async fn subscribe(&self, channel: &str) -> Result<ChannelSubscription, Error> {
        let map = self.slot_map().await?;
        let node = map.master_of(channel.as_bytes())?.clone();
        let options = Arc::clone(&self.inner.options);
        let opening =
            self.io()?.spawn(ChannelSubscription::open(options, node, channel.to_owned()));
        let closed = |_| Err(Error::not_sent("the connections of this process are closed"));
        opening.await.unwrap_or_else(closed)
    }

    /// Verifies the identity of every master, on each connection to it: a server that was demoted
    /// and promoted again keeps its connections and its `run_id`, but may have lost data.
    ///
    /// # Errors
    /// The first error; the other masters are verified nevertheless.
    pub async fn verify(&self) -> Result<(), Error> {
        let mut verified = Ok(());
        for node in self.masters().await? {
            verified =
                verified.and(self.connection_to(ConnectionPurpose::Results, &node).await.map(drop));
            let connections: Vec<_> = {
                let entries = self.inner.entries.lock();
                let here = entries.by_node.iter().filter(|((master, _), _)| *master == node);
                here.filter_map(|(_, flight)| flight.last()).collect()
            };
            for connection in connections.iter().filter(|connection| connection.is_alive()) {
                verified = verified.and(connection.verify().await);
            }
        }
        verified
    }

    async fn slot_map(&self) -> Result<Arc<SlotMap>, Error> {
        let map = self.inner.router.slot_map(self.io()?).await?;
        self.prune(&map);
        Ok(map)
    }

    /// Closes connections to servers that are no longer masters.
    fn prune(&self, map: &SlotMap) {
        let mut entries = self.inner.entries.lock();
        if entries.pruned_at >= Some(map.made_at) {
            return;
        }
        entries.pruned_at = Some(map.made_at);
        entries.by_node.retain(|(node, _), flight| {
            let is_master = map.masters.contains(node);
            if let Some(connection) = flight.last().filter(|_| !is_master) {
                connection.close("it is no longer a master");
            }
            is_master
        });
    }

    fn io(&self) -> Result<&Handle, Error> {
        let closed = || Error::not_sent("the connections of this process are closed");
        self.inner.io.as_ref().map(Runtime::handle).ok_or_else(closed)
    }
}

/// Connects to a master, and logs the result. `failures`: the number of failed attempts before.
async fn connect(
    options: Arc<ConnectionOptions>,
    refreshes: Arc<RefreshRequests>,
    purpose: ConnectionPurpose,
    node: ServerAddress,
    is_reconnect: bool,
    failures: u32,
) -> Result<Arc<Connection>, Error> {
    let made = Connection::connect(&options, &node, purpose, refreshes.clone()).await;
    match &made {
        Ok(connection) => {
            let run_id = &connection.identity().run_id;
            if is_reconnect {
                tracing::warn!(%node, run_id, ?purpose, "redis reconnected");
            } else {
                tracing::info!(%node, run_id, ?purpose, "redis connected");
            }
        }
        Err(error) => {
            let reason = error.to_string();
            if failures == 0 {
                tracing::warn!(%node, ?purpose, reason, "redis not connected, retrying");
            } else {
                tracing::debug!(%node, ?purpose, reason, failures, "redis not connected");
            }
            refreshes.request();
        }
    }
    made.map(Arc::new)
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The last clone may be dropped in a task, where blocking on the thread is not allowed.
        if let Some(io) = self.io.take() {
            io.shutdown_background();
        }
    }
}
