//! Shared parts of all actors and services: clock, shutdown, backoff, permits, the ledger's circuit
//! breaker, progress, single flight, fault injection.

pub mod backoff;
pub mod breaker;
pub mod child_report;
pub mod clock;
pub mod fault_injection;
pub mod permits;
pub mod process;
pub mod progress;
pub mod shutdown;
pub(crate) mod single_flight;
