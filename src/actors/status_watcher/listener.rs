//! Listens to hints of results, one subscription per process.

use std::sync::Arc;
use std::time::Duration;

use super::StreamRegistry;
use crate::actors::periodic::Task;
use crate::runtime::progress;
use crate::stock::{self, Stock};

/// Milliseconds until a subscription that was lost is opened again.
pub const LISTEN_EVERY_MS: u64 = 1_000;

/// A quiet channel is no stall: it is reported as progress this often.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Passes hints of results to the event streams. While it does not listen, the status watcher polls
/// more often.
pub struct ResultListener {
    pub registry: Arc<StreamRegistry>,
    pub stock: Arc<dyn Stock>,
}

impl Task for ResultListener {
    type State = ();
    type Error = stock::Error;

    const FAILURE: &'static str = "event streams: no hints of results, looking more often";

    /// Listens until the subscription is lost.
    async fn run(&self, (): &()) -> Result<(), stock::Error> {
        let Some(mut hints) = self.stock.result_hints().await? else { return Ok(()) };
        let listening = self.registry.listen();
        loop {
            match tokio::time::timeout(ALIVE_EVERY, hints.next()).await {
                Ok(Some(requests)) => listening.hint(&requests),
                Ok(None) => {
                    let reason = "the subscription to results was lost".to_owned();
                    return Err(stock::Error::Unavailable { reason });
                }
                Err(_quiet) => {}
            }
            progress::answered();
        }
    }
}
