//! The ledger's errors, and the only reader of what database drivers say.

use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::sql::WriteMode;

/// What to do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
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
    /// A process that may not write beside this one opened the ledger after it; this one must not
    /// write any more.
    #[error("{} opened this ledger after this process: stop one of the two (writer's token \
             {found}, ours {ours})", opener(*found))]
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
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused { source, .. } => class_of(source),
            Self::NotConfirmed { .. } | Self::TimedOut { .. } | Self::WorkerDied { .. } => {
                ErrorClass::Unknown
            }
            Self::Full | Self::NotBegun { .. } => ErrorClass::Retry,
            Self::CannotOpen { .. }
            | Self::NoConnection { .. }
            | Self::Closed
            | Self::Fenced { .. } => ErrorClass::Down,
            Self::ReadOnly { .. } | Self::Unstorable { .. } | Self::Unreadable { .. } => {
                ErrorClass::Bug
            }
        }
    }

    /// The same error of a query, with what it was for.
    pub(super) fn during(self, doing: &'static str) -> Self {
        match self {
            Self::Refused { doing: A_QUERY, source } => Self::Refused { doing, source },
            Self::NotConfirmed { doing: A_QUERY, source } => Self::NotConfirmed { doing, source },
            other => other,
        }
    }

    /// What COMMIT said, when nobody knows what it did.
    pub(super) fn not_confirmed(source: Diesel) -> Self {
        Self::NotConfirmed { doing: A_QUERY, source }
    }
}

/// What is done where a query fails; whoever ran the job knows more, see [`Error::during`].
const A_QUERY: &str = "a query";

impl From<Diesel> for Error {
    /// Reads a driver's error before COMMIT.
    fn from(source: Diesel) -> Self {
        Self::Refused { doing: A_QUERY, source }
    }
}

/// Who fenced this process, by the token that it left.
fn opener(token: i64) -> &'static str {
    match WriteMode::of_token(token) {
        WriteMode::Exclusive => "a process that writes alone (tier memory or ledger)",
        WriteMode::Shared => "a process that shares the ledger (tier gate or pipeline)",
    }
}

/// What drivers report as text only, by class; the first match counts. `SQLite` reports every
/// run-time condition so, and the MySQL client hands its errors on without their numbers, which are
/// here in brackets. (Sessions are set to English.) Whatever else they say is a bug.
const SAYINGS: [(ErrorClass, &[&str]); 2] = [
    (
        ErrorClass::Retry,
        &[
            "database is locked",
            "database table is locked",
            "Deadlock found",                     // (1213) all of it is rolled back
            "Lock wait timeout exceeded",         // (1205) only the statement is
            "Record has changed since last read", // (1020, MariaDB)
            "max_statement_time exceeded",        // (1969, MariaDB)
            "maximum statement execution time",   // (3024, MySQL)
            "Query execution was interrupted",    // (1317)
        ],
    ),
    (
        ErrorClass::Down,
        &[
            "disk is full",
            "readonly database",
            "disk I/O error",
            "malformed",
            "unable to open",
            "not a database",
            "Input/output error", // the connection broke
            "Connection to the server is closed",
            "Packet out of order",
            "Connection was killed",       // (1927, MariaDB)
            "Server shutdown in progress", // (1053)
            "read-only",                   // (1290, 1836)
            "Access denied",               // (1044, 1045)
            "command denied",              // (1142)
            "Unknown database",            // (1049)
            "Too many connections",        // (1040)
            "max_user_connections",        // (1203, 1226)
            "is full",                     // (1114)
            "from storage engine",         // (1030)
            "Disk full",                   // (1021)
            "WSREP",                       // (1047, a Galera node that is not ready)
        ],
    ),
];

/// Sorts what a driver said before COMMIT.
fn class_of(error: &Diesel) -> ErrorClass {
    match error {
        Diesel::DatabaseError(DatabaseErrorKind::SerializationFailure, _) => ErrorClass::Retry,
        Diesel::DatabaseError(
            DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::ReadOnlyTransaction,
            _,
        )
        | Diesel::BrokenTransactionManager => ErrorClass::Down,
        Diesel::DatabaseError(DatabaseErrorKind::Unknown, said) => class_of_text(said.message()),
        _ => ErrorClass::Bug,
    }
}

fn class_of_text(text: &str) -> ErrorClass {
    let says = |(_, sayings): &&(ErrorClass, &[&str])| sayings.iter().any(|it| text.contains(it));
    SAYINGS.iter().find(says).map_or(ErrorClass::Bug, |(class, _)| *class)
}

/// Whether MySQL says by refusing COMMIT that it rolled the transaction back: another node of a
/// cluster was first (1213), or the server became read-only (1290).
pub(super) fn is_rolled_back_commit(said: &Diesel) -> bool {
    let Diesel::DatabaseError(_, said) = said else { return false };
    ["Deadlock found", "--read-only option"].iter().any(|it| said.message().contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: DatabaseErrorKind, text: &str) -> Diesel {
        Diesel::DatabaseError(kind, Box::new(text.to_owned()))
    }

    /// Those that a test server cannot be brought to say are in the words of its documentation.
    #[test]
    fn what_drivers_say_is_sorted() {
        use ErrorClass::{Bug, Down, Retry};
        for (text, class) in [
            ("database is locked", Retry),
            ("Deadlock found when trying to get lock; try restarting transaction", Retry),
            ("Lock wait timeout exceeded; try restarting transaction", Retry),
            ("Record has changed since last read in table 'skus'", Retry),
            ("Query execution was interrupted (max_statement_time exceeded)", Retry),
            ("Query execution was interrupted, maximum statement execution time exceeded", Retry),
            ("database or disk is full", Down),
            ("The table 'orders' is full", Down),
            ("Input/output error: Input/output error: Connection reset by peer", Down),
            ("Driver error: `Connection to the server is closed.'", Down),
            ("Connection was killed", Down),
            ("Server shutdown in progress", Down),
            ("WSREP has not yet prepared node for application use", Down),
            ("Got error 28 \"No space left on device\" from storage engine InnoDB", Down),
            ("CONSTRAINT `quotas_held` failed for `floodgate`.`quotas`", Bug),
            ("Unknown column 'x' in 'field list'", Bug),
            ("Data too long for column 'title' at row 1", Bug),
        ] {
            assert_eq!(class_of(&said(DatabaseErrorKind::Unknown, text)), class, "{text}");
        }
        assert_eq!(class_of(&said(DatabaseErrorKind::ClosedConnection, "")), Down);
        assert_eq!(class_of(&said(DatabaseErrorKind::UniqueViolation, "is full")), Bug);
    }

    #[test]
    fn only_a_commit_that_was_certainly_rolled_back_is_no_doubt() {
        let rolled_back = |text| is_rolled_back_commit(&said(DatabaseErrorKind::Unknown, text));
        assert!(rolled_back("Deadlock found when trying to get lock; try restarting transaction"));
        assert!(rolled_back("The MariaDB server is running with the --read-only option so it ..."));
        assert!(!rolled_back("Lock wait timeout exceeded; try restarting transaction"));
        assert!(!rolled_back("Input/output error: Connection reset by peer"));
        assert!(!is_rolled_back_commit(&Diesel::NotFound));
    }
}
