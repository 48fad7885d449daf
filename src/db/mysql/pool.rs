//! The connection pool: opens, validates and closes connections.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use r2d2::{ManageConnection, NopErrorHandler, Pool};

use super::client::{MysqlConnection, connect};
use super::session::Session;
use crate::db::Error;

/// A connection without a response for this long is tested before it is borrowed.
const VALID_FOR: Duration = Duration::from_secs(1);

/// An unused connection is closed after this time, earlier than servers and firewalls close it.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Opens and validates the connections of a pool.
pub(super) struct Manager(Arc<Session>);

impl ManageConnection for Manager {
    type Connection = MysqlConnection;
    /// The error of the server or the network; the caller of the pool converts it to an [`Error`].
    type Error = io::Error;

    fn connect(&self) -> io::Result<MysqlConnection> {
        connect(&self.0).map_err(|error| match error {
            Error::NoConnection { reason } => io::Error::other(reason),
            other => io::Error::other(other),
        })
    }

    fn is_valid(&self, conn: &mut MysqlConnection) -> io::Result<()> {
        if conn.answered_at().elapsed() < VALID_FOR {
            return Ok(());
        }
        conn.limit_total(self.0.connect_timeout);
        conn.batch_execute("DO 1").map_err(io::Error::other)
    }

    fn has_broken(&self, conn: &mut MysqlConnection) -> bool {
        thread::panicking() || conn.is_broken()
    }
}

/// A pool of at most `size` connections, opened on demand.
pub(super) fn pool(session: &Arc<Session>, size: usize) -> Pool<Manager> {
    Pool::builder()
        .max_size(u32::try_from(size).unwrap_or(u32::MAX).max(1))
        .min_idle(Some(0))
        .idle_timeout(Some(IDLE_MAX))
        .test_on_check_out(true)
        // Longer than one attempt to connect, so that its error is reported to the caller.
        .connection_timeout(session.connect_timeout.saturating_mul(2))
        .error_handler(Box::new(NopErrorHandler))
        .build_unchecked(Manager(Arc::clone(session)))
}
