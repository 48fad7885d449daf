//! One connection to RabbitMQ.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection, Event};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::super::Error;
use super::dial::{ShutdownGuard, open};
use super::new_queues::NewQueues;
use super::{RabbitOptions, declare, error_message};
use crate::runtime::single_flight::{Expirable, ValueStatus};

/// Channels with abandoned confirmations after which the connection is aborted. Each holds a
/// window.
const ABANDONED_BATCHES_MAX: usize = 32;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    Publishing,
    Consuming,
}

impl ConnectionRole {
    /// The name in the broker's list of connections.
    fn client_name(self) -> &'static str {
        match self {
            Self::Publishing => "floodgate-publishing",
            Self::Consuming => "floodgate-consuming",
        }
    }
}

/// A connection that is never repaired: after an error the next user makes another.
pub(super) struct RabbitConnection {
    role: ConnectionRole,
    /// Drives the connection.
    pub(super) io: Handle,
    inner: Connection,
    shutdown_guard: ShutdownGuard,
    limit: Duration,
    /// Set once the connection is closed or known to be broken.
    close_reason: OnceLock<String>,
    /// Set while the broker blocks publishing (`connection.blocked`).
    blocked_reason: Mutex<Option<String>>,
    /// At least one operation succeeded after the handshake.
    proven: AtomicBool,
    abandoned_batches: AtomicUsize,
}

impl Expirable for Arc<RabbitConnection> {
    type Error = Error;

    fn not_attempted(reason: &str) -> Error {
        Error::unavailable(reason)
    }

    fn status(&self) -> ValueStatus<Error> {
        match self.close_reason() {
            None => ValueStatus::Usable,
            Some(reason) => ValueStatus::Expired {
                proven: self.proven.load(Ordering::SeqCst),
                why: Error::unavailable(reason),
            },
        }
    }
}

impl RabbitConnection {
    /// Connects and declares the topology. Must run on the runtime that drives the connection.
    pub(super) async fn connect(
        options: &RabbitOptions,
        role: ConnectionRole,
        new_queues: &Arc<NewQueues>,
    ) -> Result<Arc<Self>, Error> {
        let limit = options.connect_timeout;
        let connected = open(options, role.client_name(), limit).await;
        let (inner, shutdown_guard) =
            connected.map_err(|error| Error::unavailable(error.reason))?;
        let connection = Arc::new(Self {
            role,
            io: Handle::current(),
            inner,
            shutdown_guard,
            limit,
            close_reason: OnceLock::new(),
            blocked_reason: Mutex::default(),
            proven: AtomicBool::new(false),
            abandoned_batches: AtomicUsize::new(0),
        });
        let events = connection.inner.events_listener();
        // The task ends with the connection.
        drop(connection.io.spawn(handle_events(Arc::downgrade(&connection), events)));
        connection.declare(options, new_queues).await?;
        Ok(connection)
    }

    /// Declares the topology. On a time-out the connection is aborted.
    pub(super) async fn declare(
        self: &Arc<Self>,
        options: &RabbitOptions,
        new_queues: &Arc<NewQueues>,
    ) -> Result<(), Error> {
        new_queues.delete_lost(self, options).await?;
        let on_create = |name: &str| new_queues.track(name, self);
        let declaring = declare::declare(&self.inner, &options.topology, on_create);
        let declared = self.within_limit("declaring the topology", declaring).await;
        let (connection, new_queues) = (self.clone(), new_queues.clone());
        let forgetting = async move { new_queues.forget_when_recoverable(&connection).await };
        drop(self.io.spawn(forgetting));
        declared?
    }

    /// A new channel, which closes with its last clone. On failure the connection is aborted.
    pub(super) async fn channel(&self) -> Result<Channel, Error> {
        self.or_abort("a channel", self.inner.create_channel()).await
    }

    /// A new channel, with the library's error for the caller to classify, and without a time
    /// limit.
    pub(super) async fn create_channel(&self) -> lapin::Result<Channel> {
        self.inner.create_channel().await
    }

    /// A new channel with publisher confirms.
    pub(super) async fn confirming(&self) -> Result<Channel, Error> {
        let channel = self.channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        self.or_abort("a confirming channel", select).await?;
        Ok(channel)
    }

    /// Awaits an answer of the broker, and aborts the connection on an error or a time-out.
    async fn or_abort<T>(
        &self,
        what: &str,
        request: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Error> {
        self.within_limit(what, request).await?.map_err(|error| {
            self.failed(format!("{what} could not be opened: {}", error_message(&error)))
        })
    }

    /// Awaits an answer of the broker, and aborts the connection on a time-out, unless it is
    /// blocked: it answers nothing then, and goes on after the alarm. Errors of the broker are
    /// returned for the caller to classify.
    pub(super) async fn within_limit<T>(
        &self,
        what: &str,
        request: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let timed_out = |_| match self.blocked_reason() {
            Some(reason) => Error::unavailable(reason),
            None => self.failed(format!("{what} timed out after {:?}", self.limit)),
        };
        tokio::time::timeout(self.limit, request).await.map_err(timed_out)
    }

    fn failed(&self, reason: String) -> Error {
        self.abort(&reason);
        Error::unavailable(reason)
    }

    /// Marks the connection as useful: after its end the next attempt starts without waiting.
    pub(super) fn mark_proven(&self) {
        self.proven.store(true, Ordering::SeqCst);
    }

    /// Why the connection is closed; `None` while it is open.
    pub(super) fn close_reason(&self) -> Option<String> {
        let lost = || "the connection was lost".to_owned();
        let close_reason = self.close_reason.get().cloned();
        close_reason.or_else(|| (!self.inner.status().connected()).then(lost))
    }

    /// Why the broker blocks publishing; `None` if it does not.
    pub(super) fn blocked_reason(&self) -> Option<String> {
        let reason = self.blocked_reason.lock();
        reason.as_ref().map(|reason| format!("the broker accepts no messages: {reason}"))
    }

    /// Closes the connection at once, without the AMQP close handshake.
    pub(super) fn abort(&self, reason: &str) {
        if self.close_reason.set(reason.to_owned()).is_ok() {
            tracing::warn!(role = ?self.role, reason, "broker connection aborted");
        }
        self.shutdown_guard.shutdown();
    }

    /// Awaits abandoned confirmations in the background: closing their channel could lose the
    /// messages. Aborts the connection above [`ABANDONED_BATCHES_MAX`].
    pub(super) async fn await_abandoned(&self, confirmations: impl Future<Output = ()>) {
        // A broker with a memory alarm confirms later: a new connection would only send the same
        // messages again.
        if self.abandoned_batches.fetch_add(1, Ordering::SeqCst) >= ABANDONED_BATCHES_MAX
            && self.blocked_reason().is_none()
        {
            self.abort("too many channels with unconfirmed messages");
        }
        confirmations.await;
        self.abandoned_batches.fetch_sub(1, Ordering::SeqCst);
    }

    /// Closes the connection with the AMQP handshake, within `connect_timeout`.
    pub(super) async fn close(&self) {
        drop(self.close_reason.set("closed by this process".to_owned()));
        let closing = self.inner.close(200, "good-bye".into());
        if !matches!(tokio::time::timeout(self.limit, closing).await, Ok(Ok(()))) {
            tracing::debug!(role = ?self.role, "broker connection closed without handshake");
        }
        self.shutdown_guard.shutdown();
    }
}

async fn handle_events(
    connection: Weak<RabbitConnection>,
    mut events: impl futures_util::Stream<Item = Event> + Unpin,
) {
    while let Some(event) = events.next().await {
        let Some(connection) = connection.upgrade() else { return };
        match event {
            Event::ConnectionBlocked(reason) => {
                tracing::warn!(role = ?connection.role, reason, "the broker accepts no messages");
                *connection.blocked_reason.lock() = Some(reason);
            }
            Event::ConnectionUnblocked => {
                tracing::info!(role = ?connection.role, "the broker accepts messages again");
                *connection.blocked_reason.lock() = None;
            }
            // Errors of a single channel are reported here too.
            Event::Error(error) if !connection.inner.status().connected() => {
                connection.abort(&error_message(&error));
            }
            _ => {}
        }
    }
}
