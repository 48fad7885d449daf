//! Quorum queues that this process created less than [`RECOVERABLE_AFTER`] ago.
//!
//! RabbitMQ stores the name under which it finds the log of a new quorum queue up to a second after
//! declaring the queue. A broker that is killed before restarts with an empty queue that never
//! elects a leader, or with a queue without a process: the confirmed messages are lost, the queue
//! confirms nothing, and neither a restart nor another declaration repairs it. So each process
//! tracks the queues that it creates. If their connection ends before they are recoverable, the
//! next connection queries each of them, and deletes those that do not answer; they are then
//! declared again. Requests lost with a queue are found by their records and submitted to the
//! ledger.
//!
//! Only queues that were new when their connection ended are deleted: an older queue that does not
//! answer may have no majority, and keeps its confirmed messages.
//!
//! In a cluster a queue is deleted only while every node of `amqp.url` answers. A queue with a
//! majority elects another leader. And a node that is away during the deletion keeps its part of
//! the queue: it returns as a part of the new queue of that name, and delivers the messages of its
//! share to consumers that are gone (rabbitmq-server#12366).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{BasicGetOptions, QueueDeleteOptions};
use lapin::protocol::AMQPHardError;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::super::Error;
use super::declare::{has_code, is_missing};
use super::{RabbitOptions, error_message, health};
use crate::broker::rabbit::connection::RabbitConnection;

/// Age from which a queue survives a kill of the broker: ten times the usual second, because
/// RabbitMQ took three on a busy machine.
const RECOVERABLE_AFTER: Duration = Duration::from_secs(10);

/// RabbitMQ needs about ten seconds to delete a queue without leader.
const DELETE_TIMEOUT: Duration = Duration::from_secs(30);

/// A queue that is not recoverable yet.
#[derive(Debug, Clone)]
struct NewQueue {
    /// The connection that created it, or the last one at which it did not answer.
    watched_on: Weak<RabbitConnection>,
    last_answer: Option<QueueAnswer>,
}

/// What a queue answers to `basic.get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueAnswer {
    /// It has a leader, which alone answers.
    Leader,
    Silence,
    /// It has no process. This answer closes the connection.
    NoProcess,
}

impl NewQueue {
    fn is_watched_on(&self, connection: &Arc<RabbitConnection>) -> bool {
        std::ptr::eq(self.watched_on.as_ptr(), Arc::as_ptr(connection))
    }

    /// Whether the queue's connection ended before the queue was recoverable, or the queue has not
    /// answered since.
    fn is_doubtful(&self) -> bool {
        let has_ended =
            || self.watched_on.upgrade().is_none_or(|open| open.close_reason().is_some());
        self.last_answer.is_some() || has_ended()
    }
}

/// Queues that are not recoverable yet, by name.
#[derive(Debug, Default)]
pub(super) struct NewQueues {
    queues: Mutex<HashMap<String, NewQueue>>,
    /// Held by the connection that queries and deletes; other connections wait.
    deleting: tokio::sync::Mutex<()>,
}

impl NewQueues {
    /// Tracks a queue that this connection is about to create.
    pub(super) fn track(&self, name: &str, connection: &Arc<RabbitConnection>) {
        self.set(name, connection, None);
    }

    fn set(
        &self,
        name: &str,
        connection: &Arc<RabbitConnection>,
        last_answer: Option<QueueAnswer>,
    ) {
        let new = NewQueue { watched_on: Arc::downgrade(connection), last_answer };
        self.queues.lock().insert(name.to_owned(), new);
    }

    /// Waits until the queues of this connection are recoverable, and stops tracking them if the
    /// connection is still open, but for those that did not answer.
    pub(super) async fn forget_when_recoverable(&self, connection: &Arc<RabbitConnection>) {
        if self.queues.lock().values().any(|new| new.is_watched_on(connection)) {
            tokio::time::sleep(RECOVERABLE_AFTER).await;
            if connection.close_reason().is_none() {
                let is_kept =
                    |new: &NewQueue| new.last_answer.is_some() || !new.is_watched_on(connection);
                self.queues.lock().retain(|_, new| is_kept(new));
            }
        }
    }

    /// Queries the doubtful queues, one after the other, and deletes those that do not answer.
    /// While a node is away, they stay doubtful.
    pub(super) async fn delete_lost(
        &self,
        connection: &Arc<RabbitConnection>,
        options: &RabbitOptions,
    ) -> Result<(), Error> {
        let _deleting = self.deleting.lock().await;
        let mut doubtful = self.queues.lock().clone();
        doubtful.retain(|_, new| new.is_doubtful());
        if doubtful.is_empty() {
            return Ok(());
        }
        if !health::ask_nodes(options).await.silent.is_empty() {
            let silent = |name: &String| self.set(name, connection, Some(QueueAnswer::Silence));
            doubtful.keys().for_each(silent);
            return Ok(());
        }
        let mut lost = Vec::new();
        for (name, new) in doubtful {
            let answer = match new.last_answer {
                Some(QueueAnswer::NoProcess) => QueueAnswer::Silence,
                _ => query(connection, &name, options.connect_timeout).await?,
            };
            match answer {
                QueueAnswer::Leader => drop(self.queues.lock().remove(&name)),
                QueueAnswer::Silence => lost.push(name),
                QueueAnswer::NoProcess => {
                    // The next connection deletes it.
                    self.set(&name, connection, Some(QueueAnswer::NoProcess));
                    return Err(Error::unavailable(format!("{name} has no process")));
                }
            }
        }
        let deletions = lost.into_iter().map(|name| async move {
            delete(connection, &name).await?;
            self.queues.lock().remove(&name);
            Ok(())
        });
        join_all(deletions).await.into_iter().collect()
    }
}

/// Asks a queue for a message, which returns to it when the channel closes.
async fn query(
    connection: &RabbitConnection,
    name: &str,
    limit: Duration,
) -> Result<QueueAnswer, Error> {
    let channel = connection.channel().await?;
    let fetch = channel.basic_get(name.into(), BasicGetOptions { no_ack: false });
    match timeout(limit, fetch).await {
        Ok(Ok(_)) => Ok(QueueAnswer::Leader),
        // A missing queue is declared next.
        Ok(Err(error)) if is_missing(&error) => Ok(QueueAnswer::Leader),
        Ok(Err(error)) if has_code(&error, AMQPHardError::INTERNALERROR.get_id()) => {
            Ok(QueueAnswer::NoProcess)
        }
        Ok(Err(error)) => Err(Error::unavailable(format!("{name}: {}", error_message(&error)))),
        Err(_) => Ok(QueueAnswer::Silence),
    }
}

async fn delete(connection: &RabbitConnection, name: &str) -> Result<(), Error> {
    tracing::warn!(queue = name, "new queue: lost in a crash of the broker, recreating it");
    let channel = connection.channel().await?;
    let deletion = channel.queue_delete(name.into(), QueueDeleteOptions::default());
    let reason = match timeout(DELETE_TIMEOUT, deletion).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error_message(&error),
        Err(_) => format!("no answer within {DELETE_TIMEOUT:?}"),
    };
    Err(Error::unavailable(format!("{name} was not deleted: {reason}")))
}
