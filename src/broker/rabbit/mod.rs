//! Flow step 6/12: relay -> consumer.
//!
//! The broker is RabbitMQ.
//!
//! Owns: two connections, one to publish and one to consume, and the thread that drives them.
//! Limits: one attempt to connect at a time, with growing waits between attempts that fail; a time
//! limit on connecting, declaring and every confirmation; the window of each channel, the prefetch
//! of each subscription. On error: a connection that broke is never repaired; the next user makes
//! another, which declares and verifies the topology first; callers in an outage are refused at
//! once. Whatever hints at a missing queue (a returned message, a subscription that ended) makes
//! the next user verify the topology before it goes on. On death: unconfirmed messages are unknown,
//! unacknowledged deliveries come again. May repeat: every message.
//!
//! A message whose properties hold short text that is not UTF-8 cannot be read by the client
//! library: its delivery ends the connection, until the broker has delivered it too often and sets
//! it aside: from an order queue among the dead letters, from there into a queue that nobody
//! consumes (`unreadable`), where `floodgate doctor` sees it. After such an end the queues are read
//! one message at a time for a while (`caution`), so that only that message is counted. No
//! publisher of ours writes such text.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lapin::uri::AMQPUri;
use tokio::runtime::{Builder, Handle, Runtime};

use super::topology::Topology;
use super::{
    BrokerStatus, Error, PublishChannel, Publisher, QueueDepth, Source, Subscriber, Subscription,
};
use crate::runtime::single_flight::{RetryPace, SingleFlight, ValueStatus};

mod confirmations;
mod connection;
mod declare;
pub mod health;
mod new_queues;
mod publish_batch;
mod publisher;
mod quarantine;
mod self_test;
mod server_banner;
mod socket;
mod subscriber;

use connection::{ConnectionRole, RabbitConnection};
use new_queues::NewQueues;
use quarantine::Quarantine;

/// How to reach the broker, and what it must hold.
#[derive(Clone)]
pub struct RabbitOptions {
    uri: AMQPUri,
    /// What must be there.
    pub topology: Topology,
    /// From the first packet until the topology is declared.
    pub connect_timeout: Duration,
    /// How often both sides say that they are there, in seconds.
    pub heartbeat_s: u16,
    /// After an attempt to connect that failed; doubles with each further one.
    pub reconnect_min: Duration,
    /// The longest such wait.
    pub reconnect_max: Duration,
    /// From sending a message to its confirmation.
    pub confirm_timeout: Duration,
}

impl fmt::Debug for RabbitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = format!("{}:{}", self.uri.authority.host, self.uri.authority.port);
        f.debug_struct("RabbitOptions")
            .field("place", &place)
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

impl RabbitOptions {
    /// A broker at this address, with waits that suit most.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub fn new(url: &str, topology: Topology) -> Result<Self, String> {
        let uri: AMQPUri = url.parse()?;
        Ok(Self {
            uri,
            topology,
            connect_timeout: Duration::from_secs(3),
            heartbeat_s: 10,
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
            confirm_timeout: Duration::from_secs(10),
        })
    }
}

/// RabbitMQ. Connects when it is first used; the connections end with the value.
pub struct RabbitBroker {
    inner: Arc<Inner>,
}

impl fmt::Debug for RabbitBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitBroker").field("options", &self.inner.options).finish()
    }
}

struct Inner {
    options: RabbitOptions,
    publishing: Arc<SingleFlight<Arc<RabbitConnection>>>,
    consuming: Arc<SingleFlight<Arc<RabbitConnection>>>,
    caution: Arc<Quarantine>,
    new_queues: Arc<NewQueues>,
    /// Something may be missing in the broker.
    doubtful: AtomicBool,
    closed: AtomicBool,
    /// Drives every connection on a thread of its own, so that a connection does not end with the
    /// thread that happened to make it.
    io: Option<Runtime>,
}

impl RabbitBroker {
    /// Gets ready; connects to nothing yet.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn new(options: RabbitOptions) -> Result<Self, Error> {
        let mut builder = Builder::new_multi_thread();
        let io = builder.worker_threads(1).thread_name("broker-io").enable_all().build();
        let io = io.map_err(|error| Error::Unavailable {
            reason: format!("no thread for the broker: {error}"),
        })?;
        let pace = RetryPace { min: options.reconnect_min, max: options.reconnect_max };
        Ok(Self {
            inner: Arc::new(Inner {
                options,
                publishing: SingleFlight::new(pace),
                consuming: SingleFlight::new(pace),
                caution: Arc::default(),
                new_queues: Arc::default(),
                doubtful: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                io: Some(io),
            }),
        })
    }
}

impl Inner {
    fn io(&self) -> Result<&Handle, Error> {
        let closed = self.closed.load(Ordering::SeqCst);
        let io = self.io.as_ref().filter(|_| !closed).map(Runtime::handle);
        io.ok_or_else(|| Error::Unavailable {
            reason: "the connections of this process are closed".to_owned(),
        })
    }

    async fn publishing(&self) -> Result<Arc<RabbitConnection>, Error> {
        self.line(&self.publishing, ConnectionRole::Publishing).await
    }

    async fn consuming(&self) -> Result<Arc<RabbitConnection>, Error> {
        self.line(&self.consuming, ConnectionRole::Consuming).await
    }

    async fn line(
        &self,
        flight: &Arc<SingleFlight<Arc<RabbitConnection>>>,
        lane: ConnectionRole,
    ) -> Result<Arc<RabbitConnection>, Error> {
        let again = flight.last().is_some();
        let make = |before| {
            let (options, new_queues) = (self.options.clone(), self.new_queues.clone());
            async move {
                let made = RabbitConnection::make(&options, lane, &new_queues).await;
                match &made {
                    Ok(_) if again => tracing::warn!(?lane, "broker connected again"),
                    Ok(_) => tracing::info!(?lane, "broker connected"),
                    Err(error) if before == 0 => {
                        tracing::warn!(?lane, %error, "broker not connected, will keep trying");
                    }
                    Err(error) => tracing::debug!(?lane, %error, before, "broker not connected"),
                }
                made
            }
        };
        flight.get(self.io()?, make).await
    }

    /// Something may be missing: whoever comes next verifies it.
    fn doubt(&self) {
        self.doubtful.store(true, Ordering::SeqCst);
    }

    /// Verifies the topology if there is doubt.
    async fn verify(&self, line: &Arc<RabbitConnection>) -> Result<(), Error> {
        if !self.doubtful.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let verified = line.declare(&self.options, &self.new_queues).await;
        if verified.is_err() {
            self.doubt();
        }
        verified
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Waiting for the thread is not allowed where the last user may be dropped: in a task.
        if let Some(io) = self.io.take() {
            io.shutdown_background();
        }
    }
}

#[async_trait]
impl Publisher for RabbitBroker {
    fn outgoing(&self, window: usize) -> Box<dyn PublishChannel> {
        Box::new(publisher::RabbitOutgoing::new(self.inner.clone(), window))
    }

    fn reach(&self) -> BrokerStatus {
        match self.inner.publishing.standing() {
            Some(ValueStatus::Gone { .. }) => BrokerStatus::Down,
            // Nothing is known against it before it is first used.
            None => BrokerStatus::Up,
            Some(ValueStatus::Good) => {
                let line = self.inner.publishing.last();
                let blocked = line.is_some_and(|line| line.blocked().is_some());
                if blocked { BrokerStatus::Blocked } else { BrokerStatus::Up }
            }
        }
    }

    async fn declare(&self) -> Result<(), Error> {
        let (options, new_queues) = (self.inner.options.clone(), self.inner.new_queues.clone());
        // On the thread that drives connections, whoever asks.
        let errand = self.inner.io()?.spawn(async move {
            let line =
                RabbitConnection::make(&options, ConnectionRole::Errand, &new_queues).await?;
            // Nobody waits for the end of it.
            drop(Handle::current().spawn(async move {
                new_queues.settle(&line).await;
                line.close().await;
            }));
            Ok(())
        });
        errand.await.unwrap_or_else(|error| {
            Err(Error::Unavailable { reason: format!("the attempt ended: {error}") })
        })
    }
}

#[async_trait]
impl Subscriber for RabbitBroker {
    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, Error> {
        subscriber::subscribe(&self.inner, source, prefetch).await
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>, Error> {
        subscriber::depths(&self.inner).await
    }

    async fn close(&self) {
        if self.inner.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let lines = [self.inner.publishing.last(), self.inner.consuming.last()];
        let closing = lines.into_iter().flatten().map(|line| async move { line.close().await });
        futures_util::future::join_all(closing).await;
    }
}

/// What went wrong, without the library's own prefixes.
fn said(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(answer) => {
            format!("{} ({})", answer.get_message(), answer.get_id())
        }
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
