//! Queues that this process created a moment ago.
//!
//! RabbitMQ writes the name under which it finds the log of a new quorum queue up to a second after
//! it has declared the queue. Killed before, it restarts with an empty queue that never elects a
//! leader, or with a queue that has no process: what it confirmed is gone, it confirms nothing to
//! anybody, and neither restarting nor declaring it again changes that. So a process remembers the
//! queues that it creates. If the connection ends before they have settled, the next one asks each
//! of them for an answer, and deletes those that give none, to be declared anew. Requests that were
//! lost with a queue are found by their records and sent again.
//!
//! Only a queue that was new when its connection ended is deleted: an older one that does not
//! answer may be without majority, and keeps what was confirmed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use lapin::ErrorKind;
use lapin::options::{BasicGetOptions, QueueDeleteOptions};
use lapin::protocol::AMQPHardError;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::super::Error;
use super::said;
use super::subscriber::is_missing;
use crate::broker::rabbit::connection::RabbitConnection;

/// After this time a broker that is killed finds the queue again; ten times what it takes, because
/// it took three seconds on a busy machine.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// Deleting a queue without leader takes the broker some ten seconds.
const DELETED_WITHIN: Duration = Duration::from_secs(30);

/// A queue that has not settled.
#[derive(Debug, Clone)]
struct NewQueue {
    created_on: Weak<RabbitConnection>,
    /// It was asked for an answer and gave none.
    is_lost: bool,
}

impl NewQueue {
    fn is_of(&self, line: &Arc<RabbitConnection>) -> bool {
        std::ptr::eq(self.created_on.as_ptr(), Arc::as_ptr(line))
    }

    /// Whether its connection ended before it settled.
    fn is_doubtful(&self) -> bool {
        self.created_on.upgrade().is_none_or(|line| line.end().is_some())
    }
}

/// Queues that have not settled, by name.
#[derive(Debug, Default)]
pub(super) struct NewQueues {
    unsettled: Mutex<HashMap<String, NewQueue>>,
    /// Of several connections one asks and deletes; the others wait for it.
    replacing: tokio::sync::Mutex<()>,
}

impl NewQueues {
    /// This connection is about to create a queue.
    pub(super) fn remember(&self, name: &str, line: &Arc<RabbitConnection>) {
        let new = NewQueue { created_on: Arc::downgrade(line), is_lost: false };
        self.unsettled.lock().insert(name.to_owned(), new);
    }

    /// Waits until what this connection created has settled, unless the connection ends first.
    pub(super) async fn settle(&self, line: &Arc<RabbitConnection>) {
        if self.unsettled.lock().values().any(|new| new.is_of(line)) {
            tokio::time::sleep(SETTLED_AFTER).await;
            if line.end().is_none() {
                self.unsettled.lock().retain(|_, new| !new.is_of(line));
            }
        }
    }

    /// Deletes the queues that do not answer, of those whose connection ended before they settled.
    pub(super) async fn replace_lost(
        &self,
        line: &RabbitConnection,
        limit: Duration,
    ) -> Result<(), Error> {
        let _replacing = self.replacing.lock().await;
        let unsettled = self.unsettled.lock().clone();
        let doubtful = unsettled.into_iter().filter(|(_, new)| new.is_doubtful());
        let replaced = doubtful.map(|(name, new)| async move {
            if new.is_lost || !answers(line, &name, limit).await? {
                if let Some(new) = self.unsettled.lock().get_mut(&name) {
                    new.is_lost = true;
                }
                delete(line, &name).await?;
            }
            self.unsettled.lock().remove(&name);
            Ok(())
        });
        join_all(replaced).await.into_iter().collect()
    }
}

/// Whether a queue has a leader: only a leader can say what the next message is. That message is
/// given back with the channel.
async fn answers(line: &RabbitConnection, name: &str, limit: Duration) -> Result<bool, Error> {
    let channel = line.channel().await?;
    let asking = channel.basic_get(name.into(), BasicGetOptions { no_ack: false });
    match timeout(limit, asking).await {
        Ok(Ok(_)) => Ok(true),
        // It is declared next.
        Ok(Err(error)) if is_missing(&error) => Ok(true),
        // It has no process. The broker ends the connection with this answer: the next one deletes
        // the queue.
        Ok(Err(error)) if is_internal(&error) => Ok(false),
        Ok(Err(error)) => Err(Error::Unavailable { reason: format!("{name}: {}", said(&error)) }),
        Err(_) => Ok(false),
    }
}

fn is_internal(error: &lapin::Error) -> bool {
    let internal = AMQPHardError::INTERNALERROR.get_id();
    matches!(error.kind(), ErrorKind::ProtocolError(answer) if answer.get_id() == internal)
}

async fn delete(line: &RabbitConnection, name: &str) -> Result<(), Error> {
    tracing::warn!(queue = name, "new queue lost in a crash of the broker, creating it again");
    let channel = line.channel().await?;
    let deleting = channel.queue_delete(name.into(), QueueDeleteOptions::default());
    let reason = match timeout(DELETED_WITHIN, deleting).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => said(&error),
        Err(_) => format!("no answer within {DELETED_WITHIN:?}"),
    };
    Err(Error::Unavailable { reason: format!("{name} was not deleted: {reason}") })
}
