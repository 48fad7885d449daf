//! Hints that the scripts publish in a channel: the requests that have a result, so that processes
//! that wait for them look them up at once instead of again and again; and the SKUs that have units
//! again, so that no process goes on refusing from memory.
//!
//! A hint may be lost: the bucket has the truth, the hint says only that a read is worth it. Hints
//! are missed before a subscription and after it, and one that is read too slowly ends: where one
//! begins or ends, what depends on them is read again. While none listens, no cached set of
//! accepted requests excludes a request.

use std::sync::Arc;

use super::sku_buckets::SkuBuckets;
use crate::domain::{RequestId, SkuNo};
use crate::redis::transport::{ChannelSubscription, ConnectionPool};
use crate::stock::{Error, SkuIndex};

/// Listens to the hints of an installation, and passes those of SKUs on to their buckets. Shares
/// `skus` only while it listens.
pub(super) async fn subscribe(
    pool: &ConnectionPool,
    namespace: &str,
    skus: &Arc<SkuIndex<SkuBuckets>>,
) -> Result<ResultHints, Error> {
    let subscribed = pool.subscribe(&format!("{namespace}:results")).await;
    let subscription =
        subscribed.map_err(|error| Error::Unavailable { reason: error.to_string() })?;
    forget_accepted(skus);
    Ok(ResultHints { subscription, skus: Arc::clone(skus) })
}

/// Forgets what every SKU has accepted: units may have returned without a hint.
fn forget_accepted(skus: &SkuIndex<SkuBuckets>) {
    skus.0.load().values().for_each(|buckets| buckets.forget_accepted());
}

/// Hints that requests have results, from any process. Each may be lost.
pub struct ResultHints {
    subscription: ChannelSubscription,
    skus: Arc<SkuIndex<SkuBuckets>>,
}

impl Drop for ResultHints {
    fn drop(&mut self) {
        forget_accepted(&self.skus);
    }
}

impl ResultHints {
    /// The next requests with results; `None`: no more hints come.
    pub async fn next(&mut self) -> Option<Vec<RequestId>> {
        let (requests, restocked) = read(&self.subscription.next().await?);
        for sku in restocked {
            if let Ok(buckets) = self.skus.get(sku) {
                buckets.forget_accepted();
            }
        }
        Some(requests)
    }
}

/// The requests and the restocked SKUs of a message, which has spaces between its words. Unknown
/// words are left out.
fn read(message: &[u8]) -> (Vec<RequestId>, Vec<SkuNo>) {
    let (mut requests, mut restocked) = (Vec::new(), Vec::new());
    for word in message.split(|byte| *byte == b' ') {
        let word = std::str::from_utf8(word).unwrap_or_default();
        match word.strip_prefix("restocked:") {
            Some(sku) => restocked.extend(sku.parse().ok().map(SkuNo)),
            None => requests.extend(word.parse().ok().and_then(RequestId::new)),
        }
    }
    (requests, restocked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_requests_and_skus_and_anything_else_is_left_out() {
        let read_numbers = |text: &[u8]| read(text).0.iter().map(|id| id.get()).collect::<Vec<_>>();
        assert_eq!(read_numbers(b"7 0 9"), [7, 9], "no request has the number 0");
        assert_eq!(read_numbers(b"7  x \xff 9223372036854775808 8"), [7, 8]);
        assert_eq!(read_numbers(b""), [0; 0]);
        assert_eq!(read(b"restocked:12 restocked:x 7").1, [SkuNo(12)]);
    }
}
