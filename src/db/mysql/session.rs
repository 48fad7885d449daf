//! The settings of a connection.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, SslOpts, UrlError};

use super::MysqlOptions;
use crate::db::Error;
use crate::db::error::cannot_open;

/// The access mode of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionAccess {
    /// Reads and writes.
    Write,
    /// Reads only, enforced by the server.
    Read,
}

/// The settings of a connection.
pub(super) struct Session {
    /// Contain the password: must not be displayed.
    pub(super) client: Opts,
    /// Host, port and database, for messages.
    pub(super) address: String,
    pub(super) access: SessionAccess,
    /// The statements that set up a new session.
    pub(super) set_up: String,
    pub(super) connect_timeout: Duration,
    /// Limit of a job. Its caller waits a little longer and therefore receives the result.
    pub(super) job_limit: Duration,
    /// Limit of an audit's statement.
    pub(super) audit_timeout_ms: u64,
    /// Limit of a statement on the server.
    pub(super) statement_timeout_ms: u64,
    /// See [`Connector::outages`](crate::db::workers::Connector::outages).
    pub(super) outages: Arc<AtomicU64>,
}

impl Session {
    pub(super) fn new(options: &MysqlOptions, access: SessionAccess) -> Result<Arc<Self>, Error> {
        let Some(rest) = options.url.strip_prefix("mysql://") else {
            return cannot_open("ledger.url is not mysql://user:password@host:port/database");
        };
        // A password may contain @: the address begins after the last one.
        let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
        // Without the library's message, which may quote a part of the password.
        let invalid = |_| Error::CannotOpen {
            reason: "ledger.url is not mysql://user:password@host:port/database with known \
                     parameters; write characters such as ? and @ of a password as %3F and %40"
                .to_owned(),
        };
        Ok(Arc::new(Self {
            client: client_options(options).map_err(invalid)?,
            address: address.split('?').next().unwrap_or_default().to_owned(),
            access,
            set_up: set_up(options, access),
            connect_timeout: Duration::from_millis(options.connect_timeout_ms.max(1)),
            job_limit: Duration::from_millis(options.job_deadline_ms.max(1)).mul_f64(0.9),
            audit_timeout_ms: options.audit_timeout_ms,
            statement_timeout_ms: options.statement_timeout_ms,
            outages: Arc::default(),
        }))
    }
}

/// The options of the client library. Diesel needs its own cache of statements to be the only one,
/// and counts the rows that an UPDATE finds.
fn client_options(options: &MysqlOptions) -> Result<Opts, UrlError> {
    let client = OptsBuilder::from_opts(Opts::from_url(&with_defaults(&options.url))?)
        .stmt_cache_size(0)
        .client_found_rows(true);
    Ok(match &options.trust {
        None => client.into(),
        Some(trust) => {
            let tls = SslOpts::default()
                .with_root_certs(vec![trust.pem().to_vec().into()])
                .with_disable_built_in_roots(true);
            client.ssl_opts(tls).into()
        }
    })
}

/// Adds our default parameters in front of the operator's, which take precedence: no socket file,
/// because the port may belong to a proxy; and keep-alive on idle connections.
fn with_defaults(url: &str) -> String {
    const DEFAULTS: &str = "prefer_socket=false&tcp_keepalive=10000";
    match url.split_once('?') {
        Some((base, parameters)) => format!("{base}?{DEFAULTS}&{parameters}"),
        None => format!("{url}?{DEFAULTS}"),
    }
}

/// One round trip. Only MariaDB reads `/*M! */`, only MySQL 8 and later reads `/*!80000 */`: name
/// and unit of a statement's limit differ.
fn set_up(options: &MysqlOptions, access: SessionAccess) -> String {
    let lock_wait_s = options.lock_wait_timeout_s.max(1);
    // Releases the locks of a client that vanished during a transaction before TCP times out. Our
    // clients are never idle in a transaction for longer than the limit of a job.
    let idle_max_s = options.job_deadline_ms.div_ceil(1000) + 1;
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
         /*M! , idle_write_transaction_timeout = {idle_max_s} */ \
         /*!80000 , wait_timeout = {wait_s} */; {limit}",
        wait_s = idle_max_s.max(60),
        limit = statement_limit(options.statement_timeout_ms),
    )
}

/// The statement that limits each further statement, 0: no limit; MySQL limits only reads.
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
    fn no_message_contains_the_password() {
        assert_eq!(session("mysql://me:s3cret@db:3306/shop").address, "db:3306/shop");
        assert_eq!(session("mysql://db/shop").address, "db/shop");
        for url in ["s3cret@db", "mysql://me:a?s3cret@db:3306/shop", "mysql://db/x?p=s3cret"] {
            let opened = Session::new(&MysqlOptions::new(url), SessionAccess::Write);
            let error = opened.err().unwrap().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn the_operators_parameters_follow_the_defaults() {
        let ours = session("mysql://me@db/shop");
        assert_eq!(
            (ours.client.prefer_socket(), ours.client.tcp_keepalive()),
            (false, Some(10_000))
        );
        let changed = session("mysql://me@db/shop?tcp_keepalive=1");
        assert_eq!(changed.client.tcp_keepalive(), Some(1));
        assert!(changed.client.ssl_opts().is_none());
    }

    #[test]
    fn a_statement_limit_has_the_unit_of_each_server() {
        let limit = statement_limit(5_050);
        assert!(limit.contains("max_statement_time = 5.050"), "{limit}");
        assert!(limit.contains("max_execution_time = 5050"), "{limit}");
    }
}
