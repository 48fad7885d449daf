//! Samples the metrics of this process once a second, for the charts of the operators' page.
//!
//! On crash: the history is kept, and the seconds between the incarnations are missing in it.

use std::sync::Arc;

use super::periodic::{RunResult, Task};
use super::stock_gate::GateDirectory;
use crate::observe::metrics::Metrics;
use crate::observe::series::SampleHistory;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::permits::Permits;

/// Sets the gauges that have no writer of their own, then takes a sample.
pub struct SeriesSampler {
    pub metrics: Arc<Metrics>,
    pub history: Arc<SampleHistory>,
    pub directory: Arc<GateDirectory>,
    /// Of the ledger writer.
    pub permits: Permits,
    pub breaker: Breaker,
    pub clock: SharedClock,
}

impl Task for SeriesSampler {
    type State = ();

    const FAILURE: &'static str = "sampling failed";

    async fn run(&self, (): &()) -> RunResult {
        self.metrics.inside(self.directory.num_inside(), self.permits.num_taken());
        self.metrics.ledger_breaker.set(i64::from(self.breaker.is_open()));
        self.history.sample(&self.metrics, self.clock.wall_ms());
        Ok(())
    }
}
