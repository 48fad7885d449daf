//! Brings the topology about, and says what does not fit.
//!
//! Declaring is idempotent: what is there as it should be stays untouched, what differs is refused
//! by the broker, which names the difference.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};

use super::super::Error;
use super::super::topology::{Argument, Exchange, Kind, Queue, Topology};
use super::said;

/// Declares everything, on a channel of its own.
pub(super) async fn declare(connection: &Connection, topology: &Topology) -> Result<(), Error> {
    let opening = connection.create_channel().await;
    let channel = opening.map_err(|error| Error::Unavailable { reason: said(&error) })?;
    for one in topology.exchanges() {
        exchange(&channel, &one).await.map_err(|error| explain(&error, "exchange", &one.name))?;
    }
    for one in topology.queues() {
        let failed = |error| explain(&error, "queue", &one.name);
        queue(&channel, &one).await.map_err(failed)?;
        bind(&channel, &one).await.map_err(failed)?;
    }
    Ok(())
}

pub(super) async fn exchange(channel: &Channel, exchange: &Exchange) -> lapin::Result<()> {
    let kind = match exchange.kind {
        Kind::Direct => ExchangeKind::Direct,
        Kind::Fanout => ExchangeKind::Fanout,
    };
    let mut arguments = FieldTable::default();
    if let Some(alternate) = &exchange.alternate {
        let name = AMQPValue::LongString(alternate.as_str().into());
        arguments.insert("alternate-exchange".into(), name);
    }
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange.name.as_str().into(), kind, options, arguments).await
}

pub(super) async fn queue(channel: &Channel, queue: &Queue) -> lapin::Result<()> {
    let mut arguments = FieldTable::default();
    for (name, value) in &queue.arguments {
        let value = match value {
            Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
        };
        arguments.insert((*name).into(), value);
    }
    let options = QueueDeclareOptions::durable();
    channel.queue_declare(queue.name.as_str().into(), options, arguments).await.map(drop)
}

async fn bind(channel: &Channel, queue: &Queue) -> lapin::Result<()> {
    let (exchange, key) = (queue.exchange.as_str().into(), queue.key.as_str().into());
    let options = QueueBindOptions::default();
    let name = queue.name.as_str().into();
    channel.queue_bind(name, exchange, key, options, FieldTable::default()).await
}

/// What an error of a declaration means, and what to do.
pub(super) fn explain(error: &lapin::Error, what: &str, name: &str) -> Error {
    let ErrorKind::ProtocolError(answer) = error.kind() else {
        return Error::Unavailable { reason: said(error) };
    };
    let told = answer.get_message();
    let is = |kind: AMQPSoftError| answer.get_id() == kind.get_id();
    if is(AMQPSoftError::PRECONDITIONFAILED) {
        let delete = match what {
            "queue" => format!("`rabbitmqctl delete_queue {name}` while it is empty"),
            _ => format!("delete the exchange {name} in the management interface"),
        };
        let what = format!(
            "{what} {name} is there with other arguments ({told}); {delete}, and it is declared \
             anew, or set the configuration back to what it was, or use another `namespace`"
        );
        return Error::Topology { what };
    }
    if is(AMQPSoftError::ACCESSREFUSED) {
        let what = format!(
            "the user may not declare {what} {name} ({told}); allow it to configure, write and \
             read what begins with the namespace: `rabbitmqctl set_permissions -p VHOST USER \
             '^NAMESPACE\\.' '^NAMESPACE\\.' '^NAMESPACE\\.'`"
        );
        return Error::Topology { what };
    }
    Error::Topology { what: format!("{what} {name} cannot be declared: {told}") }
}
