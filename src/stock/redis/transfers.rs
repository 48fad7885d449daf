//! Transfers of units between buckets, each in three steps; any process may finish a recorded loan.

use super::super::Error;
use super::poll;
use super::sku_buckets::SkuBuckets;
use crate::domain::{BucketNo, Loan, Withdrawal, withdrawn_from};
use crate::redis::scripts::loans;

/// Adds the units of a loan to the bucket `to`, and clears the loan. Returns the units added.
pub(super) async fn borrow(
    buckets: &SkuBuckets,
    from: BucketNo,
    to: BucketNo,
    loan: Loan,
) -> Result<u32, Error> {
    let call = loans::borrow(buckets.keys(to)?, from, loan);
    let units = buckets.run_leveled(to, call, "borrowing units").await?;
    // Crash here [borrowed_not_cleared]: the lender still records the loan, and the borrower has
    // its number: the next transfer or refresh clears it and adds nothing.
    let call = loans::clear_loan(buckets.keys(from)?, to, loan.no);
    buckets.run_leveled(from, call, "clearing a loan").await?;
    Ok(units)
}

/// Lends up to `units` free units to the ledger, from each bucket in proportion to its units.
pub(super) async fn withdraw(buckets: &SkuBuckets, units: u32) -> Result<Withdrawal, Error> {
    let counts = poll::all(buckets).await?;
    if counts.iter().flat_map(|counts| &counts.loans).any(|(to, _)| *to == BucketNo::LEDGER) {
        let reason = "an earlier withdrawal of units is not completed".to_owned();
        return Err(Error::Unavailable { reason });
    }
    let free: Vec<u32> = counts.iter().map(|counts| counts.left.stock).collect();
    let mut withdrawal = Withdrawal::default();
    let shares = (0..).map(BucketNo).zip(withdrawn_from(&free, units));
    for (bucket, units) in shares.filter(|(_, units)| *units > 0) {
        let call = loans::lend(buckets.keys(bucket)?, BucketNo::LEDGER, units);
        let Some(loan) = buckets.run_leveled(bucket, call, "withdrawing units").await? else {
            continue;
        };
        // Crash here [withdrawn_not_recorded]: the units are lent to the ledger, which has not
        // recorded that; the next load of the buckets frees them.
        withdrawal.units += loan.units;
        withdrawal.loans.push((bucket, loan));
        // The oldest: a later load has freed the loans before it.
        withdrawal.load.get_or_insert(loans::load_of(loan));
    }
    Ok(withdrawal)
}

/// Finishes every interrupted transfer to the bucket `to`. Returns the units added.
pub(super) async fn finish(buckets: &SkuBuckets, to: BucketNo) -> Result<u32, Error> {
    let counts = poll::all(buckets).await?;
    let mut total = 0;
    for (from, counts) in (0..).map(BucketNo).zip(&counts) {
        for (_, loan) in counts.loans.iter().filter(|(borrower, _)| *borrower == to) {
            total += borrow(buckets, from, to, *loan).await?;
        }
    }
    Ok(total)
}

/// Finishes stuck transfers: lender, borrower, loan.
pub(super) async fn resume(
    buckets: &SkuBuckets,
    stuck: Vec<(BucketNo, BucketNo, Loan)>,
) -> Result<(), Error> {
    // A withdrawal is finished by its process, or by a load of the buckets.
    for (from, to, loan) in stuck.into_iter().filter(|(_, to, _)| *to != BucketNo::LEDGER) {
        let (sku, units) = (buckets.sku.no, loan.units);
        tracing::warn!(%sku, %from, %to, units, "transfer: resuming");
        borrow(buckets, from, to, loan).await?;
    }
    Ok(())
}
