//! The limits of calls to a provider: their number and their time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    FindAnswer, PaymentProvider, PaymentStart, Refund, RefundAnswer, StartAnswer, StopAnswer,
};
use crate::domain::AttemptKey;
use crate::runtime::permits::{Permit, Permits};
use crate::runtime::progress;

/// A provider whose calls end after a time, and of which a number run at once. Beyond the number a
/// buyer's call is not made, and a task's waits. Either way a call without an answer is unknown.
pub struct BoundedProvider {
    inner: Arc<dyn PaymentProvider>,
    permits: Permits,
    /// Those of all tasks together; `None`: buyers call.
    of_tasks: Option<Permits>,
    timeout: Duration,
}

impl BoundedProvider {
    pub fn new(inner: Arc<dyn PaymentProvider>, calls_max: usize, timeout: Duration) -> Self {
        Self { inner, permits: Permits::new(calls_max), of_tasks: None, timeout }
    }

    /// The same for tasks: together they take at most half of the permits.
    #[must_use]
    pub fn for_tasks(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            permits: self.permits.clone(),
            of_tasks: Some(Permits::new(self.permits.total() / 2)),
            timeout: self.timeout,
        }
    }

    /// The permits of a call, held until drop; `None`: a buyer's call, and all are taken.
    async fn permits(&self) -> Option<(Permit, Option<Permit>)> {
        let Some(of_tasks) = &self.of_tasks else {
            return Some((self.permits.try_take()?, None));
        };
        let of_task = of_tasks.take(1).await;
        // A waiting task is served before buyers, so that it waits for the end of one call.
        Some((self.permits.take(1).await?, of_task))
    }

    async fn within<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let Some(_permits) = self.permits().await else {
            tracing::warn!(calls_max = self.permits.total(), "payment: too many calls at once");
            return None;
        };
        // The wait for a permit is no stall.
        progress::answered();
        let answer = tokio::time::timeout(self.timeout, call).await.ok();
        progress::answered();
        if answer.is_none() {
            tracing::warn!(provider = self.inner.name(), "payment: provider did not answer");
        }
        answer
    }
}

#[async_trait]
impl PaymentProvider for BoundedProvider {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn start(&self, start: PaymentStart) -> StartAnswer {
        self.within(self.inner.start(start)).await.unwrap_or(StartAnswer::Unknown)
    }

    async fn find(&self, attempt: AttemptKey) -> FindAnswer {
        self.within(self.inner.find(attempt)).await.unwrap_or(FindAnswer::Unknown)
    }

    async fn stop(&self, payment_id: &str) -> StopAnswer {
        self.within(self.inner.stop(payment_id)).await.unwrap_or(StopAnswer::Unknown)
    }

    async fn refund(&self, refund: Refund) -> RefundAnswer {
        self.within(self.inner.refund(refund)).await.unwrap_or(RefundAnswer::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    /// Answers `stop` once it is released.
    #[derive(Default)]
    struct HeldProvider {
        called: Notify,
        release: Notify,
    }

    #[async_trait]
    impl PaymentProvider for HeldProvider {
        fn name(&self) -> &'static str {
            "held"
        }

        async fn start(&self, _: PaymentStart) -> StartAnswer {
            StartAnswer::Refused("held".to_owned())
        }

        async fn find(&self, _: AttemptKey) -> FindAnswer {
            FindAnswer::NotFound
        }

        async fn stop(&self, _: &str) -> StopAnswer {
            self.called.notify_one();
            self.release.notified().await;
            StopAnswer::Stopped
        }

        async fn refund(&self, _: Refund) -> RefundAnswer {
            RefundAnswer::Pending
        }
    }

    fn refund() -> Refund {
        Refund { refund_id: "r".to_owned(), payment_id: "p".to_owned(), amount: 1 }
    }

    #[tokio::test]
    async fn calls_beyond_the_number_are_unknown() {
        let held = Arc::new(HeldProvider::default());
        let bounded = BoundedProvider::new(held.clone(), 1, Duration::from_secs(60));
        let other = async {
            held.called.notified().await;
            assert_eq!(bounded.refund(refund()).await, RefundAnswer::Unknown);
            held.release.notify_one();
        };
        let (stopped, ()) = tokio::join!(bounded.stop("p"), other);
        assert_eq!(stopped, StopAnswer::Stopped);
        assert_eq!(bounded.refund(refund()).await, RefundAnswer::Pending, "the permit is back");
    }

    #[tokio::test]
    async fn tasks_wait_and_leave_half_of_the_calls_to_buyers() {
        let held = Arc::new(HeldProvider::default());
        let of_buyers = BoundedProvider::new(held.clone(), 2, Duration::from_secs(60));
        let of_tasks = of_buyers.for_tasks();
        let other = async {
            held.called.notified().await;
            let mut waiting = std::pin::pin!(of_tasks.refund(refund()));
            assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "not unknown");
            assert_eq!(of_buyers.refund(refund()).await, RefundAnswer::Pending);
            held.release.notify_one();
            waiting.await
        };
        let (stopped, waited) = tokio::join!(of_tasks.stop("p"), other);
        assert_eq!((stopped, waited), (StopAnswer::Stopped, RefundAnswer::Pending));
    }

    #[tokio::test]
    async fn a_call_without_an_answer_is_unknown_after_its_time() {
        let held = Arc::new(HeldProvider::default());
        let bounded = BoundedProvider::new(held.clone(), 1, Duration::from_millis(10));
        assert_eq!(bounded.stop("p").await, StopAnswer::Unknown);
        held.release.notify_one();
        assert_eq!(bounded.stop("p").await, StopAnswer::Stopped);
    }
}
