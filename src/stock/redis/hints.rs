//! Hints of results: `settle.lua` and `release.lua` name the requests in a channel, so that
//! processes that wait for them look them up at once instead of again and again.
//!
//! A hint may be lost: the bucket has the result, the hint says only that a read is worth it.

use async_trait::async_trait;

use crate::domain::RequestId;
use crate::redis::transport::{ChannelSubscription, ConnectionPool};
use crate::stock::{Error, ResultHints};

/// Listens to the hints of an installation.
pub(super) async fn subscribe(
    pool: &ConnectionPool,
    namespace: &str,
) -> Result<Box<dyn ResultHints>, Error> {
    let subscribed = pool.subscribe(&format!("{namespace}:results")).await;
    let subscription =
        subscribed.map_err(|error| Error::Unavailable { reason: error.to_string() })?;
    Ok(Box::new(RedisHints(subscription)))
}

struct RedisHints(ChannelSubscription);

#[async_trait]
impl ResultHints for RedisHints {
    async fn next(&mut self) -> Option<Vec<RequestId>> {
        Some(read(&self.0.next().await?))
    }
}

/// The requests of a message: numbers with spaces between them. What is no number is left out.
fn read(message: &[u8]) -> Vec<RequestId> {
    let numbers = message.split(|byte| *byte == b' ');
    let numbers = numbers.filter_map(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    numbers.filter_map(RequestId::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_row_of_numbers_and_anything_else_is_left_out() {
        let read_numbers = |text: &[u8]| read(text).iter().map(|id| id.get()).collect::<Vec<_>>();
        assert_eq!(read_numbers(b"7 0 9"), [7, 9], "no request has the number 0");
        assert_eq!(read_numbers(b"7  x \xff 9223372036854775808 8"), [7, 8]);
        assert_eq!(read_numbers(b""), [0; 0]);
    }
}
