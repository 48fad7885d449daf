use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::request::json_string_member;

/// Writes the complete request `seq` (counted from 0) into an empty buffer.
///
/// Called once per request, in no particular order.
pub type RequestSource = Arc<dyn Fn(u64, &mut Vec<u8>) + Send + Sync>;

/// Receives the outcome of request `seq`, exactly once per request, on the generator's thread.
///
/// It runs between two requests, so its duration reduces the generator's rate.
pub type Observer = Arc<dyn Fn(u64, &Outcome<'_>) + Send + Sync>;

/// A complete HTTP response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    pub status: u16,
    /// The response has the header `Idempotent-Replayed: true`.
    pub replayed: bool,
    /// The complete body, chunks joined.
    pub body: &'a [u8],
}

impl Answer<'_> {
    /// Whether the server itself does not know yet if it accepts the purchase.
    pub fn is_unknown(&self) -> bool {
        self.status == 202 && json_string_member(self.body, b"state") == Some("unknown")
    }
}

/// How one request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    Answered(Answer<'a>),
    /// No complete answer: the server may or may not have processed the request. After
    /// [`TransportError::Connect`] the request was never sent.
    Unknown(TransportError),
    /// Open loop only: no connection became free in time, so it was never sent.
    Unsent,
}

/// Why an answer is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No connection within the connect timeout; the request was never sent.
    #[error("could not connect")]
    Connect,
    /// The connection ended before the answer was complete.
    #[error("the connection broke")]
    Broken,
    /// No complete answer within the answer timeout.
    #[error("no answer in time")]
    Timeout,
    /// The answer is not HTTP/1.x, or exceeds the generator's size limits.
    #[error("the answer is malformed")]
    Malformed,
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this many requests in total.
    Requests(u64),
    /// After this time; requests in flight are still awaited.
    Elapsed(Duration),
}

/// When the next request is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each connection sends its next request when it has received an answer.
    Closed,
    /// A constant rate with equal intervals.
    Open {
        /// Requests per second; must be finite and above zero.
        per_second: f64,
        /// A request that waits longer than this for a free connection is counted as unsent.
        late_limit: Duration,
    },
}

/// One load run. Create it with [`Load::new`] and override fields.
#[derive(Clone)]
pub struct Load {
    pub target: SocketAddr,
    pub source: RequestSource,
    pub observer: Option<Observer>,
    pub pace: Pace,
    pub until: Until,
    /// Connections in total; open loop: the maximum of the pool.
    pub connections: usize,
    /// How long to retry connecting before a request ends with [`TransportError::Connect`].
    pub connect_timeout: Duration,
    /// How long to wait for an answer after sending.
    pub answer_timeout: Duration,
    /// The title of a progress bar, which a terminal shows.
    pub progress: Option<&'static str>,
}

impl Load {
    /// A closed loop of 1,000 requests over 64 connections, with time-outs of five (connecting)
    /// and ten seconds (answering).
    pub fn new(target: SocketAddr, source: RequestSource) -> Self {
        Self {
            target,
            source,
            observer: None,
            pace: Pace::Closed,
            until: Until::Requests(1_000),
            connections: 64,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            progress: None,
        }
    }

    /// Rejects an impossible plan.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        if self.connections == 0 {
            return Err(LoadError::Plan("connections must be at least 1"));
        }
        if let Pace::Open { per_second, .. } = self.pace
            && !(per_second.is_finite() && per_second > 0.0)
        {
            return Err(LoadError::Plan("the rate must be above 0"));
        }
        Ok(())
    }
}

/// Why a run failed. Answers and transport errors are results, not errors.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan is impossible.
    #[error("load plan: {0}")]
    Plan(&'static str),
    /// The generator's thread or its runtime could not be started.
    #[error("load generator could not start")]
    Start(#[source] std::io::Error),
    /// The generator panicked, so that counts are missing.
    #[error("the load generator panicked")]
    Panicked,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Load {
        Load::new(SocketAddr::from(([127, 0, 0, 1], 1)), Arc::new(|_, _| {}))
    }

    #[test]
    fn impossible_plans_are_refused() {
        assert!(Load { connections: 0, ..plan() }.check().is_err());
        let pace = Pace::Open { per_second: 0.0, late_limit: Duration::ZERO };
        assert!(Load { pace, ..plan() }.check().is_err());
        assert!(plan().check().is_ok());
    }
}
