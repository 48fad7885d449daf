//! What there is to know about the broker before anything is sold: facts, and no judgement.
//!
//! Everything is asked on connections of its own. What is missing is not declared; what is tried
//! out has names of its own under the namespace and is gone at the end.
//!
//! Limits: the time for connecting, for each step. On error: what could not be seen is part of the
//! facts.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::uri::AMQPScheme;
use lapin::{Channel, Connection, Event, ExchangeKind};
use tokio::time::timeout;

use super::super::Error;
use super::subscriber::is_missing;
use super::{RabbitOptions, declare, said, socket};
use crate::broker::rabbit::{self_test, server_banner};
use crate::runtime::clock::now_monotonic;

pub use crate::broker::rabbit::self_test::SelfTest;

/// Everything that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerFacts {
    /// How long connecting took.
    pub connect_took: Duration,
    /// What the broker says it is, such as `RabbitMQ 3.10.8`; nothing where its greeting is
    /// encrypted.
    pub version: Option<String>,
    /// Every exchange that must be there.
    pub exchanges: Vec<TopologyPart>,
    /// Every queue that must be there.
    pub queues: Vec<TopologyPart>,
    /// What came of publishing and consuming.
    pub trial: SelfTest,
}

/// An exchange or a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyPart {
    /// Its name without the namespace.
    pub name: String,
    /// How it is.
    pub standing: PartStatus,
    /// Messages that wait, if it is a queue.
    pub num_ready: u64,
    /// Its consumers, if it is a queue.
    pub num_consumers: u64,
}

/// How an exchange or a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartStatus {
    /// As it must be.
    Fits,
    /// Not there yet.
    Missing,
    /// What is wrong and, after a semicolon, what to do.
    Wrong(String),
}

/// Why nothing could be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerHealthError {
    /// The broker's own number, if it answered: 403 for the password, 530 for the virtual host.
    pub code: Option<u16>,
    /// What is wrong.
    pub reason: String,
}

/// Looks at the broker. Runs on the caller's thread.
///
/// # Errors
/// It cannot be looked at.
pub async fn look(options: &RabbitOptions) -> Result<BrokerFacts, BrokerHealthError> {
    let limit = options.connect_timeout;
    let begun = now_monotonic();
    let connecting = socket::connect(&options.uri, "floodgate-doctor", limit);
    let (connection, plug) = connecting.await?;
    let connect_took = now_monotonic().duration_since(begun);
    let version = match options.uri.scheme {
        AMQPScheme::AMQP => server_banner::read(&options.uri, limit).await,
        AMQPScheme::AMQPS => None,
    };
    let parts = timeout(limit, parts(&connection, options)).await;
    let silent = |_| BrokerHealthError { code: None, reason: format!("silent for {limit:?}") };
    let (exchanges, queues) = parts.map_err(silent)??;
    // At the end: a blocked connection is of no further use.
    let trial = try_out(&connection, options).await;
    if matches!(trial, SelfTest::Works(_)) {
        // Whatever it answers: all was said.
        drop(timeout(limit, connection.close(200, "seen".into())).await);
    }
    plug.pull();
    Ok(BrokerFacts { connect_took, version, exchanges, queues, trial })
}

/// Publishes and consumes; a broker that accepts nothing says so only then.
async fn try_out(connection: &Connection, options: &RabbitOptions) -> SelfTest {
    let mut events = connection.events_listener();
    let blocked = async {
        loop {
            match events.next().await {
                Some(Event::ConnectionBlocked(reason)) => return SelfTest::Blocked(reason),
                Some(_) => {}
                None => std::future::pending::<()>().await,
            }
        }
    };
    let prefix = options.topology.prefix();
    let trying = self_test::run(connection, &prefix);
    let late =
        |_| SelfTest::Refused(format!("no confirmation within {:?}", options.connect_timeout));
    let trying = timeout(options.connect_timeout, trying);
    tokio::select! {
        biased;
        outcome = blocked => outcome,
        outcome = trying => outcome.unwrap_or_else(late),
    }
}

type Parts = (Vec<TopologyPart>, Vec<TopologyPart>);

async fn parts(
    connection: &Connection,
    options: &RabbitOptions,
) -> Result<Parts, BrokerHealthError> {
    let topology = &options.topology;
    let mut line = ProbeChannel { connection, channel: open(connection).await? };
    let (mut exchanges, mut queues) = (Vec::new(), Vec::new());
    for exchange in topology.exchanges() {
        let name = topology.short(&exchange.name).to_owned();
        let kind = ExchangeKind::default();
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let full = exchange.name.as_str();
        let none = FieldTable::default();
        let seen = line.channel.exchange_declare(full.into(), kind, passive, none).await;
        let standing = if let Err(standing) = line.there("exchange", full, seen).await? {
            standing
        } else {
            let fits = declare::exchange(&line.channel, &exchange).await;
            line.there("exchange", full, fits).await?.err().unwrap_or(PartStatus::Fits)
        };
        exchanges.push(TopologyPart { name, standing, num_ready: 0, num_consumers: 0 });
    }
    for queue in topology.queues() {
        let name = topology.short(&queue.name).to_owned();
        let passive = QueueDeclareOptions::durable().passive();
        let full = queue.name.as_str();
        let seen = line.channel.queue_declare(full.into(), passive, FieldTable::default()).await;
        let (mut num_ready, mut num_consumers) = (0, 0);
        let standing = match line.there("queue", full, seen).await? {
            Err(standing) => standing,
            Ok(seen) => {
                num_ready = seen.message_count().into();
                num_consumers = seen.consumer_count().into();
                let fits = declare::queue(&line.channel, &queue).await;
                line.there("queue", full, fits).await?.err().unwrap_or(PartStatus::Fits)
            }
        };
        queues.push(TopologyPart { name, standing, num_ready, num_consumers });
    }
    Ok((exchanges, queues))
}

/// A channel that the broker closes with each refusal.
struct ProbeChannel<'a> {
    connection: &'a Connection,
    channel: Channel,
}

impl ProbeChannel<'_> {
    /// Reads an answer: there, or how it is instead.
    async fn there<T>(
        &mut self,
        what: &str,
        name: &str,
        answer: lapin::Result<T>,
    ) -> Result<Result<T, PartStatus>, BrokerHealthError> {
        let error = match answer {
            Ok(seen) => return Ok(Ok(seen)),
            Err(error) => error,
        };
        let standing = if is_missing(&error) {
            PartStatus::Missing
        } else {
            match declare::explain(&error, what, name) {
                Error::Topology { what } => PartStatus::Wrong(what),
                Error::Unavailable { reason } | Error::Ended { reason } => {
                    return Err(BrokerHealthError { code: None, reason });
                }
            }
        };
        self.channel = open(self.connection).await?;
        Ok(Err(standing))
    }
}

async fn open(connection: &Connection) -> Result<Channel, BrokerHealthError> {
    let opened = connection.create_channel().await;
    opened.map_err(|error| BrokerHealthError { code: None, reason: said(&error) })
}
