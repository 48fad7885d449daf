//! The state of one connection: open, or closed with a reason.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;

use super::connect::ServerIdentity;
use super::router::RefreshRequests;
use super::{ConnectionPurpose, Error};
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::ValueStatus;

/// Consecutive time-outs after which the connection is closed: TCP alone would need many minutes to
/// report a lost peer.
const TIMEOUTS_MAX: u32 = 3;

/// Tracks whether one connection is usable. Closing is final; the first reason is kept.
#[derive(Debug)]
pub(super) struct ConnectionHealth {
    purpose: ConnectionPurpose,
    pub(super) refreshes: Arc<RefreshRequests>,
    /// Set at the end of the handshake.
    pub(super) identity: OnceLock<ServerIdentity>,
    close_reason: OnceLock<String>,
    /// At least one call was answered.
    proven: AtomicBool,
    missed: Mutex<MissedAnswers>,
}

/// Consecutive calls without an answer.
#[derive(Debug, Default)]
struct MissedAnswers {
    timeouts: u32,
    /// When the last time-out was counted. Calls started before it are not counted again.
    counted_at: Option<Instant>,
}

impl ConnectionHealth {
    pub(super) fn new(purpose: ConnectionPurpose, refreshes: Arc<RefreshRequests>) -> Arc<Self> {
        Arc::new(Self {
            purpose,
            refreshes,
            identity: OnceLock::new(),
            close_reason: OnceLock::new(),
            proven: AtomicBool::new(false),
            missed: Mutex::default(),
        })
    }

    /// Fails with the reason once the connection is closed.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.close_reason.get() {
            None => Ok(()),
            Some(reason) => Err(Error::not_sent(reason)),
        }
    }

    pub(super) fn status(&self) -> ValueStatus<Error> {
        match self.check() {
            Ok(()) => ValueStatus::Usable,
            Err(why) => ValueStatus::Expired { proven: self.proven.load(Ordering::SeqCst), why },
        }
    }

    /// Closes the connection. `refresh_topology`: the master may be another server now.
    pub(super) fn close(&self, reason: &str, refresh_topology: bool) {
        if refresh_topology {
            self.refreshes.request();
        }
        let Some(identity) = self.identity.get() else {
            drop(self.close_reason.set(reason.to_owned()));
            return;
        };
        let close_error = format!("connection to {} given up: {reason}", identity.node);
        if self.close_reason.set(close_error).is_ok() {
            let run_id = &identity.run_id;
            tracing::warn!(node = %identity.node, run_id, purpose = ?self.purpose, reason,
                "redis connection given up");
        }
    }

    /// Records an answer.
    pub(super) fn answered(&self) {
        self.proven.store(true, Ordering::SeqCst);
        self.missed.lock().timeouts = 0;
    }

    /// Records a time-out of a call started at `started_at`, and closes the connection at
    /// [`TIMEOUTS_MAX`].
    pub(super) fn timed_out(&self, started_at: Instant) {
        if let Some(identity) = self.identity.get() {
            let purpose = self.purpose;
            tracing::debug!(node = %identity.node, ?purpose, "redis did not answer in time");
        }
        let timeouts = {
            let mut missed = self.missed.lock();
            if missed.counted_at.is_some_and(|at| started_at < at) {
                return;
            }
            missed.counted_at = Some(now_monotonic());
            missed.timeouts += 1;
            missed.timeouts
        };
        if timeouts >= TIMEOUTS_MAX {
            self.close(&format!("no answer to {timeouts} calls in a row"), true);
        }
    }
}

#[cfg(test)]
#[path = "connection_health_tests.rs"]
mod tests;
