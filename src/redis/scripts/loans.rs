//! The calls of `lend.lua`, `borrow.lua` and `clear_loan.lua`: unit transfers between buckets; and
//! of `change_stock.lua`.
//!
//! Two buckets may be on two servers, so a transfer is three steps, each idempotent by the loan's
//! number: the lender takes the units out and records the loan, the borrower adds them once, the
//! lender clears the loan. Any process may finish a recorded loan.
//!
//! Units leave the stock as a loan to [`BucketNo::LEDGER`], which the lender clears once the ledger
//! has recorded that.

use crate::domain::{BucketNo, LoaderToken, Loan};

use super::call::Reply;
use super::{BucketKeys, Error, Leveled, Script, ScriptCall, codes, leveled};

/// Takes at least `want` units out of the bucket for the bucket `to`, if as many are free. Answers
/// the open loan; `None` if no unit is free. [`BucketNo::LEDGER`] takes up to `want` units, and is
/// answered `None` while its loan is open.
pub fn lend(keys: &BucketKeys, to: BucketNo, want: u32) -> ScriptCall<Leveled<Option<Loan>>> {
    let is_withdrawal = to == BucketNo::LEDGER;
    let call = ScriptCall::new(Script::Lend, keys, leveled(read_loan)).key(&keys.moves());
    call.arg(to).arg(want).arg(u8::from(is_withdrawal))
}

fn read_loan(reply: &mut Reply) -> Result<Option<Loan>, Error> {
    let loan = Loan { no: reply.count()?, units: reply.count()? };
    Ok(Some(loan).filter(|loan| loan.units > 0))
}

/// The load of the bucket that made a loan.
pub fn load_of(loan: Loan) -> LoaderToken {
    LoaderToken(loan.no.cast_signed() / codes::NUMBERS_PER_LOAD)
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
    call.key(&keys.moves()).arg(to).arg(no).arg(0)
}

/// Clears a loan to the ledger; its units are free again unless the ledger has recorded it.
pub fn end_withdrawal(keys: &BucketKeys, no: u64, is_recorded: bool) -> ScriptCall<Leveled<bool>> {
    let call = ScriptCall::new(Script::ClearLoan, keys, leveled(Reply::flag));
    call.key(&keys.moves()).arg(BucketNo::LEDGER).arg(no).arg(u8::from(!is_recorded))
}

/// Adds the bucket's units of a change of the stock, once, in the order of the changes. Answers
/// whether the change is in the bucket now; false: an earlier one is missing.
pub fn change_stock(keys: &BucketKeys, no: i32, units: u32) -> ScriptCall<Leveled<bool>> {
    ScriptCall::new(Script::ChangeStock, keys, leveled(Reply::flag)).arg(no).arg(units)
}
