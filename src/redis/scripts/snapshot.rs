//! The call of `snapshot.lua`: the counts of a bucket at one instant; and those of all buckets.

use std::collections::BTreeMap;
use std::ops::Range;

use redis::Value;

use crate::domain::{BucketNo, Epoch, Loan, Phase};

use super::call::Reply;
use super::{BucketKeys, BucketLevel, Error, Script, ScriptCall};

/// Readings of buckets that seem empty.
const READINGS_MAX: u32 = 3;

/// The counts of a bucket, as `snapshot.lua` answers them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketCounts {
    pub epoch: Epoch,
    pub phase: Phase,
    pub left: BucketLevel,
    /// Units returned after refusals.
    pub released_units: u64,
    /// Units returned by orders that ended.
    pub returned_units: u64,
    pub num_failed: u64,
    /// Requests without a ledger decision.
    pub num_queued: u64,
    /// Intents stored by request id until the ledger has decided: without an outbox as many as are
    /// queued, or more if some are left from before the bucket was loaded.
    pub num_kept: u64,
    /// Requests on the counted pages.
    pub num_requests: u64,
    /// Buyers with units on the counted pages; 0 unless the policy has a quota.
    pub num_buyers: u64,
    /// The last change of the SKU's stock.
    pub change_no: i32,
    /// Open loans, with their borrowers.
    pub loans: Vec<(BucketNo, Loan)>,
    /// The number of the last loan from each lender.
    pub borrowed: Vec<(BucketNo, u64)>,
}

/// Counts a bucket, and the requests and buyers on some pages: one command for each page.
pub fn snapshot(keys: &BucketKeys, pages: Range<u16>) -> ScriptCall<BucketCounts> {
    ScriptCall::new(Script::Snapshot, keys, BucketCounts::read)
        .keys([keys.unsettled(), keys.moves()])
        .keys(pages.clone().map(|page| keys.requests(page)))
        .keys(pages.map(|page| keys.buyers(page)))
}

/// Reads every bucket. The buckets are read one after the other, so a unit that moves from an
/// unread bucket to a read one is in neither count: empty buckets are read again until no unit has
/// come to any of them since the reading before. `None`: they are not certainly empty.
pub async fn read_all<F, E>(mut read: impl FnMut() -> F) -> Result<Option<Vec<BucketCounts>>, E>
where
    F: Future<Output = Result<Vec<BucketCounts>, E>>,
{
    let mut counts = read().await?;
    for _ in 1..READINGS_MAX {
        if !are_empty(&counts) {
            break;
        }
        let again = read().await?;
        let before = std::mem::replace(&mut counts, again);
        // Results of requests may arrive meanwhile. They change other counts, unless units return.
        let mut both = before.iter().zip(&counts);
        if both.all(|(a, b)| a.left == b.left && a.borrowed == b.borrowed) {
            return Ok(Some(counts));
        }
    }
    Ok(Some(counts).filter(|counts| !are_empty(counts)))
}

/// Whether no unit is free or lent.
pub fn are_empty(counts: &[BucketCounts]) -> bool {
    counts.iter().all(|counts| counts.left.stock == 0 && counts.left.lent == 0)
}

impl BucketCounts {
    /// Requests to submit to the ledger.
    pub fn num_unsettled(&self) -> u64 {
        self.num_queued.max(self.num_kept)
    }

    fn read(reply: &mut Reply) -> Result<Self, Error> {
        let epoch = Epoch(reply.count()?);
        let phase = reply.count()?;
        let mut counts = Self {
            epoch,
            phase: Phase::from_db(phase).ok_or_else(|| reply.unexpected(&phase))?,
            left: BucketLevel::read(reply)?,
            released_units: reply.count()?,
            returned_units: reply.count()?,
            num_failed: reply.count()?,
            num_queued: reply.count()?,
            num_kept: reply.count()?,
            num_requests: reply.count()?,
            num_buyers: reply.count()?,
            change_no: reply.count()?,
            loans: Vec::new(),
            borrowed: Vec::new(),
        };
        let moves = reply.next()?;
        let corrupt = || Error::Corrupt { what: format!("moves: {moves:?}") };
        counts.add_moves(&moves).ok_or_else(corrupt)?;
        Ok(counts)
    }

    /// Parses the fields of `moves`: `next`, `in:<from>`, and a pair `no:<to>`, `out:<to>` for each
    /// open loan.
    fn add_moves(&mut self, moves: &Value) -> Option<()> {
        let moves: BTreeMap<String, u64> = redis::from_redis_value_ref(moves).ok()?;
        for (field, number) in &moves {
            let Some((kind, bucket)) = field.split_once(':') else {
                (field == "next").then_some(())?;
                continue;
            };
            let no = BucketNo(bucket.parse().ok()?);
            match kind {
                "in" => self.borrowed.push((no, *number)),
                "no" => {
                    let units = u32::try_from(*moves.get(&format!("out:{bucket}"))?).ok()?;
                    self.loans.push((no, Loan { no: *number, units }));
                }
                "out" if moves.contains_key(&format!("no:{bucket}")) => {}
                _ => return None,
            }
        }
        self.loans.sort_unstable_by_key(|(to, _)| *to);
        self.borrowed.sort_unstable_by_key(|(from, _)| *from);
        Some(())
    }
}
