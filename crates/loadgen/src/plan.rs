use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;

/// Writes the whole request number `seq` (counted from 0) to the end of an empty buffer.
///
/// Called once per request, from any generator thread, in no particular order.
pub type RequestSource = Arc<dyn Fn(u64, &mut Vec<u8>) + Send + Sync>;

/// Told the outcome of request number `seq`, exactly once per request, from a generator thread.
///
/// It runs between two requests: what it costs is taken from the generator's rate.
pub type Observer = Arc<dyn Fn(u64, &Outcome<'_>) + Send + Sync>;

/// What a server answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// HTTP status.
    pub status: u16,
    /// The answer carried `Idempotent-Replayed: true`.
    pub replayed: bool,
    /// The whole body, chunks joined.
    pub body: &'a [u8],
}

/// How one request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// A complete answer arrived.
    Answered(Answer<'a>),
    /// No complete answer: the server may or may not have acted on the request, except after
    /// [`TransportError::Connect`], when it was never sent.
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
    /// The request could not be written completely.
    #[error("could not send the request")]
    Write,
    /// The connection broke while the answer was awaited.
    #[error("could not read the answer")]
    Read,
    /// The server closed the connection before the answer was complete.
    #[error("the server closed the connection")]
    Closed,
    /// No complete answer within the answer timeout.
    #[error("no answer in time")]
    Timeout,
    /// The answer is not HTTP/1.x, or larger than the generator reads.
    #[error("the answer is malformed")]
    Malformed,
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this many requests in total.
    Requests(u64),
    /// When this much time has passed; requests in flight are still awaited.
    Elapsed(Duration),
}

/// When the next request is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each connection sends as soon as its previous answer arrived.
    Closed,
    /// A constant rate, spaced evenly request by request.
    Open {
        /// Requests per second; must be finite and above zero.
        per_second: f64,
        /// A request that waits longer than this for a free connection is counted as unsent.
        late_limit: Duration,
    },
}

/// One load run. Build it with [`Load::new`] and change the fields that matter.
#[derive(Clone)]
pub struct Load {
    /// Where to connect to.
    pub target: SocketAddr,
    /// What to send.
    pub source: RequestSource,
    /// Who is told each outcome.
    pub observer: Option<Observer>,
    /// How requests are paced.
    pub pace: Pace,
    /// When to stop.
    pub until: Until,
    /// Connections in total; open loop: the maximum of the pool.
    pub connections: usize,
    /// Generator threads that read answers (the open loop has one more, which sends).
    pub threads: usize,
    /// How long to keep trying to connect before a request is given up.
    pub connect_timeout: Duration,
    /// How long to wait for an answer after sending.
    pub answer_timeout: Duration,
    /// Shows how far the run is, about ten times a second.
    pub progress: Option<ProgressBar>,
}

impl Load {
    /// A closed loop of 1,000 requests over 64 connections and one thread, with time-outs of five
    /// (connecting) and ten seconds (answering).
    pub fn new(target: SocketAddr, source: RequestSource) -> Self {
        Self {
            target,
            source,
            observer: None,
            pace: Pace::Closed,
            until: Until::Requests(1_000),
            connections: 64,
            threads: 1,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            progress: None,
        }
    }

    /// Refuses what cannot run.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        if self.connections == 0 || self.threads == 0 {
            return Err(LoadError::Plan("connections and threads must be at least 1"));
        }
        if let Pace::Open { per_second, .. } = self.pace
            && !(per_second.is_finite() && per_second > 0.0)
        {
            return Err(LoadError::Plan("the rate must be above 0"));
        }
        Ok(())
    }

    /// Connections that thread number `thread` keeps, the remainder going to the first threads.
    pub(super) fn connections_of(&self, thread: usize) -> usize {
        let extra = usize::from(thread < self.connections % self.threads);
        self.connections / self.threads + extra
    }
}

/// Why a run did not happen. Answers and transport errors are results, not errors.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan contradicts itself.
    #[error("load plan: {0}")]
    Plan(&'static str),
    /// A generator thread or its runtime could not be started.
    #[error("load generator could not start")]
    Start(#[source] std::io::Error),
    /// A generator thread died, so its numbers are missing.
    #[error("a load generator thread died")]
    Died,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Load {
        Load::new(SocketAddr::from(([127, 0, 0, 1], 1)), Arc::new(|_, _| {}))
    }

    #[test]
    fn connections_are_spread_without_loss() {
        let load = Load { connections: 10, threads: 4, ..plan() };
        let spread: Vec<_> = (0..4).map(|thread| load.connections_of(thread)).collect();
        assert_eq!(spread, [3, 3, 2, 2]);
    }

    #[test]
    fn impossible_plans_are_refused() {
        assert!(Load { connections: 0, ..plan() }.check().is_err());
        let pace = Pace::Open { per_second: 0.0, late_limit: Duration::ZERO };
        assert!(Load { pace, ..plan() }.check().is_err());
        assert!(plan().check().is_ok());
    }
}
