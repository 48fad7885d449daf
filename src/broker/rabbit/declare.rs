//! Brings the topology about, and says what does not fit.
//!
//! Declaring is idempotent: what is there as it should be stays untouched, what differs is refused
//! by the broker, which names the difference.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ErrorKind};

use super::super::Error;
use super::super::topology::{Argument, Exchange, ExchangeKind, Queue, Topology};
use super::said;
use super::subscriber::is_missing;

/// Declares everything, on channels of its own. Tells the name of each queue that it creates,
/// before it does.
pub(super) async fn declare(
    connection: &Connection,
    topology: &Topology,
    creating: impl Fn(&str),
) -> Result<(), Error> {
    let mut channel = open(connection).await?;
    for one in topology.exchanges() {
        exchange(&channel, &one).await.map_err(|error| explain(&error, "exchange", &one.name))?;
    }
    for one in topology.queues() {
        let failed = |error| explain(&error, "queue", &one.name);
        if is_absent(&channel, &one).await {
            creating(&one.name);
            channel = open(connection).await?;
        }
        queue(&channel, &one).await.map_err(failed)?;
        bind(&channel, &one).await.map_err(failed)?;
    }
    Ok(())
}

async fn open(connection: &Connection) -> Result<Channel, Error> {
    let opened = connection.create_channel().await;
    opened.map_err(|error| Error::Unavailable { reason: said(&error) })
}

/// Whether there is no such queue. Then the broker has closed the channel.
async fn is_absent(channel: &Channel, queue: &Queue) -> bool {
    let options = QueueDeclareOptions::durable().passive();
    let name = queue.name.as_str().into();
    let seen = channel.queue_declare(name, options, FieldTable::default()).await;
    seen.is_err_and(|error| is_missing(&error))
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

/// What an error of a declaration means, and what to do.
pub(super) fn explain(error: &lapin::Error, what: &str, name: &str) -> Error {
    let ErrorKind::ProtocolError(answer) = error.kind() else {
        return Error::Unavailable { reason: said(error) };
    };
    let told = answer.get_message().as_str();
    let is = |kind: AMQPSoftError| answer.get_id() == kind.get_id();
    let vhost = vhost_in(told);
    if is(AMQPSoftError::PRECONDITIONFAILED) {
        let delete = match what {
            // A quorum queue refuses `--if-empty`, and everything of ours is one.
            "queue" => format!(
                "stop what uses it, and when `rabbitmqctl list_queues -p {vhost} name messages \
                 type` says 0 for it, `rabbitmqctl delete_queue {name} -p {vhost} --if-empty` \
                 (without --if-empty if its type is quorum)"
            ),
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
             read what begins with the namespace: `rabbitmqctl set_permissions -p {vhost} USER \
             '^NAMESPACE\\.' '^NAMESPACE\\.' '^NAMESPACE\\.'`"
        );
        return Error::Topology { what };
    }
    match answer.kind() {
        AMQPErrorKind::Hard(kind) if !is_about_what_was_asked(kind) => {
            Error::Unavailable { reason: said(error) }
        }
        _ => Error::Topology { what: format!("{what} {name} cannot be declared: {told}") },
    }
}

/// Whether the broker ended the connection because of what it was asked to declare. Otherwise the
/// trouble is its own, or that of the connection: it is stopped, or short of something.
fn is_about_what_was_asked(kind: &AMQPHardError) -> bool {
    matches!(
        kind,
        AMQPHardError::INVALIDPATH
            | AMQPHardError::COMMANDINVALID
            | AMQPHardError::NOTALLOWED
            | AMQPHardError::NOTIMPLEMENTED
    )
}

/// The virtual host that the broker names in its answer, as a shell wants it; else a placeholder.
fn vhost_in(told: &str) -> String {
    let named = told.split_once(" in vhost '").and_then(|(_, rest)| rest.split_once('\''));
    let is_plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    match named {
        Some((name, _)) if !name.is_empty() && name.chars().all(is_plain) => name.to_owned(),
        // Only in quotes, and never what could end them.
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

    fn explained(kind: AMQPErrorKind, told: &str) -> Error {
        let answer = AMQPError::new(kind, told.into());
        explain(&ErrorKind::ProtocolError(answer).into(), "queue", "fg.orders.0")
    }

    #[test]
    fn a_command_names_the_virtual_host_and_deletes_no_orders() {
        let refused = |vhost: &str| {
            let told = format!(
                "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue \
                 'fg.orders.0' in vhost {vhost}: received the value '7'"
            );
            let kind = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
            let Error::Topology { what } = explained(kind, &told) else { panic!("{told}") };
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
        let told = "ACCESS_REFUSED - access to queue 'fg.orders.0' in vhost 'shop' refused";
        let kind = AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED);
        let Error::Topology { what } = explained(kind, told) else { panic!("{told}") };
        assert!(what.contains("set_permissions -p shop USER"), "{what}");
    }

    #[test]
    fn a_broker_in_trouble_is_not_a_topology_that_does_not_fit() {
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
