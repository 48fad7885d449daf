//! What every actor and service stands on, and no actor is: time, shutdown, waits between attempts,
//! permits, the ledger's breaker, fault injection.

pub mod backoff;
pub mod breaker;
pub mod clock;
pub mod fault_injection;
pub mod permits;
pub mod process;
pub mod progress;
pub mod shutdown;
pub(crate) mod single_flight;
