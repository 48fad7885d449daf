//! The call of `snapshot.lua`: the counts of a bucket at one instant.

use std::collections::BTreeMap;

use redis::Value;

use crate::domain::{BucketNo, Epoch, Loan, Phase};

use super::reply::{Reply, unexpected};
use super::{BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin};

#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    /// Whether requests and buyers are counted, too: one command for each page.
    pub pages: bool,
}

/// The counts of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketCounts {
    pub epoch: Epoch,
    pub phase: Phase,
    pub left: BucketLevel,
    /// Units returned after refusals.
    pub released_units: u64,
    pub num_failed: u64,
    /// Requests without a ledger decision.
    pub num_queued: u64,
    /// Intents stored by request id until the ledger has decided: without an outbox as many as are
    /// queued, or more if some are left from before the bucket was loaded.
    pub num_kept: u64,
    /// All requests; 0 unless `pages` is set.
    pub num_requests: u64,
    /// Buyers with units; 0 unless `pages` is set and the policy has a quota.
    pub num_buyers: u64,
    /// Open loans, with their borrowers.
    pub loans: Vec<(BucketNo, Loan)>,
    /// The number of the last loan from each lender.
    pub borrowed: Vec<(BucketNo, u64)>,
}

impl Snapshot<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let pages = 0..if self.pages { self.keys.pages() } else { 0 };
        let mut keys = vec![self.keys.bucket(), self.keys.unsettled(), self.keys.moves()];
        keys.extend(pages.clone().map(|page| self.keys.requests(page)));
        keys.extend(pages.map(|page| self.keys.buyers(page)));
        begin(Script::Snapshot, &keys, self.fence)
    }

    pub fn parse(&self, answer: Value) -> Result<BucketCounts, Error> {
        let mut reply = Reply::open(Script::Snapshot, answer)?;
        let epoch = Epoch(reply.count()?);
        let phase = reply.count()?;
        let phase = Phase::from_db(phase).ok_or_else(|| reply.unexpected(&phase))?;
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
        counts.add_moves(moves)?;
        Ok(counts)
    }
}

impl BucketCounts {
    /// Requests to submit to the ledger.
    #[must_use]
    pub fn num_unsettled(&self) -> u64 {
        self.num_queued.max(self.num_kept)
    }

    fn add_moves(&mut self, moves: Value) -> Result<(), Error> {
        let Value::Array(values) = moves else { return Err(unexpected(Script::Snapshot, &moves)) };
        let (fields, rest) = values.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(unexpected(Script::Snapshot, &values));
        }
        let mut units = BTreeMap::new();
        for field in fields {
            let corrupt = || Error::Corrupt { what: format!("moves: {field:?}") };
            match transfer_field(field).ok_or_else(corrupt)? {
                TransferField::Next => {}
                TransferField::In(from, no) => self.borrowed.push((from, no)),
                TransferField::No(to, no) => self.loans.push((to, Loan { no, units: 0 })),
                TransferField::Out(to, lent) => drop(units.insert(to, lent)),
            }
        }
        for (to, loan) in &mut self.loans {
            let incomplete = || Error::Corrupt { what: format!("moves: no:{to} without out:{to}") };
            loan.units = units.remove(to).ok_or_else(incomplete)?;
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

fn transfer_field([field, value]: &[Value; 2]) -> Option<TransferField> {
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

fn text(value: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = value else { return None };
    std::str::from_utf8(bytes).ok()
}
