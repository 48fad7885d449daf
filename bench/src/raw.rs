//! Raw AMQP: the usual publish loop, malformed messages, and the content of a queue.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail};
use floodgate::broker::topology::PublishAddress;
use floodgate::redis::scripts::intent::INTENT_BYTES;
use floodgate::runtime::clock::now_monotonic;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm,
};
use testkit::{PrivateServer, rabbitmq};
use tokio::sync::oneshot;

use crate::relay::WINDOW;

/// The queue of the publish loop.
const QUEUE: &str = "bench.raw";
/// Delivery mode of persistent messages.
const PERSISTENT: u8 = 2;

/// Publishes messages of the size of an order to a quorum queue through the default exchange, with
/// a full window of unconfirmed messages. Returns the time without connecting.
pub async fn publish(server: &PrivateServer, messages: u64) -> Result<Duration> {
    let (connection, channel) = connect(server).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), arguments).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let elapsed = run(&channel, messages).await?;
    let found = channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await?;
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    if u64::from(found) != messages {
        bail!("{messages} messages were confirmed, and the queue had {found}");
    }
    connection.close(200, "done".into()).await?;
    Ok(elapsed)
}

async fn run(channel: &Channel, messages: u64) -> Result<Duration> {
    let body = [0xa5_u8; INTENT_BYTES];
    let begun = now_monotonic();
    let mut unconfirmed = VecDeque::with_capacity(WINDOW);
    for _ in 0..messages {
        if unconfirmed.len() >= WINDOW
            && let Some(oldest) = unconfirmed.pop_front()
        {
            confirm(oldest).await?;
        }
        unconfirmed.push_back(send(channel, "", QUEUE, &body).await?);
    }
    for sent in unconfirmed {
        confirm(sent).await?;
    }
    Ok(now_monotonic().duration_since(begun))
}

/// Publishes a persistent message.
async fn send(
    channel: &Channel,
    exchange: &str,
    key: &str,
    body: &[u8],
) -> lapin::Result<PublisherConfirm> {
    let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    let options = BasicPublishOptions::default();
    channel.basic_publish(exchange.into(), key.into(), options, body, properties).await
}

async fn confirm(sent: PublisherConfirm) -> Result<()> {
    match sent.await? {
        Confirmation::Ack(None) => Ok(()),
        other => bail!("a message was not accepted: {other:?}"),
    }
}

/// Interval of malformed messages: about one message in a hundred.
pub const MALFORMED_EVERY: Duration = Duration::from_millis(100);

/// Publishes distinct malformed messages until `stopped`; returns their number.
pub async fn publish_malformed(
    server: &PrivateServer,
    address: &PublishAddress,
    first: u64,
    mut stopped: oneshot::Receiver<()>,
) -> Result<u64> {
    let (_connection, channel) = connect(server).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut pace = tokio::time::interval(MALFORMED_EVERY);
    let mut next = first;
    loop {
        tokio::select! {
            _stopped = &mut stopped => return Ok(next - first),
            _tick = pace.tick() => {}
        }
        let body = format!("malformed {next}");
        let (exchange, key) = (address.exchange.as_str(), address.key.as_str());
        confirm(send(&channel, exchange, key, body.as_bytes()).await?).await?;
        next += 1;
    }
}

/// Purges a queue; returns the number of its messages.
pub async fn purge(server: &PrivateServer, queue: &str) -> Result<u64> {
    let (connection, channel) = connect(server).await?;
    let purged = channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(purged.into())
}

async fn connect(server: &PrivateServer) -> Result<(Connection, Channel)> {
    let connection =
        Connection::connect(&rabbitmq::url(server.addr()), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}
