//! Load generator: sends prepared HTTP/1.1 requests over keep-alive connections and reports what
//! came back.
//!
//! Two ways to pace it. The *closed loop* keeps every connection busy and finds the highest rate.
//! The *open loop* sends at a constant rate whatever the server does and counts latency from the
//! moment each request was planned, so that a stalled server cannot hide the wait of those behind.
//!
//! The generator runs on its own OS threads, each with a current-thread runtime, so that it can
//! share a machine with an actix server without sharing its executors.

pub mod crowd;

mod clock;
mod connection;
mod pacer;
mod plan;
mod pool;
mod progress;
mod recorder;
mod report;
mod request;
mod response;
mod run;
mod timer;

#[cfg(test)]
mod tests;

pub use crowd::{Click, Crowd, CrowdRun};
pub use plan::{
    Answer, Load, LoadError, Observer, Outcome, Pace, RequestSource, TransportError, Until,
};
pub use progress::terminal_progress;
pub use report::{Latency, Report};
pub use request::{BuyRequest, json_string_member};
pub use run::run;
