//! Hints of results: each process that settles or releases requests names them in a channel, so
//! that other processes look them up at once instead of again and again.
//!
//! A hint may be lost: the bucket has the result, the hint says only that a read is worth it.

use async_trait::async_trait;

use crate::domain::RequestId;
use crate::redis::executor::ScriptExecutor;
use crate::redis::transport::{ChannelSubscription, ConnectionPool};
use crate::stock::{Error, ResultHints};

/// Bytes of a request's number.
const NUMBER_BYTES: usize = size_of::<u64>();

/// The channel of an installation's hints.
#[derive(Debug)]
pub(super) struct HintChannel {
    pool: ConnectionPool,
    name: String,
}

impl HintChannel {
    pub(super) fn new(pool: ConnectionPool, namespace: &str) -> Self {
        Self { pool, name: format!("{namespace}:results") }
    }

    /// Names these requests, which have results, to every process.
    pub(super) async fn publish(
        &self,
        executor: &ScriptExecutor,
        requests: impl Iterator<Item = RequestId>,
    ) {
        let numbers: Vec<u8> = requests.flat_map(|request| request.get().to_be_bytes()).collect();
        if numbers.is_empty() {
            return;
        }
        let publish = redis::cmd("PUBLISH").arg(&self.name).arg(numbers).to_owned();
        // Polls make up for lost hints.
        drop(executor.send(&self.name, &[publish], "hinting at results").await);
    }

    pub(super) async fn subscribe(&self) -> Result<Box<dyn ResultHints>, Error> {
        let subscribed = self.pool.subscribe(&self.name).await;
        let subscription =
            subscribed.map_err(|error| Error::Unavailable { reason: error.to_string() })?;
        Ok(Box::new(RedisHints(subscription)))
    }
}

struct RedisHints(ChannelSubscription);

#[async_trait]
impl ResultHints for RedisHints {
    async fn next(&mut self) -> Option<Vec<RequestId>> {
        Some(read(&self.0.next().await?))
    }
}

/// The requests of a message; what is no number is left out.
fn read(message: &[u8]) -> Vec<RequestId> {
    let numbers = message.chunks_exact(NUMBER_BYTES).filter_map(|bytes| bytes.try_into().ok());
    numbers.filter_map(|bytes| RequestId::new(u64::from_be_bytes(bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_row_of_numbers_and_anything_else_is_left_out() {
        let message = [7_u64.to_be_bytes(), 0_u64.to_be_bytes(), 9_u64.to_be_bytes()].concat();
        let read_numbers = |bytes: &[u8]| read(bytes).iter().map(|id| id.get()).collect::<Vec<_>>();
        assert_eq!(read_numbers(&message), [7, 9], "no request has the number 0");
        assert_eq!(read_numbers(&message[..12]), [7], "a message that was cut");
        assert_eq!(read_numbers(b""), [0; 0]);
    }
}
