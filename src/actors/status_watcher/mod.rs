//! Follows queued requests on behalf of their event streams. One subscription per process
//! ([`ResultListener`]) names the requests with results; those, and a share of the others, are
//! looked up in the stock together, one lookup per bucket and poll. A buyer who waits costs an
//! entry in a table: no task, no timer, and no call of its own.
//!
//! Takes no input but its timer and hints, each of which may be lost. On error: the streams stay
//! open, and the next poll asks again. On crash: the table is kept, and the next incarnation goes
//! on. May repeat: every poll.

mod registry;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::periodic::{RunResult, Task};
use crate::domain::{BucketKey, BuyerId, RecordState, RequestId};
use crate::runtime::clock::SharedClock;
use crate::runtime::progress;
use crate::stock::{self, Stock};

pub use registry::{FollowedRequest, StreamNews, StreamRegistry};

/// Milliseconds from one poll to the next.
pub const POLL_EVERY_MS: u64 = 250;

/// Milliseconds until a subscription that was lost is opened again.
pub const LISTEN_EVERY_MS: u64 = 1_000;

/// A quiet channel is no stall: it is reported as progress this often.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Looks up the statuses of followed requests.
pub struct StatusWatcher {
    pub registry: Arc<StreamRegistry>,
    pub stock: Arc<dyn Stock>,
    pub clock: SharedClock,
}

impl Task for StatusWatcher {
    type State = ();

    const FAILURE: &'static str = "event streams: statuses cannot be read, asking again";

    /// Polls every bucket; returns the first error after all of them.
    async fn run(&self, (): &()) -> RunResult {
        let to_look_up = self.registry.begin_poll(self.clock.now()).into_iter();
        // At once: a server that does not answer delays no bucket of another server.
        let lookups = to_look_up.map(|(bucket, requests)| self.look_up(bucket, requests));
        Ok(join_all(lookups).await.into_iter().collect::<Result<(), _>>()?)
    }
}

impl StatusWatcher {
    /// Ends the streams of those requests of one bucket that have ended.
    async fn look_up(
        &self,
        bucket: BucketKey,
        requests: Vec<(RequestId, BuyerId)>,
    ) -> Result<(), stock::Error> {
        let records = self.stock.records(bucket.sku, requests.clone()).await?;
        for ((request, _), record) in requests.into_iter().zip(records) {
            match record {
                Some(record) if matches!(record.state, RecordState::Queued { .. }) => {}
                Some(ended) => self.registry.end(request, ended),
                // The bucket has no record any more.
                None => self.registry.remove(request),
            }
        }
        Ok(())
    }
}

/// Passes hints of results to the event streams. While it does not listen, the status watcher polls
/// more often.
pub struct ResultListener {
    pub registry: Arc<StreamRegistry>,
    pub stock: Arc<dyn Stock>,
}

impl Task for ResultListener {
    type State = ();

    const FAILURE: &'static str = "event streams: no hints of results, polling more often";

    /// Listens until the subscription is lost.
    async fn run(&self, (): &()) -> RunResult {
        let Some(mut hints) = self.stock.result_hints().await? else { return Ok(()) };
        let listening = self.registry.listen();
        loop {
            match tokio::time::timeout(ALIVE_EVERY, hints.next()).await {
                Ok(Some(requests)) => listening.hint(&requests),
                Ok(None) => return Err("the subscription to results was lost".into()),
                Err(_quiet) => {}
            }
            progress::answered();
        }
    }
}
