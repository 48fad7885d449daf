//! One connection, from the handshake to its end.

use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection, Event};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::super::Error;
use super::new_queues::NewQueues;
use super::socket::{self, ShutdownGuard};
use super::{RabbitOptions, declare, said};
use crate::runtime::single_flight::{Expirable, ValueStatus};

/// Channels with messages that were given up, until the connection is. Each holds a window.
const STUCK_MAX: usize = 32;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    Publishing,
    Consuming,
    /// One look or repair.
    Errand,
}

impl ConnectionRole {
    /// What the broker's list of connections shows.
    fn client_name(self) -> &'static str {
        match self {
            Self::Publishing => "floodgate-publishing",
            Self::Consuming => "floodgate-consuming",
            Self::Errand => "floodgate-errand",
        }
    }
}

/// A connection that is never repaired: who needs one makes another.
pub(super) struct RabbitConnection {
    lane: ConnectionRole,
    connection: Connection,
    plug: ShutdownGuard,
    limit: Duration,
    /// Why it is over, as soon as anybody knows.
    over: Mutex<Option<String>>,
    /// Why the broker accepts nothing on it.
    blocked: Mutex<Option<String>>,
    /// Whether it was of use, beyond being made.
    proven: AtomicBool,
    stuck: AtomicUsize,
}

impl fmt::Debug for RabbitConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitConnection").field("lane", &self.lane).finish_non_exhaustive()
    }
}

impl Expirable for Arc<RabbitConnection> {
    type Error = Error;

    fn not_made(reason: &str) -> Error {
        Error::Unavailable { reason: reason.to_owned() }
    }

    fn standing(&self) -> ValueStatus<Error> {
        match self.end() {
            None => ValueStatus::Good,
            Some(why) => ValueStatus::Gone {
                proven: self.proven.load(Ordering::SeqCst),
                why: Error::Unavailable { reason: why },
            },
        }
    }
}

impl RabbitConnection {
    /// Connects, and brings the topology about. Runs on the runtime that shall drive it.
    pub(super) async fn make(
        options: &RabbitOptions,
        lane: ConnectionRole,
        new_queues: &Arc<NewQueues>,
    ) -> Result<Arc<Self>, Error> {
        let limit = options.connect_timeout;
        let mut uri = options.uri.clone();
        uri.query.heartbeat.get_or_insert(options.heartbeat_s);
        let connecting = socket::connect(&uri, lane.client_name(), limit);
        let connected = connecting.await;
        let (connection, plug) =
            connected.map_err(|trouble| Error::Unavailable { reason: trouble.reason })?;
        let line = Arc::new(Self {
            lane,
            connection,
            plug,
            limit,
            over: Mutex::default(),
            blocked: Mutex::default(),
            proven: AtomicBool::new(false),
            stuck: AtomicUsize::new(0),
        });
        let events = line.connection.events_listener();
        // Ends with the connection.
        drop(Handle::current().spawn(listen(Arc::downgrade(&line), events)));
        line.declare(options, new_queues).await?;
        Ok(line)
    }

    /// Brings the topology about, or says what does not fit.
    pub(super) async fn declare(
        self: &Arc<Self>,
        options: &RabbitOptions,
        new_queues: &Arc<NewQueues>,
    ) -> Result<(), Error> {
        new_queues.replace_lost(self, self.limit).await?;
        let creating = |name: &str| new_queues.remember(name, self);
        let declaring = declare::declare(&self.connection, &options.topology, creating);
        let declared = tokio::time::timeout(self.limit, declaring).await;
        let (line, new_queues) = (self.clone(), new_queues.clone());
        drop(Handle::current().spawn(async move { new_queues.settle(&line).await }));
        declared.unwrap_or_else(|_| {
            let reason = format!("the topology was not declared within {:?}", self.limit);
            self.give_up(&reason);
            Err(Error::Unavailable { reason })
        })
    }

    /// A channel of one's own. It closes with its last clone.
    pub(super) async fn channel(&self) -> Result<Channel, Error> {
        self.within("a channel", self.connection.create_channel()).await
    }

    /// The same, where the caller wants to know what the broker said.
    pub(super) async fn open(&self) -> lapin::Result<Channel> {
        self.connection.create_channel().await
    }

    /// A channel that confirms.
    pub(super) async fn confirming(&self) -> Result<Channel, Error> {
        let channel = self.channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        self.within("a confirming channel", select).await?;
        Ok(channel)
    }

    /// Whatever cannot be had in time on a connection ends it.
    async fn within<T>(
        &self,
        what: &str,
        asking: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Error> {
        let reason = match tokio::time::timeout(self.limit, asking).await {
            Ok(Ok(had)) => return Ok(had),
            Ok(Err(error)) => format!("{what} was not to be had: {}", said(&error)),
            Err(_) => format!("{what} was not to be had within {:?}", self.limit),
        };
        self.give_up(&reason);
        Err(Error::Unavailable { reason })
    }

    /// It was of use: the next one may be made at once.
    pub(super) fn prove(&self) {
        self.proven.store(true, Ordering::SeqCst);
    }

    /// Why it is over, if it is.
    pub(super) fn end(&self) -> Option<String> {
        if let Some(why) = self.over.lock().clone() {
            return Some(why);
        }
        let open = self.connection.status().connected();
        (!open).then(|| "the connection was lost".to_owned())
    }

    /// Why the broker accepts nothing, if so.
    pub(super) fn blocked(&self) -> Option<String> {
        self.blocked.lock().clone()
    }

    /// Ends it, because somebody knows better.
    pub(super) fn give_up(&self, why: &str) {
        self.over.lock().get_or_insert_with(|| {
            tracing::warn!(lane = ?self.lane, reason = why, "broker connection given up");
            why.to_owned()
        });
        self.plug.pull();
    }

    /// Lets messages that nobody waits for any longer come to their end, whatever it is: their
    /// channel must not be closed under them.
    pub(super) async fn leave_to_itself(&self, rest: impl Future<Output = ()>) {
        // A broker short of memory confirms when it has some: another connection would only bring
        // it the same messages again.
        if self.stuck.fetch_add(1, Ordering::SeqCst) >= STUCK_MAX && self.blocked().is_none() {
            self.give_up("too many messages were never confirmed");
        }
        rest.await;
        self.stuck.fetch_sub(1, Ordering::SeqCst);
    }

    /// Says good-bye, within the time.
    pub(super) async fn close(&self) {
        self.over.lock().get_or_insert_with(|| "closed by this process".to_owned());
        let closing = self.connection.close(200, "good-bye".into());
        if !matches!(tokio::time::timeout(self.limit, closing).await, Ok(Ok(()))) {
            tracing::debug!(lane = ?self.lane, "the broker did not say good-bye");
        }
        self.plug.pull();
    }
}

/// Hears what the broker says of the connection as a whole.
async fn listen(
    line: Weak<RabbitConnection>,
    mut events: impl futures_util::Stream<Item = Event> + Unpin,
) {
    while let Some(event) = events.next().await {
        let Some(line) = line.upgrade() else { return };
        match event {
            Event::ConnectionBlocked(reason) => {
                tracing::warn!(lane = ?line.lane, reason, "the broker accepts no messages");
                *line.blocked.lock() = Some(reason);
            }
            Event::ConnectionUnblocked => {
                tracing::info!(lane = ?line.lane, "the broker accepts messages again");
                *line.blocked.lock() = None;
            }
            // Errors of a single channel come by here too.
            Event::Error(error) if !line.connection.status().connected() => {
                line.give_up(&said(&error));
            }
            _ => {}
        }
    }
}
