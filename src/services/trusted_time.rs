//! The wall clock, compared with the ledger's: what ends by the clock asks here first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::db::{self, Ledger};
use crate::observe::metrics::Metrics;
use crate::runtime::clock::SharedClock;
use crate::runtime::clock_guard::{ClockGuard, SteadyTime};

/// One for each process, whatever crashes in it: a clock that stepped is not trusted because an
/// actor started again.
pub struct TrustedTime {
    guard: ClockGuard,
    ledger: Arc<dyn Ledger>,
    metrics: Arc<Metrics>,
    is_trusted: AtomicBool,
}

impl TrustedTime {
    /// A clock is not trusted that steps, or differs from the ledger's, by more than `skew_max_ms`.
    pub fn new(
        clock: SharedClock,
        ledger: Arc<dyn Ledger>,
        metrics: Arc<Metrics>,
        skew_max_ms: u64,
    ) -> Arc<Self> {
        let guard = ClockGuard::new(clock, skew_max_ms);
        Arc::new(Self { guard, ledger, metrics, is_trusted: AtomicBool::new(true) })
    }

    /// The time; `None` while the clock is not trusted.
    pub async fn now(&self) -> Result<Option<SteadyTime>, db::Error> {
        let asked = self.guard.read();
        let checked = self.guard.check(asked, self.ledger.time_ms().await?);
        let was_trusted = self.is_trusted.swap(checked.is_ok(), Ordering::SeqCst);
        self.metrics.clock_not_trusted.set(i64::from(checked.is_err()));
        match &checked {
            Err(fault) if was_trusted => {
                tracing::warn!(%fault, "clock not trusted: nothing ends here until it is right");
            }
            Ok(_) if !was_trusted => {
                tracing::warn!("clock trusted again");
            }
            _ => {}
        }
        Ok(checked.ok())
    }
}
