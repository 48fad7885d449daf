//! The calls of `lend.lua`, `borrow.lua` and `clear_loan.lua`: unit transfers between buckets.
//!
//! Two buckets may be on two servers, so a transfer is three steps, each idempotent by the loan's
//! number: the lender takes the units out and records the loan, the borrower adds them once, the
//! lender clears the loan. Any process may finish a recorded loan.

use crate::domain::{BucketNo, Loan};

use super::call::Reply;
use super::{BucketKeys, Leveled, Script, ScriptCall, leveled};

/// Takes at least `want` units out of the bucket for the bucket `to`, if as many are free. Answers
/// the open loan; `None` if no unit is free.
pub fn lend(keys: &BucketKeys, to: BucketNo, want: u32) -> ScriptCall<Leveled<Option<Loan>>> {
    let read = |reply: &mut Reply| {
        let loan = Loan { no: reply.count()?, units: reply.count()? };
        Ok(Some(loan).filter(|loan| loan.units > 0))
    };
    ScriptCall::new(Script::Lend, keys, leveled(read)).key(&keys.moves()).arg(to).arg(want)
}

/// Adds the units of a loan of the bucket `from`. Answers the units added; 0 if the loan was added
/// before.
pub fn borrow(keys: &BucketKeys, from: BucketNo, loan: Loan) -> ScriptCall<Leveled<u32>> {
    let call = ScriptCall::new(Script::Borrow, keys, leveled(Reply::count));
    call.key(&keys.moves()).arg(from).arg(loan.no).arg(loan.units)
}

/// Clears a loan that the borrower `to` has added. Answers whether this call cleared it.
pub fn clear_loan(keys: &BucketKeys, to: BucketNo, no: u64) -> ScriptCall<Leveled<bool>> {
    let call = ScriptCall::new(Script::ClearLoan, keys, leveled(Reply::flag));
    call.key(&keys.moves()).arg(to).arg(no)
}
