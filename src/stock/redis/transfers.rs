//! Transfers of units between buckets, each in three steps; any process may finish a recorded loan.

use super::super::Error;
use super::poll;
use super::sku_buckets::SkuBuckets;
use crate::domain::{BucketNo, Loan};
use crate::redis::scripts::moves;

/// Takes units out of the bucket `from` and records the loan there.
pub(super) async fn lend(
    buckets: &SkuBuckets,
    from: BucketNo,
    to: BucketNo,
    want: u32,
) -> Result<Option<Loan>, Error> {
    let call = moves::lend(buckets.keys(from)?, to, want);
    buckets.change(from, call, "lending units").await
}

/// Adds the units of a loan to the bucket `to`, and clears the loan. Returns the units added.
pub(super) async fn borrow(
    buckets: &SkuBuckets,
    from: BucketNo,
    to: BucketNo,
    loan: Loan,
) -> Result<u32, Error> {
    let call = moves::borrow(buckets.keys(to)?, from, loan);
    let units = buckets.change(to, call, "borrowing units").await?;
    // Crash here [borrowed_not_cleared]: the lender still records the loan, and the borrower has
    // its number: the next transfer or refresh clears it and adds nothing.
    let call = moves::clear_loan(buckets.keys(from)?, to, loan.no);
    buckets.change(from, call, "clearing a loan").await?;
    Ok(units)
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
    for (from, to, loan) in stuck {
        let (sku, units) = (buckets.sku.no, loan.units);
        tracing::warn!(%sku, %from, %to, units, "transfer: resuming");
        borrow(buckets, from, to, loan).await?;
    }
    Ok(())
}
