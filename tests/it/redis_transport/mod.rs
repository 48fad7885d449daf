//! Connections to real Redis servers: failures and reconnection.

use std::sync::Arc;

use floodgate::redis::transport::{
    Connection, ConnectionPool, ConnectionPurpose, Error, PipelineAnswers, PipelineRequest,
    ServerIdentity,
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

/// A call of the script `add` or a plain command.
#[derive(Clone)]
enum TestRequest {
    Add(String, i64),
    Plain(Cmd),
}

impl PipelineRequest for TestRequest {
    fn script(&self) -> Option<&'static str> {
        matches!(self, Self::Add(..)).then_some("add")
    }

    fn command(&self, sha: &str) -> Cmd {
        match self {
            Self::Add(key, number) => {
                let mut command = cmd("EVALSHA");
                command.arg(sha).arg(1).arg(key).arg(number);
                command
            }
            Self::Plain(command) => command.clone(),
        }
    }
}

fn add(key: &str, number: i64) -> TestRequest {
    TestRequest::Add(key.to_owned(), number)
}

fn command(words: &[&str]) -> TestRequest {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    TestRequest::Plain(command)
}

/// Sends one request on a connection of the pool.
async fn call(
    pool: &ConnectionPool,
    purpose: ConnectionPurpose,
    key: &str,
    request: TestRequest,
) -> Result<Value, Error> {
    let answers: PipelineAnswers = pool.call(purpose, key, &[request]).await?;
    answers.into_iter().next().unwrap()
}

/// Waits until calls succeed again.
async fn until_connected(pool: &ConnectionPool, key: &str) -> Arc<Connection> {
    until("a connection that answers", async || {
        let connection = pool.connection(ConnectionPurpose::Hot, key).await.ok()?;
        let answers = connection.call(&[command(&["PING"])]).await.ok()?;
        answers[0].is_ok().then_some(connection)
    })
    .await
}

async fn identity(pool: &ConnectionPool) -> ServerIdentity {
    pool.connection(ConnectionPurpose::Hot, "key").await.unwrap().identity().clone()
}
