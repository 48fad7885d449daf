//! Exercises the operations of every process: declare, bind, publish, confirm, consume.

use std::time::Duration;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ExchangeKind};

use super::error_message;
use crate::runtime::clock::now_monotonic;

/// Result of the self-test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelfTest {
    /// All operations succeeded. The duration is that of publish and confirm.
    Works(Duration),
    /// The broker blocks publishing, for this reason.
    Blocked(String),
    /// An operation failed.
    Refused(String),
}

/// Runs the self-test. Exchange and queue have a random name and are deleted at the latest with the
/// connection.
pub(super) async fn run(connection: &Connection, prefix: &str) -> SelfTest {
    let name = format!("{prefix}doctor.{:016x}", fastrand::u64(..));
    match steps(connection, &name).await {
        Ok(result) => result,
        Err(error) => SelfTest::Refused(error_message(&error)),
    }
}

async fn steps(connection: &Connection, name: &str) -> lapin::Result<SelfTest> {
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
