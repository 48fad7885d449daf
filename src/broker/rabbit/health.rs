//! Facts about the broker, for health checks before a sale. No evaluation.
//!
//! Uses its own connections. Nothing missing is declared; the self-test uses temporary names in the
//! namespace and removes them at the end.
//!
//! Limits: `connect_timeout` for each step. On error: the failure is recorded as a fact, or
//! returned if nothing could be read.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::uri::AMQPScheme;
use lapin::{Channel, Connection, Event, ExchangeKind};
use tokio::time::timeout;

use super::super::Error;
use super::subscriber::is_missing;
use super::{RabbitOptions, declare, error_message, socket};
use crate::broker::rabbit::{self_test, server_banner};
use crate::runtime::clock::now_monotonic;

pub use crate::broker::rabbit::self_test::SelfTest;

/// Facts about the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerFacts {
    pub connect_time: Duration,
    /// Product and version, such as `RabbitMQ 3.10.8`; `None` with TLS, or if the broker does not
    /// report them.
    pub version: Option<String>,
    /// Every exchange of the topology.
    pub exchanges: Vec<TopologyPart>,
    /// Every queue of the topology.
    pub queues: Vec<TopologyPart>,
    /// Result of publishing and consuming a test message.
    pub self_test: SelfTest,
}

/// State of one exchange or queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyPart {
    /// Name without the namespace.
    pub name: String,
    pub status: PartStatus,
    /// Ready messages; 0 for an exchange.
    pub num_ready: u64,
    /// Consumers; 0 for an exchange.
    pub num_consumers: u64,
}

/// Whether an exchange or queue is declared as required.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartStatus {
    /// Declared as required.
    Matches,
    /// Not declared.
    Missing,
    /// The difference and, after a semicolon, the remedy.
    Differs(String),
}

/// Why the broker could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerHealthError {
    /// AMQP reply code, if the broker answered: 403 for the password, 530 for the virtual host.
    pub code: Option<u16>,
    pub reason: String,
}

/// Reads the facts about the broker, on the caller's thread.
///
/// # Errors
/// The broker cannot be reached, or the topology cannot be read.
pub async fn read(options: &RabbitOptions) -> Result<BrokerFacts, BrokerHealthError> {
    let limit = options.connect_timeout;
    let started_at = now_monotonic();
    let (connection, shutdown_guard) =
        socket::connect(&options.uri, "floodgate-doctor", limit).await?;
    let connect_time = now_monotonic().duration_since(started_at);
    let version = match options.uri.scheme {
        AMQPScheme::AMQP => server_banner::read(&options.uri, limit).await,
        AMQPScheme::AMQPS => None,
    };
    let parts = timeout(limit, parts(&connection, options)).await;
    let no_answer =
        |_| BrokerHealthError { code: None, reason: format!("no answer within {limit:?}") };
    let (exchanges, queues) = parts.map_err(no_answer)??;
    // Last, because a blocked connection cannot be used any further.
    let self_test = run_self_test(&connection, options).await;
    if matches!(self_test, SelfTest::Works(_)) {
        // The result does not matter: all facts are read.
        drop(timeout(limit, connection.close(200, "seen".into())).await);
    }
    shutdown_guard.shutdown();
    Ok(BrokerFacts { connect_time, version, exchanges, queues, self_test })
}

/// Runs the self-test. A blocking broker reports that only after a publish.
async fn run_self_test(connection: &Connection, options: &RabbitOptions) -> SelfTest {
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
    let timed_out =
        |_| SelfTest::Refused(format!("no confirmation within {:?}", options.connect_timeout));
    let test = timeout(options.connect_timeout, self_test::run(connection, &prefix));
    tokio::select! {
        biased;
        outcome = blocked => outcome,
        outcome = test => outcome.unwrap_or_else(timed_out),
    }
}

type Parts = (Vec<TopologyPart>, Vec<TopologyPart>);

async fn parts(
    connection: &Connection,
    options: &RabbitOptions,
) -> Result<Parts, BrokerHealthError> {
    let topology = &options.topology;
    let mut probe = ProbeChannel { connection, channel: open(connection).await? };
    let (mut exchanges, mut queues) = (Vec::new(), Vec::new());
    for exchange in topology.exchanges() {
        let name = topology.short(&exchange.name).to_owned();
        let kind = ExchangeKind::default();
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let full_name = exchange.name.as_str();
        let arguments = FieldTable::default();
        let answer =
            probe.channel.exchange_declare(full_name.into(), kind, passive, arguments).await;
        let status = if let Err(status) = probe.classify("exchange", full_name, answer).await? {
            status
        } else {
            let answer = declare::exchange(&probe.channel, &exchange).await;
            probe
                .classify("exchange", full_name, answer)
                .await?
                .err()
                .unwrap_or(PartStatus::Matches)
        };
        exchanges.push(TopologyPart { name, status, num_ready: 0, num_consumers: 0 });
    }
    for queue in topology.queues() {
        let name = topology.short(&queue.name).to_owned();
        let passive = QueueDeclareOptions::durable().passive();
        let full_name = queue.name.as_str();
        let arguments = FieldTable::default();
        let answer = probe.channel.queue_declare(full_name.into(), passive, arguments).await;
        let (mut num_ready, mut num_consumers) = (0, 0);
        let status = match probe.classify("queue", full_name, answer).await? {
            Err(status) => status,
            Ok(found) => {
                num_ready = found.message_count().into();
                num_consumers = found.consumer_count().into();
                let answer = declare::queue(&probe.channel, &queue).await;
                probe
                    .classify("queue", full_name, answer)
                    .await?
                    .err()
                    .unwrap_or(PartStatus::Matches)
            }
        };
        queues.push(TopologyPart { name, status, num_ready, num_consumers });
    }
    Ok((exchanges, queues))
}

/// A channel that is opened again after each refusal, which closes it.
struct ProbeChannel<'a> {
    connection: &'a Connection,
    channel: Channel,
}

impl ProbeChannel<'_> {
    /// The answer, or the status that its error means.
    ///
    /// # Errors
    /// The error says nothing about the exchange or queue.
    async fn classify<T>(
        &mut self,
        what: &str,
        name: &str,
        answer: lapin::Result<T>,
    ) -> Result<Result<T, PartStatus>, BrokerHealthError> {
        let error = match answer {
            Ok(answer) => return Ok(Ok(answer)),
            Err(error) => error,
        };
        let status = if is_missing(&error) {
            PartStatus::Missing
        } else {
            match declare::explain(&error, what, name) {
                Error::Topology { what } => PartStatus::Differs(what),
                Error::Unavailable { reason } | Error::Ended { reason } => {
                    return Err(BrokerHealthError { code: None, reason });
                }
            }
        };
        self.channel = open(self.connection).await?;
        Ok(Err(status))
    }
}

async fn open(connection: &Connection) -> Result<Channel, BrokerHealthError> {
    let opened = connection.create_channel().await;
    opened.map_err(|error| BrokerHealthError { code: None, reason: error_message(&error) })
}
