//! Flow step 6/12: relay -> order consumer.
//!
//! The RabbitMQ backend.
//!
//! Owns: two connections, one to publish and one to consume, and the thread that drives them.
//! Limits: one connect attempt at a time, with growing waits between failures; a time limit on
//! connecting, declaring and every confirmation; the window of each channel, the prefetch of each
//! subscription. On error: a broken connection is never repaired; the next user makes another,
//! which declares and verifies the topology first; calls during an outage fail at once. A sign of a
//! missing queue (a returned message, an ended subscription) makes the next user verify the
//! topology first.
//!
//! The client library cannot parse a message whose properties contain short strings that are not
//! UTF-8: its delivery closes the connection. At the delivery limit the broker moves the message
//! from an order queue to the dead letters, and from there to `unreadable`, a queue without
//! consumers that `floodgate doctor` reports. After such a failure the queues are read one message
//! at a time for a while (`quarantine`), so that only the deliveries of that message are counted.
//! This program never publishes such strings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::uri::AMQPUri;
use tokio::runtime::{Builder, Handle, Runtime};

use super::{Error, Topology};
use crate::config::broker_urls;
use crate::net::Trust;
use crate::runtime::backoff::Backoff;
use crate::runtime::single_flight::SingleFlight;

mod connection;
mod declare;
mod dial;
pub mod health;
mod new_queues;
mod publish_batch;
mod publisher;
mod quarantine;
mod runtime;
mod subscriber;

use connection::{ConnectionRole, RabbitConnection};
use new_queues::NewQueues;
use quarantine::Quarantine;

/// Address, time limits and topology of the broker.
#[derive(Clone)]
pub struct RabbitOptions {
    /// Of each node.
    uris: Vec<AMQPUri>,
    /// For TLS.
    pub trust: Option<Trust>,
    pub topology: Topology,
    /// Time limit for connecting, to all nodes together, and for declaring the topology.
    pub connect_timeout: Duration,
    /// AMQP heartbeat, in seconds, unless the URL sets one.
    pub heartbeat_s: u16,
    /// Wait after a failed connect attempt; doubles with each further failure.
    pub reconnect_min: Duration,
    pub reconnect_max: Duration,
    /// Time limit from sending a message to its confirmation.
    pub confirm_timeout: Duration,
}

impl RabbitOptions {
    /// Options with default time limits.
    pub fn new(url: &str, topology: Topology) -> Result<Self, String> {
        let uris = broker_urls(url).iter().map(|url| url.parse()).collect::<Result<_, String>>()?;
        Ok(Self {
            uris,
            trust: None,
            topology,
            connect_timeout: Duration::from_secs(3),
            heartbeat_s: 10,
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
            confirm_timeout: Duration::from_secs(10),
        })
    }
}

/// RabbitMQ. Connects on first use; the connections close when the value is dropped.
pub struct RabbitBroker {
    inner: Arc<Inner>,
}

struct Inner {
    options: RabbitOptions,
    publishing: Arc<SingleFlight<Arc<RabbitConnection>>>,
    consuming: Arc<SingleFlight<Arc<RabbitConnection>>>,
    quarantine: Quarantine,
    new_queues: Arc<NewQueues>,
    /// A queue or exchange may be missing.
    needs_verify: AtomicBool,
    closed: AtomicBool,
    /// Drives every connection, so that none ends with the thread of its first caller.
    io: Option<Runtime>,
}

impl RabbitBroker {
    /// Starts the thread that drives the connections; connects on first use.
    pub fn new(options: RabbitOptions) -> Result<Self, Error> {
        let mut builder = Builder::new_multi_thread();
        let io = builder.worker_threads(1).thread_name("broker-io").enable_all().build();
        let io =
            io.map_err(|error| Error::unavailable(format!("no thread for the broker: {error}")))?;
        let pace = Backoff::between(options.reconnect_min, options.reconnect_max);
        Ok(Self {
            inner: Arc::new(Inner {
                options,
                publishing: SingleFlight::new(pace),
                consuming: SingleFlight::new(pace),
                quarantine: Quarantine::default(),
                new_queues: Arc::default(),
                needs_verify: AtomicBool::new(false),
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
        io.ok_or_else(|| Error::unavailable("the connections of this process are closed"))
    }

    async fn publishing(&self) -> Result<Arc<RabbitConnection>, Error> {
        self.connection(&self.publishing, ConnectionRole::Publishing).await
    }

    async fn consuming(&self) -> Result<Arc<RabbitConnection>, Error> {
        self.connection(&self.consuming, ConnectionRole::Consuming).await
    }

    async fn connection(
        &self,
        flight: &Arc<SingleFlight<Arc<RabbitConnection>>>,
        role: ConnectionRole,
    ) -> Result<Arc<RabbitConnection>, Error> {
        let is_reconnect = flight.last().is_some();
        let make = |failures| {
            let (options, new_queues) = (self.options.clone(), self.new_queues.clone());
            async move {
                let made = RabbitConnection::connect(&options, role, &new_queues).await;
                match &made {
                    Ok(_) if is_reconnect => tracing::warn!(?role, "broker reconnected"),
                    Ok(_) => tracing::info!(?role, "broker connected"),
                    Err(error) if failures == 0 => {
                        tracing::warn!(?role, %error, "broker not connected, retrying");
                    }
                    Err(error) => tracing::debug!(?role, %error, failures, "broker not connected"),
                }
                made
            }
        };
        flight.get(self.io()?, make).await
    }

    /// Makes the next user verify the topology.
    fn request_verify(&self) {
        self.needs_verify.store(true, Ordering::SeqCst);
    }

    /// Verifies the topology if requested.
    async fn verify(&self, connection: &Arc<RabbitConnection>) -> Result<(), Error> {
        if !self.needs_verify.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let verified = connection.declare(&self.options, &self.new_queues).await;
        if verified.is_err() {
            self.request_verify();
        }
        verified
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The last user may be dropped in a task, where blocking on the thread is not allowed.
        if let Some(io) = self.io.take() {
            io.shutdown_background();
        }
    }
}

/// The error text without the library's prefixes.
fn error_message(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(answer) => {
            format!("{} ({})", answer.get_message(), answer.get_id())
        }
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
