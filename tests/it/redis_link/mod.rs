//! Connections to real Redis servers, and how they break and come back.

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
#[cfg(feature = "tls")]
mod tls;

/// Calls the script `add`, or is a plain command.
#[derive(Clone)]
enum Ask {
    Add(String, i64),
    Plain(Cmd),
}

impl PipelineRequest for Ask {
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

fn add(key: &str, number: i64) -> Ask {
    Ask::Add(key.to_owned(), number)
}

fn command(words: &[&str]) -> Ask {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    Ask::Plain(command)
}

/// One request on a link of its own choice.
async fn ask(
    links: &ConnectionPool,
    lane: ConnectionPurpose,
    key: &str,
    request: Ask,
) -> Result<Value, Error> {
    let answers: PipelineAnswers = links.call(lane, key, &[request]).await?;
    answers.into_iter().next().unwrap()
}

/// Waits until calls come through again.
async fn until_connected(links: &ConnectionPool, key: &str) -> Arc<Connection> {
    until("a connection that answers", async || {
        let link = links.link(ConnectionPurpose::Hot, key).await.ok()?;
        let answers = link.call(&[command(&["PING"])]).await.ok()?;
        answers[0].is_ok().then_some(link)
    })
    .await
}

async fn identity(links: &ConnectionPool) -> ServerIdentity {
    links.link(ConnectionPurpose::Hot, "key").await.unwrap().identity().clone()
}
