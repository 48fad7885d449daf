//! The limits of calls to a provider: their number and their time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    FindAnswer, PaymentProvider, PaymentStart, Refund, RefundAnswer, StartAnswer, StopAnswer,
};
use crate::domain::AttemptKey;
use crate::runtime::permits::Permits;
use crate::runtime::progress;

/// A provider whose calls end after a time, and of which a number run at once. Beyond the number a
/// call is not made. Either way its outcome is unknown.
pub struct BoundedProvider {
    inner: Arc<dyn PaymentProvider>,
    permits: Permits,
    timeout: Duration,
}

impl BoundedProvider {
    pub fn new(inner: Arc<dyn PaymentProvider>, calls_max: usize, timeout: Duration) -> Self {
        Self { inner, permits: Permits::new(calls_max), timeout }
    }

    async fn within<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let Some(_permit) = self.permits.try_take() else {
            tracing::warn!(calls_max = self.permits.total(), "payment: too many calls at once");
            return None;
        };
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
    async fn a_call_without_an_answer_is_unknown_after_its_time() {
        let held = Arc::new(HeldProvider::default());
        let bounded = BoundedProvider::new(held.clone(), 1, Duration::from_millis(10));
        assert_eq!(bounded.stop("p").await, StopAnswer::Unknown);
        held.release.notify_one();
        assert_eq!(bounded.stop("p").await, StopAnswer::Stopped);
    }
}
