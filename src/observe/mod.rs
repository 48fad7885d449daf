//! Metrics and logs.

pub mod metrics;
pub mod telemetry;
