//! Deletes the keys of a SKU, whose names follow from the SKU: no key is searched for.
//!
//! On crash: the next purge deletes the rest. May repeat: a missing key is no error.

use redis::cmd;

use super::super::Error;
use super::sku_buckets::SkuBuckets;
use crate::redis::executor::ScriptExecutor;
use crate::redis::scripts::BucketKeys;

/// Keys per command. Redis frees their values in the background.
const KEYS_PER_COMMAND: usize = 100;

/// Commands that are sent at once.
const COMMANDS_PER_CALL: usize = 16;

/// Deletes every key of every bucket, the hash `bucket` last.
pub(super) async fn delete_buckets(buckets: &SkuBuckets) -> Result<(), Error> {
    for keys in &buckets.keys {
        let mut names = vec![keys.unsettled(), keys.moves(), keys.outbox()];
        for page in buckets.pages().all() {
            names.extend([keys.requests(page), keys.buyers(page)]);
        }
        names.extend(claimed(&buckets.executor, keys).await?);
        // Last: a purge that was interrupted finds them again.
        names.extend([keys.claimants(), keys.bucket()]);
        for names in names.chunks(KEYS_PER_COMMAND * COMMANDS_PER_CALL) {
            let unlink = |names: &[String]| cmd("UNLINK").arg(names).to_owned();
            let commands = names.chunks(KEYS_PER_COMMAND).map(unlink).collect();
            buckets.executor.send(&keys.bucket(), commands, "deleting a bucket").await?;
        }
    }
    Ok(())
}

/// The lists of the workers that may have one.
async fn claimed(executor: &ScriptExecutor, keys: &BucketKeys) -> Result<Vec<String>, Error> {
    let claimants = keys.claimants();
    let members = cmd("SMEMBERS").arg(&claimants).to_owned();
    let workers: Vec<String> = executor.read(&claimants, members, "reading claimants").await?;
    Ok(workers.iter().map(|worker| keys.claimed(worker)).collect())
}
