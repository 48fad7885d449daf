//! Facts about the broker, for health checks before a sale. No evaluation.
//!
//! Uses its own connections. Nothing missing is declared; the self-test uses temporary names in the
//! namespace and removes them at the end.
//!
//! Limits: `connect_timeout` for each step. On error: the failure is recorded as a fact, or
//! returned if nothing could be read.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::protocol::connection::AMQPMethod;
use lapin::protocol::{AMQPClass, parse_class};
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, Event, ExchangeKind};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::super::{Error, Topology};
use super::{RabbitOptions, declare, dial, error_message};
use crate::runtime::clock::now_monotonic;

/// The protocol header of AMQP 0-9-1.
const PROTOCOL_HEADER: &[u8; 8] = b"AMQP\x00\x00\x09\x01";
/// Type, channel, length.
const FRAME_HEAD_BYTES: usize = 7;
/// Sanity limit; the first frame, `connection.start`, has some hundred bytes.
const START_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerFacts {
    pub connect_time: Duration,
    /// Product and version, such as `RabbitMQ 3.10.8`; `None` if the broker does not report
    /// them.
    pub version: Option<String>,
    pub num_nodes: usize,
    /// Nodes that do not answer, as `host:port`, with the reason.
    pub silent_nodes: Vec<String>,
    pub exchanges: Vec<TopologyPart>,
    pub queues: Vec<TopologyPart>,
    pub self_test: SelfTest,
}

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
    Matches,
    Missing,
    /// The difference and, after a semicolon, the remedy.
    Differs(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelfTest {
    /// All operations succeeded. The duration is that of publish and confirm.
    Works(Duration),
    /// The broker blocks publishing, for this reason.
    Blocked(String),
    Refused(String),
}

/// Why the broker could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerHealthError {
    /// AMQP reply code, if the broker answered: 403 for the password, 530 for the virtual host.
    pub code: Option<u16>,
    pub reason: String,
}

/// Reads the facts about the broker, on the caller's thread.
pub async fn read(options: &RabbitOptions) -> Result<BrokerFacts, BrokerHealthError> {
    let limit = options.connect_timeout;
    let started_at = now_monotonic();
    let (connection, shutdown_guard) = dial::open(options, "floodgate-doctor", limit).await?;
    let connect_time = now_monotonic().duration_since(started_at);
    let NodeAnswers { version, silent: silent_nodes } = ask_nodes(options).await;
    let parts = timeout(limit, parts(&connection, &options.topology)).await;
    let (exchanges, queues) =
        parts.map_err(|_elapsed| unreadable(format!("no answer within {limit:?}")))??;
    // Last, because a blocked connection cannot be used any further.
    let self_test = run_self_test(&connection, options).await;
    if matches!(self_test, SelfTest::Works(_)) {
        // The result does not matter: all facts are read.
        drop(timeout(limit, connection.close(200, "seen".into())).await);
    }
    shutdown_guard.shutdown();
    let num_nodes = options.uris.len();
    Ok(BrokerFacts { connect_time, version, num_nodes, silent_nodes, exchanges, queues, self_test })
}

/// What the nodes of `amqp.url` answer.
pub(super) struct NodeAnswers {
    /// See [`BrokerFacts::version`].
    version: Option<String>,
    /// See [`BrokerFacts::silent_nodes`].
    pub(super) silent: Vec<String>,
}

/// Connects to every node at once.
pub(super) async fn ask_nodes(options: &RabbitOptions) -> NodeAnswers {
    let asked = options.uris.iter().map(async |uri| {
        let answer = timeout(options.connect_timeout, server_version(uri, options)).await;
        (uri, answer.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())))
    });
    let mut answers = NodeAnswers { version: None, silent: Vec::new() };
    for (uri, answer) in join_all(asked).await {
        match answer {
            Ok(reported) => answers.version = answers.version.or(reported),
            Err(error) => answers.silent.push(format!("{} ({error})", dial::node_name(uri))),
        }
    }
    answers
}

/// Product and version from a node's first frame, which the client library does not expose; `None`
/// if the node does not send them.
async fn server_version(uri: &AMQPUri, options: &RabbitOptions) -> io::Result<Option<String>> {
    let socket_cell = Mutex::default();
    let mut socket = dial::dial(uri, options.trust.as_ref(), &socket_cell).await?;
    socket.write_all(PROTOCOL_HEADER).await?;
    let mut head = [0; FRAME_HEAD_BYTES];
    socket.read_exact(&mut head).await?;
    let length = head.last_chunk::<4>().map_or(0, |length| u32::from_be_bytes(*length));
    let mut frame = Vec::new();
    socket.take(u64::from(length).min(START_BYTES_MAX)).read_to_end(&mut frame).await?;
    Ok(product_and_version(&frame))
}

fn product_and_version(frame: &[u8]) -> Option<String> {
    let (_, AMQPClass::Connection(AMQPMethod::Start(start))) = parse_class(frame).ok()? else {
        return None;
    };
    let property = |name: &str| match start.server_properties.inner().get(name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        _ => None,
    };
    Some(format!("{} {}", property("product")?, property("version")?))
}

/// Runs the self-test. A blocking broker reports that only after a publish.
async fn run_self_test(connection: &Connection, options: &RabbitOptions) -> SelfTest {
    let mut blocked = pin!(connection.events_listener().filter_map(async |event| match event {
        Event::ConnectionBlocked(reason) => Some(reason),
        _ => None,
    }));
    // Exchange and queue are deleted at the latest with the connection.
    let name = format!("{}doctor.{:016x}", options.topology.prefix(), fastrand::u64(..));
    let test = timeout(options.connect_timeout, self_test(connection, &name));
    tokio::select! {
        biased;
        Some(reason) = blocked.next() => SelfTest::Blocked(reason),
        outcome = test => match outcome {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => SelfTest::Refused(error_message(&error)),
            Err(_) => {
                SelfTest::Refused(format!("no confirmation within {:?}", options.connect_timeout))
            }
        },
    }
}

/// Exercises the operations of every process: declare, bind, publish, confirm, consume.
async fn self_test(connection: &Connection, name: &str) -> lapin::Result<SelfTest> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let short_name = || name.into();
    let no_arguments = FieldTable::default;
    // The exchange is deleted with its last queue, the queue with the connection.
    let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(short_name(), ExchangeKind::Fanout, options, no_arguments()).await?;
    let options = QueueDeclareOptions::exclusive().auto_delete();
    channel.queue_declare(short_name(), options, no_arguments()).await?;
    let options = QueueBindOptions::default();
    channel.queue_bind(short_name(), short_name(), "".into(), options, no_arguments()).await?;
    let started_at = now_monotonic();
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default();
    let confirm =
        channel.basic_publish(short_name(), "".into(), options, b"trial", properties).await?;
    let confirmed = confirm.await?;
    let took = now_monotonic().duration_since(started_at);
    if confirmed != Confirmation::Ack(None) {
        return Ok(SelfTest::Refused("a message was not taken".to_owned()));
    }
    let got = channel.basic_get(short_name(), BasicGetOptions { no_ack: true }).await?;
    channel.exchange_delete(short_name(), ExchangeDeleteOptions::default()).await?;
    Ok(match got {
        Some(_) => SelfTest::Works(took),
        None => SelfTest::Refused("a message was confirmed and is not in its queue".to_owned()),
    })
}

async fn parts(
    connection: &Connection,
    topology: &Topology,
) -> Result<(Vec<TopologyPart>, Vec<TopologyPart>), BrokerHealthError> {
    let part = |full_name: &str, status, found: Option<lapin::Queue>| TopologyPart {
        name: topology.short(full_name).to_owned(),
        status,
        num_ready: found.as_ref().map_or(0, |found| found.message_count().into()),
        num_consumers: found.map_or(0, |found| found.consumer_count().into()),
    };
    let (mut exchanges, mut queues) = (Vec::new(), Vec::new());
    for exchange in topology.exchanges() {
        let declare =
            async |channel: &Channel, passive| declare::exchange(channel, &exchange, passive).await;
        let (status, _) = examine(connection, "exchange", &exchange.name, declare).await?;
        exchanges.push(part(&exchange.name, status, None));
    }
    for queue in topology.queues() {
        let declare =
            async |channel: &Channel, passive| declare::queue(channel, &queue, passive).await;
        let (status, found) = examine(connection, "queue", &queue.name, declare).await?;
        queues.push(part(&queue.name, status, found));
    }
    Ok((exchanges, queues))
}

/// Finds an exchange or queue with a passive declaration, then compares it with an active one, on a
/// channel of its own, because a refusal closes the channel.
async fn examine<T>(
    connection: &Connection,
    what: &str,
    name: &str,
    declare: impl AsyncFn(&Channel, bool) -> lapin::Result<T>,
) -> Result<(PartStatus, Option<T>), BrokerHealthError> {
    let opened = connection.create_channel().await;
    let channel = opened.map_err(|error| unreadable(error_message(&error)))?;
    let (found, compared) = match declare(&channel, true).await {
        Ok(found) => (Some(found), declare(&channel, false).await.map(drop)),
        Err(error) => (None, Err(error)),
    };
    let status = match compared {
        Ok(()) => PartStatus::Matches,
        Err(error) if declare::is_missing(&error) => PartStatus::Missing,
        Err(error) => match declare::explain(&error, what, name) {
            Error::Topology { what } => PartStatus::Differs(what),
            Error::Unavailable { reason } | Error::Ended { reason } => {
                return Err(unreadable(reason));
            }
        },
    };
    Ok((status, found))
}

fn unreadable(reason: String) -> BrokerHealthError {
    BrokerHealthError { code: None, reason }
}
