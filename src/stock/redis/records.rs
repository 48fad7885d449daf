//! The records of requests.

use super::super::Error;
use super::sku_buckets::SkuBuckets;
use crate::domain::{BucketNo, BuyerId, RequestId, RequestRecord};
use crate::redis::scripts::{codes, lookup};

/// The records of requests of any buckets, in order; `None` if a request belongs to another buyer.
pub(super) async fn of_buyers(
    buckets: &SkuBuckets,
    requests: &[(RequestId, BuyerId)],
) -> Result<Vec<Option<RequestRecord>>, Error> {
    let mut by_bucket = vec![Vec::new(); buckets.keys.len()];
    for (at, (request, buyer)) in requests.iter().enumerate() {
        let home = BucketNo::home_of(*buyer, buckets.sku.buckets);
        if let Some(group) = by_bucket.get_mut(usize::from(home.0)) {
            group.push((at, *request, *buyer));
        }
    }
    let mut records = vec![None; requests.len()];
    for (bucket, group) in (0..).map(BucketNo).zip(by_bucket) {
        let requests: Vec<RequestId> = group.iter().map(|(_, request, _)| *request).collect();
        let found = find(buckets, bucket, &requests).await?;
        for ((at, _, buyer), record) in group.into_iter().zip(found) {
            if let Some(own) = records.get_mut(at) {
                *own = record.filter(|record| record.buyer == buyer);
            }
        }
    }
    Ok(records)
}

/// The records of requests of one bucket, in order.
pub(super) async fn find(
    buckets: &SkuBuckets,
    bucket: BucketNo,
    requests: &[RequestId],
) -> Result<Vec<Option<RequestRecord>>, Error> {
    let keys = buckets.keys(bucket)?;
    let mut found = Vec::with_capacity(requests.len());
    for requests in requests.chunks(codes::ITEMS_MAX_USIZE) {
        let call = lookup::find(keys, &buckets.sku, requests);
        found.extend(buckets.run(call, "finding requests").await?);
    }
    Ok(found)
}
