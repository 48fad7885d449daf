//! The ledger's errors, and the classification of driver errors.

use std::fmt::Display;
use std::time::Duration;

use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::sql::WriteMode;

/// How a caller handles a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Nothing was written; a retry may succeed soon.
    Retry,
    /// Nothing was written; the ledger is unusable until it recovers or an operator repairs it.
    Down,
    /// The write may be committed: retry by request id, and do not give units back.
    Unknown,
    /// Nothing was written, and a retry fails in the same way.
    Bug,
}

/// Why a call to the ledger failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database answered with an error before COMMIT.
    #[error("ledger refused {operation}")]
    Refused {
        operation: &'static str,
        #[source]
        source: Diesel,
    },
    /// COMMIT failed or its response was lost.
    #[error("ledger did not confirm {operation}")]
    NotConfirmed {
        operation: &'static str,
        #[source]
        source: Diesel,
    },
    #[error("{reason}")]
    CannotOpen {
        /// The cause and the remedy.
        reason: String,
    },
    #[error("ledger queue is full")]
    Full,
    /// The job did not finish in time; it may still finish.
    #[error("ledger did not answer {operation} in time")]
    TimedOut { operation: &'static str },
    /// No worker was free in time; the job was cancelled before it began.
    #[error("ledger had no time to begin {operation}")]
    NotBegun { operation: &'static str },
    /// The worker of the job cannot open a connection; the job did not begin.
    #[error("ledger has no connection: {reason}")]
    NoConnection { reason: String },
    /// The job panicked on its worker thread.
    #[error("ledger worker crashed during {operation}")]
    WorkerCrashed { operation: &'static str },
    /// Another process opened the ledger later in an incompatible write mode and fenced this one,
    /// which must not write any more.
    #[error("{} opened this ledger after this process: stop one of the two (writer's token \
             {found}, ours {ours})", opener(*found))]
    Fenced {
        /// The token of this process.
        ours: i64,
        /// The token in the ledger.
        found: i64,
    },
    #[error("ledger is closed")]
    Closed,
    #[error("ledger is open for reading only: cannot do {operation}")]
    ReadOnly { operation: &'static str },
    /// The value is out of the range of its column.
    #[error("ledger cannot store {what}")]
    Unstorable {
        /// The name and the value.
        what: String,
    },
    /// A row contains a value that no version of this program writes.
    #[error("ledger row is not readable: {what}")]
    Unreadable {
        /// The row, the column and the value.
        what: String,
    },
}

impl Error {
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused { source, .. } => class_of(source),
            Self::NotConfirmed { .. } | Self::TimedOut { .. } | Self::WorkerCrashed { .. } => {
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

    /// Replaces the placeholder operation of a driver error by `operation`.
    pub(super) fn during(self, operation: &'static str) -> Self {
        match self {
            Self::Refused { operation: A_QUERY, source } => Self::Refused { operation, source },
            Self::NotConfirmed { operation: A_QUERY, source } => {
                Self::NotConfirmed { operation, source }
            }
            other => other,
        }
    }

    /// A COMMIT with an unknown outcome.
    pub(super) fn not_confirmed(source: Diesel) -> Self {
        Self::NotConfirmed { operation: A_QUERY, source }
    }
}

/// The operation of a driver error until the caller of the job sets it with [`Error::during`].
const A_QUERY: &str = "a query";

impl From<Diesel> for Error {
    /// A driver error before COMMIT.
    fn from(source: Diesel) -> Self {
        Self::Refused { operation: A_QUERY, source }
    }
}

/// The kind of process that fenced this one, by its token.
fn opener(token: i64) -> &'static str {
    match WriteMode::of_token(token) {
        WriteMode::Exclusive => "a process that writes alone (tier memory or ledger)",
        WriteMode::Shared => "a process that shares the ledger (tier gate or pipeline)",
    }
}

/// Fails to open the ledger.
pub(super) fn cannot_open<T>(reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::CannotOpen { reason: reason.into() })
}

/// `CannotOpen` with the message of a driver and, if there is one, the first remedy for a text in
/// it.
pub(super) fn explained(
    ledger: impl Display,
    message: &str,
    remedies: &[(&[&str], &str)],
) -> Error {
    let matching = |(texts, _): &&(&[&str], &str)| texts.iter().any(|text| message.contains(text));
    let remedy = remedies.iter().find(matching).map(|(_, remedy)| format!("; {remedy}"));
    let remedy = remedy.unwrap_or_default();
    Error::CannotOpen { reason: format!("the ledger {ledger}: {message}{remedy}") }
}

/// Driver errors that are identified by their text only, by class; the first match counts. `SQLite`
/// reports every run-time condition as text, and the MySQL client drops the error numbers, which
/// are given in brackets. (Sessions are set to English.) Any other text is a bug.
const ERROR_TEXTS: [(ErrorClass, &[&str]); 2] = [
    (
        ErrorClass::Retry,
        &[
            "database is locked",
            "database table is locked",
            "Deadlock found",             // (1213) rolls the transaction back
            "Lock wait timeout exceeded", // (1205) rolls the statement back
            "Record has changed since last read", // (1020, MariaDB)
            "max_statement_time exceeded", // (1969, MariaDB)
            "maximum statement execution time", // (3024, MySQL)
            "Query execution was interrupted", // (1317)
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

/// The class of a driver error before COMMIT.
fn class_of(error: &Diesel) -> ErrorClass {
    match error {
        Diesel::DatabaseError(DatabaseErrorKind::SerializationFailure, _) => ErrorClass::Retry,
        Diesel::DatabaseError(
            DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::ReadOnlyTransaction,
            _,
        )
        | Diesel::BrokenTransactionManager => ErrorClass::Down,
        Diesel::DatabaseError(DatabaseErrorKind::Unknown, info) => class_of_text(info.message()),
        _ => ErrorClass::Bug,
    }
}

fn class_of_text(text: &str) -> ErrorClass {
    let matching = |(_, texts): &&(ErrorClass, &[&str])| texts.iter().any(|it| text.contains(it));
    ERROR_TEXTS.iter().find(matching).map_or(ErrorClass::Bug, |(class, _)| *class)
}

/// Whether a COMMIT error of MySQL means that the transaction was rolled back: another node of the
/// cluster committed first (1213), or the server became read-only (1290).
pub(super) fn is_rolled_back_commit(error: &Diesel) -> bool {
    let Diesel::DatabaseError(_, info) = error else { return false };
    ["Deadlock found", "--read-only option"].iter().any(|it| info.message().contains(it))
}

/// Limit of an operator's read. The ledger's own limits are longer: they are made for orders.
const OPERATOR_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits an operator's read to 5 s. The job itself continues after the limit.
pub async fn with_timeout<T>(
    operation: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let result = tokio::time::timeout(OPERATOR_READ_TIMEOUT, call).await;
    result.unwrap_or(Err(Error::TimedOut { operation }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database_error(kind: DatabaseErrorKind, text: &str) -> Diesel {
        Diesel::DatabaseError(kind, Box::new(text.to_owned()))
    }

    /// Errors that a test server cannot produce are quoted from its documentation.
    #[test]
    fn driver_errors_are_classified_by_kind_and_text() {
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
            assert_eq!(
                class_of(&database_error(DatabaseErrorKind::Unknown, text)),
                class,
                "{text}"
            );
        }
        assert_eq!(class_of(&database_error(DatabaseErrorKind::ClosedConnection, "")), Down);
        assert_eq!(class_of(&database_error(DatabaseErrorKind::UniqueViolation, "is full")), Bug);
    }

    #[test]
    fn only_a_certainly_rolled_back_commit_has_a_known_outcome() {
        let rolled_back =
            |text| is_rolled_back_commit(&database_error(DatabaseErrorKind::Unknown, text));
        assert!(rolled_back("Deadlock found when trying to get lock; try restarting transaction"));
        assert!(rolled_back("The MariaDB server is running with the --read-only option so it ..."));
        assert!(!rolled_back("Lock wait timeout exceeded; try restarting transaction"));
        assert!(!rolled_back("Input/output error: Connection reset by peer"));
        assert!(!is_rolled_back_commit(&Diesel::NotFound));
    }
}
