//! Connections to real Redis servers: failures and reconnection.

use std::sync::Arc;

use floodgate::redis::executor::CallError;
use floodgate::redis::transport::{
    Connection, ConnectionPool, ConnectionPurpose, Error, PipelineAnswers, ServerIdentity,
};
use redis::{Cmd, Value, cmd};

use crate::support::wait::until;

mod answers;
mod cluster;
mod replicas;
mod sentinel;
mod single;
mod subscription;
mod url;

/// The digest of the script `add`.
const ADD_SHA: &str = "68fdfe9597a02ce126a99030a70634551c6ff205";

/// A call of the script `add`.
fn add(key: &str, number: i64) -> Cmd {
    cmd("EVALSHA").arg(ADD_SHA).arg(1).arg(key).arg(number).to_owned()
}

fn command(words: &[&str]) -> Cmd {
    cmd(words[0]).arg(&words[1..]).to_owned()
}

/// Whether the call certainly did not run.
fn is_not_done(error: &Error) -> bool {
    matches!(CallError::new(error.clone(), "a test"), CallError::Unavailable { .. })
}

/// Sends one request on a connection of the pool.
async fn call(
    pool: &ConnectionPool,
    purpose: ConnectionPurpose,
    key: &str,
    request: Cmd,
) -> Result<Value, Error> {
    let answers: PipelineAnswers = pool.call(purpose, key, vec![request]).await?;
    answers.into_iter().next().unwrap()
}

/// Waits until calls succeed again.
async fn until_connected(pool: &ConnectionPool, key: &str) -> Arc<Connection> {
    until("a connection that answers", async || {
        let connection = pool.connection(ConnectionPurpose::Hot, key).await.ok()?;
        let answers = connection.call(vec![command(&["PING"])]).await.ok()?;
        answers[0].is_ok().then_some(connection)
    })
    .await
}

async fn identity(pool: &ConnectionPool) -> ServerIdentity {
    pool.connection(ConnectionPurpose::Hot, "key").await.unwrap().identity().clone()
}
