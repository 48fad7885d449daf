//! The door of `snapshot.lua`: the counts of a bucket at one instant.

use std::collections::BTreeMap;

use redis::Value;

use crate::domain::{BucketNo, Epoch, Loan, Phase};

use super::reply::{Reply, strange};
use super::{BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin};

/// The counts.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// Whether requests and buyers are counted too: one more command for each page.
    pub pages: bool,
}

/// The counts of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketCounts {
    /// The latest opening.
    pub epoch: Epoch,
    /// Its phase.
    pub phase: Phase,
    /// Units.
    pub left: BucketLevel,
    /// Units given back after refusals.
    pub released_units: u64,
    /// Requests that failed.
    pub num_failed: u64,
    /// Requests without an answer of the ledger.
    pub num_queued: u64,
    /// Intents kept by request id until the ledger has answered; without an outbox as many as are
    /// queued, or more where some are left over from before the bucket was loaded.
    pub num_kept: u64,
    /// Requests in all; 0 when they were not counted.
    pub num_requests: u64,
    /// Buyers who hold units; 0 when they were not counted, or the policy does not.
    pub num_buyers: u64,
    /// Open loans, with their borrowers.
    pub loans: Vec<(BucketNo, Loan)>,
    /// The last loan that arrived from each lender.
    pub borrowed: Vec<(BucketNo, u64)>,
}

impl Snapshot<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let pages = 0..if self.pages { self.keys.pages() } else { 0 };
        let mut keys = vec![self.keys.bucket(), self.keys.unsettled(), self.keys.moves()];
        keys.extend(pages.clone().map(|page| self.keys.requests(page)));
        keys.extend(pages.map(|page| self.keys.buyers(page)));
        begin(Script::Snapshot, &keys, self.fence)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<BucketCounts, Error> {
        let mut reply = Reply::open(Script::Snapshot, answer)?;
        let epoch = Epoch(reply.count()?);
        let phase = reply.count()?;
        let phase = Phase::from_db(phase).ok_or_else(|| reply.strange(&phase))?;
        let mut counts = BucketCounts {
            epoch,
            phase,
            left: BucketLevel::read(&mut reply)?,
            released_units: reply.count()?,
            num_failed: reply.count()?,
            num_queued: reply.count()?,
            num_kept: reply.count()?,
            num_requests: reply.count()?,
            num_buyers: reply.count()?,
            loans: Vec::new(),
            borrowed: Vec::new(),
        };
        let moves = reply.next()?;
        reply.end()?;
        counts.enter_moves(moves)?;
        Ok(counts)
    }
}

impl BucketCounts {
    /// Requests that the ledger must still be asked about.
    #[must_use]
    pub fn num_unsettled(&self) -> u64 {
        self.num_queued.max(self.num_kept)
    }

    fn enter_moves(&mut self, moves: Value) -> Result<(), Error> {
        let Value::Array(words) = moves else { return Err(strange(Script::Snapshot, &moves)) };
        let (fields, rest) = words.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(strange(Script::Snapshot, &words));
        }
        let mut units = BTreeMap::new();
        for field in fields {
            let corrupt = || Error::Corrupt { what: format!("moves: {field:?}") };
            match move_of(field).ok_or_else(corrupt)? {
                TransferField::Next => {}
                TransferField::In(from, no) => self.borrowed.push((from, no)),
                TransferField::No(to, no) => self.loans.push((to, Loan { no, units: 0 })),
                TransferField::Out(to, lent) => drop(units.insert(to, lent)),
            }
        }
        for (to, loan) in &mut self.loans {
            let halves = || Error::Corrupt { what: format!("moves: no:{to} without out:{to}") };
            loan.units = units.remove(to).ok_or_else(halves)?;
        }
        if let Some((to, _)) = units.first_key_value() {
            return Err(Error::Corrupt { what: format!("moves: out:{to} without no:{to}") });
        }
        self.loans.sort_unstable_by_key(|(to, _)| *to);
        self.borrowed.sort_unstable_by_key(|(from, _)| *from);
        Ok(())
    }
}

/// One field of `moves`.
enum TransferField {
    Next,
    In(BucketNo, u64),
    No(BucketNo, u64),
    Out(BucketNo, u32),
}

fn move_of([field, value]: &[Value; 2]) -> Option<TransferField> {
    let (field, value) = (text(field)?, text(value)?);
    let number: u64 = value.parse().ok()?;
    let Some((kind, bucket)) = field.split_once(':') else {
        return Some(TransferField::Next).filter(|_| field == "next");
    };
    let bucket = BucketNo(bucket.parse().ok()?);
    match kind {
        "in" => Some(TransferField::In(bucket, number)),
        "no" => Some(TransferField::No(bucket, number)),
        "out" => u32::try_from(number).ok().map(|units| TransferField::Out(bucket, units)),
        _ => None,
    }
}

fn text(word: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = word else { return None };
    std::str::from_utf8(bytes).ok()
}
