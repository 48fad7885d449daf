//! Quorum queues that this process created less than [`RECOVERABLE_AFTER`] ago.
//!
//! RabbitMQ stores the name under which it finds the log of a new quorum queue up to a second after
//! declaring the queue. A broker that is killed before restarts with an empty queue that never
//! elects a leader, or with a queue without a process: the confirmed messages are lost, the queue
//! confirms nothing, and neither a restart nor another declaration repairs it. So each process
//! tracks the queues that it creates. If their connection ends before they are recoverable, the
//! next connection queries each of them, and deletes those that do not answer; they are then
//! declared again. Requests lost with a queue are found by their records and resubmitted.
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
    /// The queue did not answer.
    is_lost: bool,
}

impl NewQueue {
    fn new(connection: &Arc<RabbitConnection>) -> Self {
        Self { watched_on: Arc::downgrade(connection), is_lost: false }
    }

    fn is_watched_on(&self, connection: &Arc<RabbitConnection>) -> bool {
        std::ptr::eq(self.watched_on.as_ptr(), Arc::as_ptr(connection))
    }

    /// Whether the queue's connection ended before the queue was recoverable.
    fn is_doubtful(&self) -> bool {
        self.watched_on.upgrade().is_none_or(|connection| connection.close_reason().is_some())
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
        self.queues.lock().insert(name.to_owned(), NewQueue::new(connection));
    }

    /// Waits until the queues of this connection are recoverable, and stops tracking them if the
    /// connection is still open.
    pub(super) async fn forget_when_recoverable(&self, connection: &Arc<RabbitConnection>) {
        if self.queues.lock().values().any(|new| new.is_watched_on(connection)) {
            tokio::time::sleep(RECOVERABLE_AFTER).await;
            if connection.close_reason().is_none() {
                self.queues.lock().retain(|_, new| !new.is_watched_on(connection));
            }
        }
    }

    /// Queries the queues whose connection ended before they were recoverable, and deletes those
    /// that do not answer, unless a node is away.
    pub(super) async fn delete_lost(
        &self,
        connection: &Arc<RabbitConnection>,
        options: &RabbitOptions,
    ) -> Result<(), Error> {
        let _deleting = self.deleting.lock().await;
        let queues = self.queues.lock().clone();
        let doubtful = queues.into_iter().filter(|(_, new)| new.is_doubtful());
        let queries = doubtful.map(|(name, new)| async move {
            if !new.is_lost && has_leader(connection, &name, options.connect_timeout).await? {
                self.queues.lock().remove(&name);
                return Ok(None);
            }
            if let Some(new) = self.queues.lock().get_mut(&name) {
                new.is_lost = true;
            }
            Ok(Some(name))
        });
        let found: Vec<_> = join_all(queries).await.into_iter().collect::<Result<_, Error>>()?;
        let lost: Vec<String> = found.into_iter().flatten().collect();
        if lost.is_empty() {
            return Ok(());
        }
        if !health::ask_nodes(options).await.silent.is_empty() {
            let mut queues = self.queues.lock();
            queues.extend(lost.into_iter().map(|name| (name, NewQueue::new(connection))));
            return Ok(());
        }
        let deletions = lost.into_iter().map(|name| async move {
            delete(connection, &name).await?;
            self.queues.lock().remove(&name);
            Ok(())
        });
        join_all(deletions).await.into_iter().collect()
    }
}

/// Whether the queue has a leader, which alone answers `basic.get`. A fetched message returns to
/// the queue when the channel closes.
async fn has_leader(
    connection: &RabbitConnection,
    name: &str,
    limit: Duration,
) -> Result<bool, Error> {
    let channel = connection.channel().await?;
    let fetch = channel.basic_get(name.into(), BasicGetOptions { no_ack: false });
    match timeout(limit, fetch).await {
        Ok(Ok(_)) => Ok(true),
        // A missing queue is declared next.
        Ok(Err(error)) if is_missing(&error) => Ok(true),
        // The queue has no process. This answer closes the connection, so the next one deletes the
        // queue.
        Ok(Err(error)) if has_code(&error, AMQPHardError::INTERNALERROR.get_id()) => Ok(false),
        Ok(Err(error)) => Err(Error::unavailable(format!("{name}: {}", error_message(&error)))),
        Err(_) => Ok(false),
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
