//! Declares the topology and explains differences.
//!
//! Declaring is idempotent: the broker leaves equal exchanges and queues untouched, and rejects a
//! different one with the difference in its message.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind};

use super::super::Error;
use super::super::topology::{Argument, Exchange, ExchangeKind, Queue, Topology};
use super::error_message;
use super::subscriber::is_missing;

/// Declares all exchanges, queues and bindings, on channels of its own. Calls `on_create` with the
/// name of each missing queue before creating it.
pub(super) async fn declare(
    connection: &Connection,
    topology: &Topology,
    on_create: impl Fn(&str),
) -> Result<(), Error> {
    let mut channel = open(connection).await?;
    for wanted in topology.exchanges() {
        let failed = |error| explain(&error, "exchange", &wanted.name);
        exchange(&channel, &wanted).await.map_err(failed)?;
    }
    for wanted in topology.queues() {
        let failed = |error| explain(&error, "queue", &wanted.name);
        if is_absent(&channel, &wanted).await {
            on_create(&wanted.name);
            channel = open(connection).await?;
        }
        queue(&channel, &wanted).await.map_err(failed)?;
        bind(&channel, &wanted).await.map_err(failed)?;
    }
    Ok(())
}

async fn open(connection: &Connection) -> Result<Channel, Error> {
    let opened = connection.create_channel().await;
    opened.map_err(|error| Error::Unavailable { reason: error_message(&error) })
}

/// Whether the queue does not exist. If so, the broker has closed the channel.
async fn is_absent(channel: &Channel, queue: &Queue) -> bool {
    let options = QueueDeclareOptions::durable().passive();
    let name = queue.name.as_str().into();
    let declared = channel.queue_declare(name, options, FieldTable::default()).await;
    declared.is_err_and(|error| is_missing(&error))
}

pub(super) async fn exchange(channel: &Channel, exchange: &Exchange) -> lapin::Result<()> {
    let kind = match exchange.kind {
        ExchangeKind::Direct => lapin::ExchangeKind::Direct,
        ExchangeKind::Fanout => lapin::ExchangeKind::Fanout,
    };
    let arguments = FieldTable::default();
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

/// Maps an error of a declaration to its meaning and remedy.
pub(super) fn explain(error: &lapin::Error, what: &str, name: &str) -> Error {
    let ErrorKind::ProtocolError(answer) = error.kind() else {
        return Error::Unavailable { reason: error_message(error) };
    };
    let message = answer.get_message().as_str();
    let is = |kind: AMQPSoftError| answer.get_id() == kind.get_id();
    let vhost = vhost_in(message);
    if is(AMQPSoftError::PRECONDITIONFAILED) {
        let delete = match what {
            // A quorum queue rejects `--if-empty`, and all queues of the topology are quorum
            // queues.
            "queue" => format!(
                "stop what uses it, and when `rabbitmqctl list_queues -p {vhost} name messages \
                 type` says 0 for it, `rabbitmqctl delete_queue {name} -p {vhost} --if-empty` \
                 (without --if-empty if its type is quorum)"
            ),
            _ => format!("delete the exchange {name} in the management interface"),
        };
        let what = format!(
            "{what} {name} is there with other arguments ({message}); {delete}, and it is declared \
             anew, or set the configuration back to what it was, or use another `namespace`"
        );
        return Error::Topology { what };
    }
    if is(AMQPSoftError::ACCESSREFUSED) {
        let what = format!(
            "the user may not declare {what} {name} ({message}); allow it to configure, write and \
             read what begins with the namespace: `rabbitmqctl set_permissions -p {vhost} USER \
             '^NAMESPACE\\.' '^NAMESPACE\\.' '^NAMESPACE\\.'`"
        );
        return Error::Topology { what };
    }
    match answer.kind() {
        AMQPErrorKind::Hard(kind) if !is_declaration_error(kind) => {
            Error::Unavailable { reason: error_message(error) }
        }
        _ => Error::Topology { what: format!("{what} {name} cannot be declared: {message}") },
    }
}

/// Whether the broker closed the connection because of the declaration. Other codes report a state
/// of the broker or the connection: a shutdown, or a lack of resources.
fn is_declaration_error(kind: &AMQPHardError) -> bool {
    matches!(
        kind,
        AMQPHardError::INVALIDPATH
            | AMQPHardError::COMMANDINVALID
            | AMQPHardError::NOTALLOWED
            | AMQPHardError::NOTIMPLEMENTED
    )
}

/// The virtual host named in the broker's message, quoted for a shell; otherwise a placeholder.
fn vhost_in(message: &str) -> String {
    let named = message.split_once(" in vhost '").and_then(|(_, rest)| rest.split_once('\''));
    let is_plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    match named {
        Some((name, _)) if !name.is_empty() && name.chars().all(is_plain) => name.to_owned(),
        // Quoted, unless a character could end the quotes.
        Some((name, _)) if !name.contains(|c: char| c.is_control() || c == '`') => {
            format!("'{name}'")
        }
        _ => "VHOST".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    fn explained(kind: AMQPErrorKind, message: &str) -> Error {
        let answer = AMQPError::new(kind, message.into());
        explain(&ErrorKind::ProtocolError(answer).into(), "queue", "fg.orders.0")
    }

    #[test]
    fn a_remedy_names_the_virtual_host_and_deletes_no_orders() {
        let refused = |vhost: &str| {
            let message = format!(
                "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue \
                 'fg.orders.0' in vhost {vhost}: received the value '7'"
            );
            let kind = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
            let Error::Topology { what } = explained(kind, &message) else { panic!("{message}") };
            what
        };
        for (vhost, typed) in [
            ("'/'", "/"),
            ("'shop-1'", "shop-1"),
            ("'a b'", "'a b'"),
            ("'a`b'", "VHOST"),
            ("", "VHOST"),
        ] {
            let what = refused(vhost);
            let delete = format!("`rabbitmqctl delete_queue fg.orders.0 -p {typed} --if-empty`");
            assert!(what.contains(&delete), "{what}");
            assert!(what.contains(&format!("list_queues -p {typed} name messages")), "{what}");
        }
        let message = "ACCESS_REFUSED - access to queue 'fg.orders.0' in vhost 'shop' refused";
        let kind = AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED);
        let Error::Topology { what } = explained(kind, message) else { panic!("{message}") };
        assert!(what.contains("set_permissions -p shop USER"), "{what}");
    }

    #[test]
    fn an_unavailable_broker_is_not_a_topology_error() {
        for (id, is_topology) in [
            (320, false),
            (402, true),
            (501, false),
            (502, false),
            (503, true),
            (504, false),
            (505, false),
            (506, false),
            (530, true),
            (540, true),
            (541, false),
        ] {
            let kind = AMQPErrorKind::Hard(AMQPHardError::from_id(id).unwrap());
            let error = explained(kind, "said so");
            assert_eq!(matches!(error, Error::Topology { .. }), is_topology, "{id}: {error}");
            assert!(
                is_topology || error == Error::Unavailable { reason: format!("said so ({id})") }
            );
        }
        let locked = AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED);
        assert!(matches!(explained(locked, "exclusive"), Error::Topology { .. }));
        let gone = explain(&ErrorKind::MissingHeartbeatError.into(), "queue", "fg.orders.0");
        assert!(matches!(gone, Error::Unavailable { .. }));
    }
}
