//! The pool: which connections are made, believed and thrown away.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use r2d2::{ManageConnection, NopErrorHandler, Pool};

use super::client::{MysqlConnection, connect};
use super::session::Session;
use crate::db::Error;

/// A connection that answered so long ago is asked whether it is still there before it is lent.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// A connection that nobody used so long is closed: sooner than servers and firewalls do it.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Makes connections and looks after them.
pub(super) struct Manager(Arc<Session>);

impl ManageConnection for Manager {
    type Connection = MysqlConnection;
    /// What the server or the network said: the pool's caller makes an [`Error`] of it.
    type Error = io::Error;

    fn connect(&self) -> io::Result<MysqlConnection> {
        connect(&self.0).map_err(|error| match error {
            Error::NoConnection { reason } => io::Error::other(reason),
            other => io::Error::other(other),
        })
    }

    fn is_valid(&self, conn: &mut MysqlConnection) -> io::Result<()> {
        if conn.answered_at().elapsed() < BELIEVED_FOR {
            return Ok(());
        }
        conn.end_within(self.0.connect_timeout);
        conn.batch_execute("DO 1").map_err(io::Error::other)
    }

    fn has_broken(&self, conn: &mut MysqlConnection) -> bool {
        thread::panicking() || conn.is_given_up()
    }
}

/// A pool of at most `size` connections, none of which is made before it is needed.
pub(super) fn pool(session: &Arc<Session>, size: usize) -> Pool<Manager> {
    Pool::builder()
        .max_size(u32::try_from(size).unwrap_or(u32::MAX).max(1))
        .min_idle(Some(0))
        .idle_timeout(Some(IDLE_MAX))
        .test_on_check_out(true)
        // Longer than one attempt, so that whoever waits in vain is told why.
        .connection_timeout(session.connect_timeout.saturating_mul(2))
        .error_handler(Box::new(NopErrorHandler))
        .build_unchecked(Manager(Arc::clone(session)))
}
