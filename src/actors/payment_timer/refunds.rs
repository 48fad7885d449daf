//! Pays back money that was received and paid no order: late, twice, or another amount.
//!
//! A refund is repeated with the same id until the provider confirms it, with growing waits; after
//! `payment.refund_attempts_max` tries, or when the provider refuses it, an operator decides.
//! Limits: refunds per batch, half of `payment.calls_max` calls at once. On error and on crash: the
//! refund is still due. May repeat: everything, because the provider knows the id.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::{BATCHES_LEFT_MAX, TimerDeps};
use crate::actors::periodic::{RunResult, Task};
use crate::config::PaymentSettings;
use crate::db;
use crate::domain::{AttemptKey, DueRefund, RefundResult};
use crate::payment::RefundAnswer;
use crate::runtime::backoff::doubled;

/// Wait after the first try.
const WAIT_MIN: Duration = Duration::from_secs(5);

/// Longest wait between two tries.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Pays money back.
pub struct RefundWorker(pub Arc<TimerDeps>);

impl Task for RefundWorker {
    type State = ();

    const FAILURE: &'static str = "refunds not made, retrying";

    async fn run(&self, (): &()) -> RunResult {
        let (deps, settings) = (&self.0, &self.0.settings);
        let left_max = settings.batch.saturating_mul(BATCHES_LEFT_MAX);
        // Refunds whose result cannot be stored are due again and hide no others.
        let mut left: HashSet<AttemptKey> = HashSet::new();
        loop {
            let num_left = u32::try_from(left.len()).unwrap_or(u32::MAX);
            let limit = settings.batch.saturating_add(num_left);
            let mut due = deps.ledger.due_refunds(deps.clock.wall_ms(), limit).await?;
            let is_full = due.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
            due.retain(|due| !left.contains(&due.key));
            for chunk in due.chunks(deps.calls_at_once()) {
                let refunds = join_all(chunk.iter().map(|due| self.refund(due))).await;
                for (due, stored) in chunk.iter().zip(refunds) {
                    match stored {
                        Err(error) if error.class() == db::ErrorClass::Bug => {
                            tracing::error!(refund = %due.key, %error, "refund: result not stored");
                            left.insert(due.key);
                        }
                        stored => stored?,
                    }
                }
            }
            if !is_full || due.is_empty() || num_left > left_max {
                return Ok(());
            }
        }
    }
}

impl RefundWorker {
    async fn refund(&self, due: &DueRefund) -> Result<(), db::Error> {
        let deps = &self.0;
        let answer = deps.orders.refund(due).await;
        let result = result(answer, due.attempts, &deps.settings, deps.clock.wall_ms());
        // Crash here [refund_made_not_stored]: the refund is still due; the provider answers its
        // repeat as the first time.
        if !deps.ledger.refund_result(due.key, result.clone()).await? {
            return Ok(());
        }
        let (payment_id, request) = (&due.payment_id, due.key.order.request);
        match result {
            RefundResult::Done => {
                deps.metrics.refunds_done.inc();
                tracing::info!(%request, payment_id, "refund: made");
            }
            RefundResult::Failed { reason } => {
                deps.metrics.refunds_failed.inc();
                tracing::error!(%request, payment_id, reason, "refund: given up");
            }
            RefundResult::Again { .. } => {}
        }
        Ok(())
    }
}

/// What is stored of the answer to a refund that was tried `attempts` times before.
fn result(
    answer: RefundAnswer,
    attempts: u16,
    settings: &PaymentSettings,
    now_ms: i64,
) -> RefundResult {
    let attempts = u32::from(attempts);
    let is_last = attempts.saturating_add(1) >= settings.refund_attempts_max;
    match answer {
        RefundAnswer::Done => RefundResult::Done,
        RefundAnswer::Refused(reason) => RefundResult::Failed { reason },
        RefundAnswer::Pending | RefundAnswer::Unknown if is_last => {
            let reason = format!("not confirmed in {} tries", attempts.saturating_add(1));
            RefundResult::Failed { reason }
        }
        RefundAnswer::Pending | RefundAnswer::Unknown => {
            let wait_ms = doubled(WAIT_MIN, WAIT_MAX, attempts).as_millis();
            let wait_ms = i64::try_from(wait_ms).unwrap_or(i64::MAX);
            RefundResult::Again { next_ms: now_ms.saturating_add(wait_ms) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_refund_is_tried_with_growing_waits_until_the_last_try() {
        let settings = Settings::with_ledger("sqlite://unused.db").payment;
        let again = |next_ms| RefundResult::Again { next_ms };
        for (attempts, expected) in
            [(0, again(5_001)), (1, again(10_001)), (9, again(2_560_001)), (18, again(3_600_001))]
        {
            for answer in [RefundAnswer::Pending, RefundAnswer::Unknown] {
                assert_eq!(result(answer, attempts, &settings, 1), expected, "{attempts}");
            }
        }
        let last = result(RefundAnswer::Unknown, 19, &settings, 1);
        assert_eq!(last, RefundResult::Failed { reason: "not confirmed in 20 tries".to_owned() });
        assert_eq!(result(RefundAnswer::Done, 19, &settings, 1), RefundResult::Done);
        let refused = RefundAnswer::Refused("closed account".to_owned());
        let failed = RefundResult::Failed { reason: "closed account".to_owned() };
        assert_eq!(result(refused, 0, &settings, 1), failed);
    }
}
