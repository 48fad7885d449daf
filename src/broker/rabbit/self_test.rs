//! Tries out what every process does: declare, bind, publish, confirm, consume.

use std::time::Duration;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ExchangeKind};

use super::said;
use crate::runtime::clock::now_monotonic;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelfTest {
    /// Everything works; a message was confirmed so quickly.
    Works(Duration),
    /// The broker accepts no messages, for this reason.
    Blocked(String),
    /// Something did not work.
    Refused(String),
}

/// Everything under one name, which is gone when the connection is.
pub(super) async fn run(connection: &Connection, prefix: &str) -> SelfTest {
    let name = format!("{prefix}doctor.{:016x}", fastrand::u64(..));
    match steps(connection, &name).await {
        Ok(trial) => trial,
        Err(error) => SelfTest::Refused(said(&error)),
    }
}

async fn steps(connection: &Connection, name: &str) -> lapin::Result<SelfTest> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let short = || name.into();
    let none = FieldTable::default;
    // Gone with its last queue, and that one with the connection.
    let options = ExchangeDeclareOptions { auto_delete: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(short(), ExchangeKind::Fanout, options, none()).await?;
    let options = QueueDeclareOptions::exclusive().auto_delete();
    channel.queue_declare(short(), options, none()).await?;
    let options = QueueBindOptions::default();
    channel.queue_bind(short(), short(), "".into(), options, none()).await?;
    let begun = now_monotonic();
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default();
    let confirm = channel.basic_publish(short(), "".into(), options, b"trial", properties).await?;
    let confirmed = confirm.await?;
    let took = now_monotonic().duration_since(begun);
    if confirmed != Confirmation::Ack(None) {
        return Ok(SelfTest::Refused("a message was not taken".to_owned()));
    }
    let got = channel.basic_get(short(), BasicGetOptions { no_ack: true }).await?;
    channel.exchange_delete(short(), ExchangeDeleteOptions::default()).await?;
    Ok(match got {
        Some(_) => SelfTest::Works(took),
        None => SelfTest::Refused("a message was confirmed and is not in its queue".to_owned()),
    })
}
