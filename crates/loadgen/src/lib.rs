//! Load generator: sends prepared HTTP/1.1 requests over keep-alive connections and reports
//! answers, errors and latencies.
//!
//! Two paces. The *closed loop* keeps every connection busy and measures the highest rate. The
//! *open loop* sends at a constant rate and counts latency from the planned time of each request,
//! so that a stalled server cannot hide the wait of queued requests (coordinated omission).
//!
//! The generator runs on an OS thread of its own, with a current-thread runtime, so that it can
//! share a machine with an actix server without sharing its executors.

mod clock;
mod crowd;
mod generator;
mod pacer;
mod plan;
mod report;
mod request;
mod response;

#[cfg(test)]
mod tests;

pub use crowd::{CrowdRun, run_crowd};
pub use generator::{call, run};
pub use plan::{
    Answer, Load, LoadError, Observer, Outcome, Pace, RequestSource, TransportError, Until,
};
pub use report::Report;
pub use request::{BuyRequest, json_string_member};
