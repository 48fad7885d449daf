//! Declares the topology and explains differences.
//!
//! Declaring is idempotent: the broker leaves equal exchanges and queues untouched, and rejects a
//! different one with the difference in its message.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ErrorKind};

use super::super::Error;
use super::super::topology::{Exchange, PublishAddress, Queue, Topology};
use super::error_message;

/// Declares all exchanges, queues and bindings, on channels of its own. Calls `on_create` with the
/// name of each missing queue before creating it.
pub(super) async fn declare(
    connection: &Connection,
    topology: &Topology,
    on_create: impl Fn(&str),
) -> Result<(), Error> {
    let open = async || {
        let opened = connection.create_channel().await;
        opened.map_err(|error| Error::unavailable(error_message(&error)))
    };
    let mut channel = open().await?;
    for wanted in topology.exchanges() {
        let failed = |error| explain(&error, "exchange", &wanted.name);
        exchange(&channel, &wanted, false).await.map_err(failed)?;
    }
    for wanted in topology.queues() {
        let failed = |error| explain(&error, "queue", &wanted.name);
        if queue(&channel, &wanted, true).await.is_err_and(|error| is_missing(&error)) {
            on_create(&wanted.name);
            // With this answer the broker has closed the channel.
            channel = open().await?;
        }
        queue(&channel, &wanted, false).await.map_err(failed)?;
        let PublishAddress { exchange, key } = &wanted.binding;
        let (name, exchange) = (wanted.name.as_str().into(), exchange.as_str().into());
        let (key, options) = (key.as_str().into(), QueueBindOptions::default());
        let bound = channel.queue_bind(name, exchange, key, options, FieldTable::default()).await;
        bound.map_err(failed)?;
    }
    Ok(())
}

/// Declares the exchange; if `passive`, only finds it.
pub(super) async fn exchange(
    channel: &Channel,
    exchange: &Exchange,
    passive: bool,
) -> lapin::Result<()> {
    let (name, kind) = (exchange.name.as_str().into(), exchange.kind.clone());
    let options =
        ExchangeDeclareOptions { durable: true, passive, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name, kind, options, FieldTable::default()).await
}

/// Declares the queue; if `passive`, only finds it.
pub(super) async fn queue(
    channel: &Channel,
    queue: &Queue,
    passive: bool,
) -> lapin::Result<lapin::Queue> {
    let options = QueueDeclareOptions { passive, ..QueueDeclareOptions::durable() };
    let arguments = if passive { FieldTable::default() } else { queue.arguments() };
    channel.queue_declare(queue.name.as_str().into(), options, arguments).await
}

/// Whether the broker answered that an exchange or queue does not exist.
pub(super) fn is_missing(error: &lapin::Error) -> bool {
    has_code(error, AMQPSoftError::NOTFOUND.get_id())
}

/// Whether the broker answered with this AMQP reply code.
pub(super) fn has_code(error: &lapin::Error, code: u16) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(answer) if answer.get_id() == code)
}

/// Maps an error of a declaration to its meaning and remedy.
pub(super) fn explain(error: &lapin::Error, what: &str, name: &str) -> Error {
    let ErrorKind::ProtocolError(answer) = error.kind() else {
        return Error::unavailable(error_message(error));
    };
    let message = answer.get_message().as_str();
    let is = |kind: AMQPSoftError| answer.get_id() == kind.get_id();
    let vhost = vhost_in(message);
    let what = if is(AMQPSoftError::PRECONDITIONFAILED) {
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
        format!(
            "{what} {name} is there with other arguments ({message}); {delete}, and it is declared \
             anew, or set the configuration back to what it was, or use another `namespace`"
        )
    } else if is(AMQPSoftError::ACCESSREFUSED) {
        format!(
            "the user may not declare {what} {name} ({message}); allow it to configure, write and \
             read what begins with the namespace: `rabbitmqctl set_permissions -p {vhost} USER \
             '^NAMESPACE\\.' '^NAMESPACE\\.' '^NAMESPACE\\.'`"
        )
    } else if matches!(answer.kind(), AMQPErrorKind::Hard(kind) if !is_declaration_error(kind)) {
        return Error::unavailable(error_message(error));
    } else {
        format!("{what} {name} cannot be declared: {message}")
    };
    Error::Topology { what }
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
#[path = "declare_tests.rs"]
mod tests;
