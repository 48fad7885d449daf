//! Single questions to servers and sentinels, some of which may be unreachable or outdated.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};

use super::url::{Credentials, ServerAddress};
use super::{ConnectionOptions, connect};

/// Why a server could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisHealthError {
    /// No connection or no answer.
    #[error("{0}")]
    Unreachable(String),
    /// The server rejected the login or the command.
    #[error("{message}")]
    Refused {
        /// The error code, such as `WRONGPASS`.
        code: String,
        message: String,
    },
}

impl From<RedisError> for RedisHealthError {
    fn from(error: RedisError) -> Self {
        match error.code() {
            Some(code) if !error.is_io_error() => {
                Self::Refused { code: code.to_owned(), message: connect::error_message(&error) }
            }
            _ => Self::Unreachable(super::explain(error.to_string())),
        }
    }
}

/// A connection for one command at a time, each with a time limit.
pub(super) struct ProbeConnection {
    connection: MultiplexedConnection,
    limit: Duration,
}

impl ProbeConnection {
    /// Connects within `connect_timeout`. `limit` is the time limit of each command.
    pub(super) async fn open(
        options: &ConnectionOptions,
        node: &ServerAddress,
        credentials: Option<&Credentials>,
        limit: Duration,
    ) -> Result<Self, RedisHealthError> {
        let connect_timeout = options.connect_timeout;
        let connecting = connect::open(options, node, credentials, |_| {});
        let timed_out =
            |_| RedisHealthError::Unreachable(format!("not connected within {connect_timeout:?}"));
        let opened = tokio::time::timeout(connect_timeout, connecting).await;
        Ok(Self { connection: opened.map_err(timed_out)??, limit })
    }

    pub(super) async fn query<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
    ) -> Result<T, RedisHealthError> {
        let timed_out =
            |_| RedisHealthError::Unreachable(format!("no answer within {:?}", self.limit));
        let query = command.query_async(&mut self.connection);
        Ok(tokio::time::timeout(self.limit, query).await.map_err(timed_out)??)
    }

    /// The fields that a command answers as `name:value` lines.
    pub(super) async fn fields(
        &mut self,
        command: &Cmd,
    ) -> Result<BTreeMap<String, String>, RedisHealthError> {
        Ok(fields(&self.query::<String>(command).await?))
    }
}

/// Parses `name:value` lines.
pub(super) fn fields(text: &str) -> BTreeMap<String, String> {
    let field = |line: &str| line.split_once(':').map(|(name, value)| (name.into(), value.into()));
    text.lines().filter_map(field).collect()
}

/// Queries all servers at once, each within `limit`, until a majority has answered or no query is
/// left. Returns the answer with the newest version (`V`).
///
/// # Errors
/// No server answered; one reason per server.
pub(super) async fn read_newest<V: Ord, T, E: Display, F>(
    limit: Duration,
    nodes: &[ServerAddress],
    query: impl Fn(ServerAddress) -> F,
) -> Result<T, String>
where
    F: Future<Output = Result<(V, T), E>>,
{
    let queries = nodes.iter().map(|node| {
        let answer = tokio::time::timeout(limit, query(node.clone()));
        async move {
            match answer.await {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(reason)) => Err(format!("{node}: {reason}")),
                Err(_) => Err(format!("{node}: no answer within {limit:?}")),
            }
        }
    });
    let mut answers = pin!(queries.collect::<FuturesUnordered<_>>());
    let (mut num_answers, mut best, mut reasons) = (0, None::<(V, T)>, Vec::new());
    while num_answers <= nodes.len() / 2 {
        match answers.next().await {
            Some(Ok((version, answer))) => {
                num_answers += 1;
                if best.as_ref().is_none_or(|(best_version, _)| version > *best_version) {
                    best = Some((version, answer));
                }
            }
            Some(Err(reason)) => reasons.push(reason),
            None => break,
        }
    }
    best.map(|(_, answer)| answer).ok_or_else(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;

    type ServerAnswer = Result<(u32, &'static str), &'static str>;

    /// The result for these answers, by port; `None`: the server does not answer.
    fn newest_of(answers: &[Option<ServerAnswer>]) -> Result<&'static str, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let nodes: Vec<_> = (1..=u16::try_from(answers.len()).unwrap())
            .map(|port| ServerAddress { host: "a".to_owned(), port })
            .collect();
        let query = |node: ServerAddress| match answers[usize::from(node.port) - 1] {
            Some(answer) => ready(answer).boxed(),
            None => pending().boxed(),
        };
        runtime.block_on(read_newest(Duration::from_millis(20), &nodes, query))
    }

    #[test]
    fn the_newest_answer_of_a_majority_is_returned() {
        assert_eq!(newest_of(&[Some(Ok((1, "old"))), Some(Ok((2, "new"))), None]), Ok("new"));
        let gone = Some(Err("gone"));
        assert_eq!(newest_of(&[gone, Some(Ok((1, "left"))), gone]), Ok("left"));
        assert_eq!(newest_of(&[None, Some(Ok((1, "left"))), None]), Ok("left"));
        let none = Err("a:1: gone; a:2: no answer within 20ms".to_owned());
        assert_eq!(newest_of(&[gone, None]), none);
    }
}
