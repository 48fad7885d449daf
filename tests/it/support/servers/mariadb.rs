//! A private MariaDB for one test: a child process on a free port of 127.0.0.1, on a copy of an
//! empty data folder that is created once. Starts in 0.2 s.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use diesel::sql_types::{BigInt, Text};
use diesel::{QueryResult, QueryableByName, sql_query};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use floodgate::db::mysql::MysqlOptions;
use parking_lot::Mutex;
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;
use tokio::runtime::Builder;

use super::child::{Process, temporary};
use super::ports::Port;
use crate::support::wait::{until, until_true};

const PASSWORD: &str = "quite-secret";

/// Small buffers, fast start, no DNS lookups.
const SETTINGS: [&str; 13] = [
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
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
pub struct MariaDb {
    folder: TempDir,
    settings: Vec<String>,
    port: Port,
    /// `None`: killed.
    process: Mutex<Option<Process>>,
}

impl MariaDb {
    /// Starts a server that persists every commit.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further settings; the last value of a name applies.
    pub fn start_with(settings: &[&str]) -> Self {
        let folder = folder();
        let copy = Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(empty_data())
            .arg(folder.path().join("data"))
            .status();
        assert!(copy.unwrap().success(), "cannot copy an empty data folder");
        fs::write(folder.path().join("init.sql"), first_statements()).unwrap();
        let settings = SETTINGS.iter().chain(settings).map(|&setting| setting.to_owned());
        let settings = settings.collect();
        let server = Self { folder, settings, port: Port::claim(), process: Mutex::new(None) };
        server.restart();
        server
    }

    /// Restarts the server on its data, after [`Self::kill`].
    pub fn restart(&self) {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let log = file("error.log");
        drop(fs::remove_file(&log));
        let mut arguments = vec![
            "--no-defaults".to_owned(),
            format!("--datadir={}", file("data")),
            format!("--socket={}", file("socket")),
            format!("--pid-file={}", file("pid")),
            format!("--init-file={}", file("init.sql")),
            format!("--log-error={log}"),
            format!("--tmpdir={}", temporary(self.folder.path()).display()),
            format!("--port={}", self.port.number()),
        ];
        arguments.extend(as_user().map(str::to_owned));
        arguments.extend(self.settings.iter().cloned());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut process = Process::spawn("mariadbd", &arguments, self.folder.path());
        until_true("MariaDB to take connections", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            assert!(process.is_running(), "MariaDB ended: {text}");
            text.contains("ready for connections")
        });
        *self.process.lock() = Some(process);
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The URL of its database.
    pub fn url(&self) -> String {
        Self::url_by(self.addr())
    }

    /// Creates another empty database and returns its URL.
    pub fn new_database(&self) -> String {
        let name = format!("floodgate_{:016x}", fastrand::u64(..));
        self.sql(&format!(
            "CREATE DATABASE {name} CHARACTER SET utf8mb4;\
             GRANT ALL ON {name}.* TO floodgate@127.0.0.1"
        ));
        format!("mysql://floodgate:{PASSWORD}@{}/{name}", self.addr())
    }

    /// [`Self::url`] through another address that forwards to the server.
    pub fn url_by(address: SocketAddr) -> String {
        format!("mysql://floodgate:{PASSWORD}@{address}/floodgate")
    }

    /// The options of a ledger on this server.
    pub fn options(&self) -> MysqlOptions {
        MysqlOptions::new(self.url())
    }

    /// `kill -9`.
    pub fn kill(&self) {
        drop(self.process.lock().take());
    }

    /// `SIGSTOP`: connections stay open without answers.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// `SIGCONT`: resumes a stopped server.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.lock().as_ref().expect("a running server").signal(signal);
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
        format!("mysql://root:{PASSWORD}@{}/floodgate", self.addr())
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

/// A folder in memory if possible: data in `/dev/shm` survives a killed process, too.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn first_statements() -> String {
    // The init file has one statement per line and runs at each start.
    format!(
        "SET PASSWORD FOR root@127.0.0.1 = PASSWORD('{PASSWORD}');\n\
         CREATE DATABASE IF NOT EXISTS floodgate CHARACTER SET utf8mb4;\n\
         CREATE USER IF NOT EXISTS floodgate@127.0.0.1 IDENTIFIED BY '{PASSWORD}';\n\
         GRANT ALL ON floodgate.* TO floodgate@127.0.0.1;\n"
    )
}

/// The empty data folder, created by the first test that needs it.
fn empty_data() -> PathBuf {
    let version = Command::new("mariadbd").args(["--no-defaults", "--version"]).output();
    let version = version.expect("mariadbd is missing: scripts/test-deps.sh").stdout;
    let name: String = String::from_utf8_lossy(&version)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .collect();
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.trim_end_matches('-'));
    let lock = File::create(data.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !data.exists() {
        let fresh = data.with_extension("fresh");
        drop(fs::remove_dir_all(&fresh));
        let temporary = tempfile::tempdir().unwrap();
        let output = Command::new("mariadb-install-db")
            .env("TMPDIR", temporary.path())
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(["--innodb-log-file-size=16M"])
            .args(as_user())
            .arg(format!("--datadir={}", fresh.display()))
            .output()
            .expect("mariadb-install-db is missing: scripts/test-deps.sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::rename(&fresh, &data).unwrap();
    }
    data
}

fn as_user() -> Option<&'static str> {
    geteuid().is_root().then_some("--user=root")
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
