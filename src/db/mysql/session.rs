//! What a connection is told before it is used.

use std::sync::Arc;
use std::time::Duration;

use super::MysqlOptions;
use crate::db::Error;

/// What a session may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionAccess {
    /// Everything.
    Write,
    /// Reads, and the server holds it to that.
    Read,
}

/// How to make a connection.
pub(super) struct Session {
    /// With the password: not to be shown.
    pub(super) url: String,
    /// The host, port and database of it, for messages.
    pub(super) address: String,
    pub(super) access: SessionAccess,
    /// The statements that set a fresh session up.
    pub(super) set_up: String,
    pub(super) connect_timeout: Duration,
    /// How long a job may take: its caller waits a little longer, and so hears what became of it.
    pub(super) job_limit: Duration,
    pub(super) audit_timeout: Duration,
    /// The limit of a statement as the server is told it, usually and in audits.
    pub(super) usual_limit: String,
    pub(super) audit_limit: String,
}

impl Session {
    pub(super) fn new(options: &MysqlOptions, access: SessionAccess) -> Result<Arc<Self>, Error> {
        let Some(rest) = options.url.strip_prefix("mysql://") else {
            let reason = "ledger.url is not mysql://user:password@host:port/database".to_owned();
            return Err(Error::CannotOpen { reason });
        };
        // Whatever may be part of a password is before the last @.
        let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
        Ok(Arc::new(Self {
            url: with_defaults(&options.url),
            address: address.split('?').next().unwrap_or_default().to_owned(),
            access,
            set_up: set_up(options, access),
            connect_timeout: Duration::from_millis(options.connect_timeout_ms.max(1)),
            job_limit: Duration::from_millis(options.job_deadline_ms.max(1)).mul_f64(0.9),
            audit_timeout: Duration::from_millis(options.audit_timeout_ms.max(1)),
            usual_limit: statement_limit(options.statement_timeout_ms),
            audit_limit: statement_limit(options.audit_timeout_ms),
        }))
    }
}

/// The address as it is, before what the operator set himself: no short cut through a socket file,
/// because the port may be a proxy's; and a sign of life on quiet connections.
fn with_defaults(url: &str) -> String {
    const DEFAULTS: &str = "prefer_socket=false&tcp_keepalive=10000";
    match url.split_once('?') {
        Some((place, own)) => format!("{place}?{DEFAULTS}&{own}"),
        None => format!("{url}?{DEFAULTS}"),
    }
}

/// One round trip. `/*M! */` is read by MariaDB only, `/*!80000 */` by MySQL 8 and later only: a
/// statement's limit has another name and unit in each.
fn set_up(options: &MysqlOptions, access: SessionAccess) -> String {
    let lock_wait_s = options.lock_wait_timeout_s.max(1);
    // Without it the locks of a client that vanished in the middle of a transaction would be held
    // until TCP notices. No client of ours is silent for longer than a job may take.
    let silent_s = options.job_deadline_ms.div_ceil(1000) + 1;
    let mode = match access {
        SessionAccess::Write => "READ WRITE",
        SessionAccess::Read => "READ ONLY",
    };
    format!(
        "SET NAMES utf8mb4 COLLATE utf8mb4_bin; \
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, {mode}; \
         SET SESSION autocommit = 1, \
         sql_mode = 'STRICT_ALL_TABLES,ONLY_FULL_GROUP_BY,NO_ZERO_DATE,NO_ZERO_IN_DATE,\
         ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
         lc_messages = 'en_US', innodb_lock_wait_timeout = {lock_wait_s} \
         /*M! , idle_write_transaction_timeout = {silent_s} */ \
         /*!80000 , wait_timeout = {wait_s} */; {limit}",
        wait_s = silent_s.max(60),
        limit = statement_limit(options.statement_timeout_ms),
    )
}

/// Limits what each statement may take, 0 for no limit; in MySQL only those that read.
pub(super) fn statement_limit(ms: u64) -> String {
    let (s, rest_ms) = (ms / 1000, ms % 1000);
    format!(
        "SET SESSION /*M! max_statement_time = {s}.{rest_ms:03} */ \
         /*!80000 max_execution_time = {ms} */"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(url: &str) -> Arc<Session> {
        Session::new(&MysqlOptions::new(url), SessionAccess::Write).unwrap()
    }

    #[test]
    fn no_message_has_the_password() {
        for url in ["mysql://me:s3cret@db:3306/shop", "mysql://me:s3c?r@t@db:3306/shop?a=b"] {
            assert_eq!(session(url).address, "db:3306/shop");
        }
        assert_eq!(session("mysql://db/shop").address, "db/shop");
        let error =
            Session::new(&MysqlOptions::new("s3cret@db"), SessionAccess::Write).err().unwrap();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[test]
    fn what_the_operator_sets_comes_last() {
        let session = session("mysql://me@db/shop?tcp_keepalive=1");
        assert_eq!(
            session.url,
            "mysql://me@db/shop?prefer_socket=false&tcp_keepalive=10000&tcp_keepalive=1"
        );
    }

    #[test]
    fn a_limit_is_in_the_unit_of_each_server() {
        let limit = statement_limit(5_050);
        assert!(limit.contains("max_statement_time = 5.050"), "{limit}");
        assert!(limit.contains("max_execution_time = 5050"), "{limit}");
    }
}
