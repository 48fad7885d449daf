//! The doors of `lend.lua`, `borrow.lua` and `clear_loan.lua`: units hop between buckets.
//!
//! Two buckets may be on two servers, so a hop is three steps, each repeat-safe by the loan's
//! number: the lender takes the units out and keeps them on record, the borrower adds them once,
//! the lender forgets. Whoever finds a loan on record may do the rest.

use redis::Value;

use crate::domain::{BucketNo, Loan};

use super::reply::Reply;
use super::{BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin};

/// Takes units out of a bucket for another one.
#[derive(Debug, Clone, Copy)]
pub struct Lend<'a> {
    /// The lender.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// The borrower.
    pub to: BucketNo,
    /// Units wanted at least.
    pub want: u32,
}

/// Adds the units of a loan.
#[derive(Debug, Clone, Copy)]
pub struct Borrow<'a> {
    /// The borrower.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// The lender.
    pub from: BucketNo,
    /// The loan.
    pub loan: Loan,
}

/// Forgets a loan that the borrower has.
#[derive(Debug, Clone, Copy)]
pub struct ClearLoan<'a> {
    /// The lender.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// The borrower.
    pub to: BucketNo,
    /// The loan's number.
    pub no: u64,
}

impl Lend<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let keys = [self.keys.bucket(), self.keys.moves()];
        begin(Script::Lend, &keys, self.fence).arg(self.to).arg(self.want)
    }

    /// Reads the answer: the open loan, or nothing where nothing is free.
    pub fn parse(&self, answer: Value) -> Result<(Option<Loan>, BucketLevel), Error> {
        let mut reply = Reply::open(Script::Lend, answer)?;
        let left = BucketLevel::read(&mut reply)?;
        let loan = Loan { no: reply.count()?, units: reply.count()? };
        reply.end()?;
        Ok((Some(loan).filter(|loan| loan.units > 0), left))
    }
}

impl Borrow<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let keys = [self.keys.bucket(), self.keys.moves()];
        let call = begin(Script::Borrow, &keys, self.fence);
        call.arg(self.from).arg(self.loan.no).arg(self.loan.units)
    }

    /// Reads the answer: the units added, 0 for a loan that was added before.
    pub fn parse(&self, answer: Value) -> Result<(u32, BucketLevel), Error> {
        let mut reply = Reply::open(Script::Borrow, answer)?;
        let left = BucketLevel::read(&mut reply)?;
        let added = reply.count()?;
        reply.end().map(|()| (added, left))
    }
}

impl ClearLoan<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let keys = [self.keys.bucket(), self.keys.moves()];
        begin(Script::ClearLoan, &keys, self.fence).arg(self.to).arg(self.no)
    }

    /// Reads the answer: whether it was open until now.
    pub fn parse(&self, answer: Value) -> Result<(bool, BucketLevel), Error> {
        let mut reply = Reply::open(Script::ClearLoan, answer)?;
        let left = BucketLevel::read(&mut reply)?;
        let cleared = reply.yes()?;
        reply.end().map(|()| (cleared, left))
    }
}
