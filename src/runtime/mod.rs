//! Shared parts of all actors and services: clock and its guard, shutdown, backoff, permits, the
//! ledger's circuit breaker, progress, single flight, fault injection, message authentication
//! codes.

pub mod backoff;
pub mod breaker;
pub mod clock;
pub mod clock_guard;
pub mod fault_injection;
pub mod mac;
pub mod permits;
pub mod progress;
pub mod shutdown;
pub(crate) mod single_flight;

/// A name unique among all processes and process starts: the process id, which containers share,
/// and a random number.
pub fn unique_name() -> std::sync::Arc<str> {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..)).into()
}
