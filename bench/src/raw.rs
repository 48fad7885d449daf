//! The broker without this program around it: the usual publish loop, and what a queue holds.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::bail;
use floodgate::broker::topology::PublishAddress;
use floodgate::runtime::clock::now_monotonic;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::sync::oneshot;

use crate::rabbit::RabbitServer;

/// The queue of the publish loop.
const QUEUE: &str = "bench.raw";
/// Messages that survive the broker.
const PERSISTENT: u8 = 2;

/// What a publish loop does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loop {
    pub(crate) messages: u64,
    /// Messages on their way at once.
    pub(crate) window: usize,
    pub(crate) body_bytes: usize,
}

/// Publishes to a quorum queue through the default exchange, a window of messages always on its
/// way; how long that took, without connecting.
pub(crate) async fn publish(server: &RabbitServer, job: Loop) -> anyhow::Result<Duration> {
    let (connection, channel) = connect(server).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), arguments).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let took = run(&channel, job).await?;
    let found = channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await?;
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    if u64::from(found) != job.messages {
        bail!("{} messages were confirmed, and the queue had {found}", job.messages);
    }
    connection.close(200, "done".into()).await?;
    Ok(took)
}

async fn run(channel: &Channel, job: Loop) -> anyhow::Result<Duration> {
    let body = vec![0xa5_u8; job.body_bytes];
    let begun = now_monotonic();
    let mut flying = VecDeque::with_capacity(job.window);
    for _ in 0..job.messages {
        if flying.len() >= job.window {
            confirmed(flying.pop_front()).await?;
        }
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let options = BasicPublishOptions::default();
        let sent = channel.basic_publish("".into(), QUEUE.into(), options, &body, properties);
        flying.push_back(sent.await?);
    }
    while !flying.is_empty() {
        confirmed(flying.pop_front()).await?;
    }
    Ok(now_monotonic().duration_since(begun))
}

async fn confirmed(
    oldest: Option<impl Future<Output = lapin::Result<Confirmation>>>,
) -> anyhow::Result<()> {
    let Some(oldest) = oldest else { return Ok(()) };
    match oldest.await? {
        Confirmation::Ack(None) => Ok(()),
        other => bail!("a message was not accepted: {other:?}"),
    }
}

/// How often a stranger writes: about one message in a hundred.
pub(crate) const STRANGE_EVERY: Duration = Duration::from_millis(100);

/// Sends messages that nobody can read, each another, until it is over; how many they were.
pub(crate) async fn strange(
    server: &RabbitServer,
    to: &PublishAddress,
    first: u64,
    mut over: oneshot::Receiver<()>,
) -> anyhow::Result<u64> {
    let (_connection, channel) = connect(server).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut pace = tokio::time::interval(STRANGE_EVERY);
    let mut next = first;
    loop {
        tokio::select! {
            _over = &mut over => return Ok(next - first),
            _tick = pace.tick() => {}
        }
        let body = format!("stranger {next}");
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let (exchange, key) = (to.exchange.as_str().into(), to.key.as_str().into());
        let options = BasicPublishOptions::default();
        let sent = channel.basic_publish(exchange, key, options, body.as_bytes(), properties);
        confirmed(Some(sent.await?)).await?;
        next += 1;
    }
}

/// Empties a queue; how many messages it had.
pub(crate) async fn purge(server: &RabbitServer, queue: &str) -> anyhow::Result<u64> {
    let (connection, channel) = connect(server).await?;
    let purged = channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(purged.into())
}

async fn connect(server: &RabbitServer) -> anyhow::Result<(Connection, Channel)> {
    let connection = Connection::connect(&server.url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}
