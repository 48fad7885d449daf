//! The ledger's errors, and the only reader of what database drivers say.

use diesel::result::{DatabaseErrorKind, Error as Diesel};

/// What to do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Nothing was written; the same call may succeed in a moment.
    Retry,
    /// Nothing was written; the ledger is not usable until somebody acts or it comes back.
    Down,
    /// Nobody knows whether it was written: ask again by request id, never give back.
    Unknown,
    /// Nothing was written, and a repeat will fail the same way.
    Bug,
}

/// Why a call to the ledger failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database answered with an error before COMMIT.
    #[error("ledger refused {doing}")]
    Refused {
        /// What was being done.
        doing: &'static str,
        /// What the database said.
        #[source]
        source: Diesel,
    },
    /// COMMIT failed or its answer was lost.
    #[error("ledger did not confirm {doing}")]
    NotConfirmed {
        /// What was being done.
        doing: &'static str,
        /// What the database said.
        #[source]
        source: Diesel,
    },
    /// The ledger cannot be opened.
    #[error("{reason}")]
    CannotOpen {
        /// What is wrong and what to do next.
        reason: String,
    },
    /// Every worker is busy and the queue is full.
    #[error("ledger queue is full")]
    Full,
    /// The job did not end in time; it may still end.
    #[error("ledger did not answer {doing} in time")]
    TimedOut {
        /// What was being done.
        doing: &'static str,
    },
    /// No worker was free in time; the job was taken back before it began.
    #[error("ledger had no time to begin {doing}")]
    NotBegun {
        /// What was to be done.
        doing: &'static str,
    },
    /// The pool has no connection, or cannot make one.
    #[error("ledger has no connection: {reason}")]
    NoConnection {
        /// What the pool said.
        reason: String,
    },
    /// The worker died in the middle of the job.
    #[error("ledger worker died during {doing}")]
    WorkerDied {
        /// What was being done.
        doing: &'static str,
    },
    /// Another process took over the ledger; this one must not write any more.
    #[error(
        "another process writes this ledger now (its token {found} is newer than ours, {ours})"
    )]
    Fenced {
        /// The token of this process.
        ours: i64,
        /// The token found.
        found: i64,
    },
    /// The workers have ended.
    #[error("ledger is closed")]
    Closed,
    /// This process opened the ledger for reading only.
    #[error("ledger is open for reading only: cannot do {doing}")]
    ReadOnly {
        /// What was to be done.
        doing: &'static str,
    },
    /// A value that the ledger's columns do not hold.
    #[error("ledger cannot store {what}")]
    Unstorable {
        /// Which value.
        what: String,
    },
    /// A row holds something that no version of this program wrote.
    #[error("ledger row is not readable: {what}")]
    Unreadable {
        /// Which row, which column.
        what: String,
    },
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Refused { source, .. } => class_of(source),
            Self::NotConfirmed { .. } | Self::TimedOut { .. } | Self::WorkerDied { .. } => {
                Class::Unknown
            }
            Self::Full | Self::NotBegun { .. } => Class::Retry,
            Self::CannotOpen { .. } | Self::NoConnection { .. } | Self::Closed => Class::Down,
            Self::Fenced { .. }
            | Self::ReadOnly { .. }
            | Self::Unstorable { .. }
            | Self::Unreadable { .. } => Class::Bug,
        }
    }

    /// Reads a driver's error before COMMIT.
    pub(super) fn refused(doing: &'static str) -> impl Fn(Diesel) -> Self {
        move |source| Self::Refused { doing, source }
    }
}

/// Sorts what a driver said before COMMIT. `SQLite` reports every run-time condition as text only.
fn class_of(error: &Diesel) -> Class {
    match error {
        Diesel::DatabaseError(DatabaseErrorKind::SerializationFailure, _) => Class::Retry,
        Diesel::DatabaseError(DatabaseErrorKind::ClosedConnection, _)
        | Diesel::BrokenTransactionManager => Class::Down,
        Diesel::DatabaseError(_, said) => {
            let text = said.message();
            let is = |needle: &str| text.contains(needle);
            if is("database is locked") || is("database table is locked") {
                Class::Retry
            } else if is("disk is full")
                || is("readonly database")
                || is("disk I/O error")
                || is("malformed")
                || is("unable to open")
                || is("not a database")
            {
                Class::Down
            } else {
                Class::Bug
            }
        }
        _ => Class::Bug,
    }
}
