//! The calls of `lend.lua`, `borrow.lua` and `clear_loan.lua`: unit transfers between buckets.
//!
//! Two buckets may be on two servers, so a transfer is three steps, each idempotent by the loan's
//! number: the lender takes the units out and records the loan, the borrower adds them once, the
//! lender clears the loan. Any process may finish a recorded loan.

use redis::Value;

use crate::domain::{BucketNo, Loan};

use super::reply::Reply;
use super::{BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin};

/// Takes units out of the bucket `keys` for the bucket `to`.
#[derive(Debug, Clone, Copy)]
pub struct Lend<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub to: BucketNo,
    /// Units to take at least, if as many are free.
    pub want: u32,
}

/// Adds the units of a loan of the bucket `from` to the bucket `keys`.
#[derive(Debug, Clone, Copy)]
pub struct Borrow<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub from: BucketNo,
    pub loan: Loan,
}

/// Clears a loan of the bucket `keys` that the borrower `to` has added.
#[derive(Debug, Clone, Copy)]
pub struct ClearLoan<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub to: BucketNo,
    pub no: u64,
}

impl Lend<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let keys = [self.keys.bucket(), self.keys.moves()];
        begin(Script::Lend, &keys, self.fence).arg(self.to).arg(self.want)
    }

    /// The open loan; `None` if no unit is free.
    pub fn parse(&self, answer: Value) -> Result<(Option<Loan>, BucketLevel), Error> {
        let mut reply = Reply::open(Script::Lend, answer)?;
        let left = BucketLevel::read(&mut reply)?;
        let loan = Loan { no: reply.count()?, units: reply.count()? };
        reply.end()?;
        Ok((Some(loan).filter(|loan| loan.units > 0), left))
    }
}

impl Borrow<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let keys = [self.keys.bucket(), self.keys.moves()];
        let call = begin(Script::Borrow, &keys, self.fence);
        call.arg(self.from).arg(self.loan.no).arg(self.loan.units)
    }

    /// The units added; 0 if the loan was added before.
    pub fn parse(&self, answer: Value) -> Result<(u32, BucketLevel), Error> {
        let mut reply = Reply::open(Script::Borrow, answer)?;
        let left = BucketLevel::read(&mut reply)?;
        let added = reply.count()?;
        reply.end().map(|()| (added, left))
    }
}

impl ClearLoan<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let keys = [self.keys.bucket(), self.keys.moves()];
        begin(Script::ClearLoan, &keys, self.fence).arg(self.to).arg(self.no)
    }

    /// Whether this call cleared the loan.
    pub fn parse(&self, answer: Value) -> Result<(bool, BucketLevel), Error> {
        let mut reply = Reply::open(Script::ClearLoan, answer)?;
        let left = BucketLevel::read(&mut reply)?;
        let cleared = reply.flag()?;
        reply.end().map(|()| (cleared, left))
    }
}
