//! A private MariaDB for one test.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use diesel::sql_types::{BigInt, Text};
use diesel::{QueryResult, QueryableByName, sql_query};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use floodgate::db::mysql::MysqlOptions;
use testkit::mariadb;
use tokio::runtime::Builder;

use super::{Server, cache};
use crate::support::wait::until;

/// Small buffers, fast start.
const SETTINGS: [&str; 11] = [
    "--skip-external-locking",
    "--skip-log-bin",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-buffer-pool-dump-at-shutdown=OFF",
    "--innodb-buffer-pool-load-at-startup=OFF",
    "--table-open-cache=200",
    "--thread-cache-size=32",
    "--max-connections=200",
    "--innodb-flush-log-at-trx-commit=1",
];

/// A running server with an empty database `floodgate` and a user of that name with all privileges
/// on it.
pub struct MariaDb(Server);

impl Deref for MariaDb {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl MariaDb {
    /// Starts a server that persists every commit.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further settings; the last value of a name applies.
    pub fn start_with(settings: &[&str]) -> Self {
        // In memory if possible: data in `/dev/shm` survives a killed process, too.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let settings = [&SETTINGS[..], settings].concat();
        Self(Server::of(mariadb::start(&parent, cache(), &settings)))
    }

    /// The URL of its database.
    pub fn url(&self) -> String {
        Self::url_by(self.addr())
    }

    /// Creates another empty database and returns its URL.
    pub fn new_database(&self) -> String {
        let (name, statements) = mariadb::new_database();
        self.sql(&statements);
        mariadb::url("floodgate", self.addr(), &name)
    }

    /// [`Self::url`] through another address that forwards to the server.
    pub fn url_by(address: SocketAddr) -> String {
        mariadb::url("floodgate", address, "floodgate")
    }

    /// The options of a ledger on this server.
    pub fn options(&self) -> MysqlOptions {
        MysqlOptions::new(self.url())
    }

    /// Runs statements as root in the ledger's database.
    pub fn sql(&self, statements: &str) {
        self.as_root(async |conn| conn.batch_execute(statements).await).unwrap();
    }

    /// The single number that a query selects.
    pub fn number(&self, query: &str) -> i64 {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = BigInt)]
            number: i64,
        }
        let query = format!("SELECT CAST(({query}) AS SIGNED) AS number");
        self.as_root(async |conn| sql_query(query).get_result::<Row>(conn).await).unwrap().number
    }

    /// Waits until a transaction waits for a row lock.
    pub async fn until_row_lock_wait(&self) {
        // Not `innodb_trx`: polled more often than every 0.1 s, it returns its cached rows forever.
        let waits = || async { (self.status("INNODB_ROW_LOCK_CURRENT_WAITS") > 0).then_some(()) };
        until("a transaction that waits for a row lock", waits).await;
    }

    /// The value of a numeric status variable.
    pub fn status(&self, name: &str) -> i64 {
        self.number(&format!(
            "SELECT variable_value FROM information_schema.global_status \
             WHERE variable_name = '{name}'"
        ))
    }

    /// The column `text` of each row that a query selects.
    pub fn texts(&self, query: &str) -> Vec<String> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Text)]
            text: String,
        }
        let rows = self.as_root(async |conn| sql_query(query).load::<Row>(conn).await).unwrap();
        rows.into_iter().map(|row| row.text).collect()
    }

    /// A root connection that stays open, for long transactions.
    pub fn session(&self) -> Session {
        Self::session_as(&self.root_url())
    }

    /// [`Self::session`] with another URL.
    pub fn session_as(url: &str) -> Session {
        let (statements, to_run) = mpsc::channel::<String>();
        let (send_result, results) = mpsc::channel();
        let url = url.to_owned();
        thread::spawn(move || {
            block_on(async {
                let mut conn = match AsyncMysqlConnection::establish(&url).await {
                    Ok(conn) => conn,
                    Err(error) => {
                        let error = diesel::result::Error::QueryBuilderError(error.into());
                        send_result.send(Err(error)).ok();
                        return;
                    }
                };
                for text in to_run {
                    send_result.send(conn.batch_execute(&text).await).ok();
                }
            });
        });
        Session { statements, results }
    }

    fn root_url(&self) -> String {
        mariadb::url("root", self.addr(), "floodgate")
    }

    /// Runs a job on a new root connection in the ledger's database, without client-side limits.
    pub fn as_root<T: Send>(
        &self,
        job: impl AsyncFnOnce(&mut AsyncMysqlConnection) -> T + Send,
    ) -> T {
        let url = self.root_url();
        // On another thread: the calling thread may already run a runtime.
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                block_on(async {
                    let mut conn = AsyncMysqlConnection::establish(&url).await.unwrap();
                    job(&mut conn).await
                })
            });
            worker.join().unwrap()
        })
    }
}

/// Runs a future in a new runtime on this thread.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A connection with one transaction at a time; drop closes the connection and rolls back.
pub struct Session {
    statements: mpsc::Sender<String>,
    results: mpsc::Receiver<QueryResult<()>>,
}

impl Session {
    /// Runs statements and waits for their end.
    pub fn sql(&self, statements: &str) {
        self.try_sql(statements).unwrap();
    }

    /// [`Self::sql`] for statements that may fail.
    pub fn try_sql(&self, statements: &str) -> QueryResult<()> {
        // Without a connection the send fails, and the result is the connection error.
        self.statements.send(statements.to_owned()).ok();
        self.results.recv().unwrap()
    }
}

#[test]
fn a_server_that_starts_leaves_the_temporary_tables_of_others_alone() {
    let running = MariaDb::start();
    let session = running.session();
    session.sql("CREATE TEMPORARY TABLE kept (n INT) ENGINE=Aria; INSERT INTO kept VALUES (1)");
    let starting = MariaDb::start();
    // The flush closes the table's files, so that the insert opens them by name.
    session.sql("FLUSH TABLES; INSERT INTO kept SELECT n + 1 FROM kept");
    let tmpdir = |server: &MariaDb| server.texts("SELECT @@tmpdir AS text");
    assert_ne!(tmpdir(&running), tmpdir(&starting));
}

/// The reason why each server has its own directory.
#[test]
fn servers_that_share_a_temporary_directory_delete_each_others_tables() {
    let shared = tempfile::tempdir().unwrap();
    let setting = format!("--tmpdir={}", shared.path().display());
    let running = MariaDb::start_with(&[&setting]);
    let session = running.session();
    session.sql("CREATE TEMPORARY TABLE kept (n INT) ENGINE=Aria; INSERT INTO kept VALUES (1)");
    let _starting = MariaDb::start_with(&[&setting]);
    assert!(session.try_sql("FLUSH TABLES; INSERT INTO kept SELECT n + 1 FROM kept").is_err());
}
