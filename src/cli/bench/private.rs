//! Servers of other people's making, started for one bench: free ports, folders of their own, gone
//! with the bench.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};

use super::scratch::Scratch;
use crate::clock::now_monotonic;

const START_PATIENCE: Duration = Duration::from_mins(1);
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// The server is on loopback, for minutes, and holds nothing.
const PASSWORD: &str = "bench";

/// Why a goal cannot be measured on this machine; the others still can.
#[derive(Debug, thiserror::Error)]
#[error("{program} is not installed (apt-get install {package})")]
pub(super) struct Missing {
    program: &'static str,
    package: &'static str,
}

/// Requires a program; how it is called. Servers may be where only administrators look.
pub(super) fn need(program: &'static str, package: &'static str) -> anyhow::Result<String> {
    for name in [program.to_owned(), format!("/usr/sbin/{program}")] {
        let asked = Command::new(&name).arg("--version").output();
        if asked.is_ok_and(|answer| answer.status.success()) {
            return Ok(name);
        }
    }
    Err(Missing { program, package }.into())
}

/// Requires a program by its file, which is in one of these places.
pub(super) fn need_file(
    places: &[&str],
    program: &'static str,
    package: &'static str,
) -> anyhow::Result<String> {
    let found = places.iter().find(|place| Path::new(place).is_file());
    found.map(|&place| place.to_owned()).ok_or_else(|| Missing { program, package }.into())
}

/// A process that ends with this value, or with this process.
#[derive(Debug)]
pub(super) struct Process(Child);

impl Process {
    pub(super) fn start(program: &str, arguments: &[String], log: &Path) -> anyhow::Result<Self> {
        let log = fs::File::create(log)?;
        // The signal comes when the thread that started the child ends: the main one, here.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        Ok(Self(child.with_context(|| format!("cannot start {program}"))?))
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Polls until `answer` gives a value.
    pub(super) async fn until<T>(
        &mut self,
        log: &Path,
        mut answer: impl AsyncFnMut() -> Option<T>,
    ) -> anyhow::Result<T> {
        let end = now_monotonic() + START_PATIENCE;
        loop {
            if let Some(answer) = answer().await {
                return Ok(answer);
            }
            if self.0.try_wait()?.is_some() || now_monotonic() > end {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("a private server does not start: {said}");
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already when these fail.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A port that nobody listens on at the moment.
pub(super) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A redis-server.
#[derive(Debug)]
pub(super) struct RedisServer {
    // Ends before its folder is removed.
    process: Process,
    _scratch: Scratch,
    pub(super) address: SocketAddr,
}

impl RedisServer {
    /// An empty one without snapshots, with further options such as `--appendonly yes`.
    pub(super) async fn start(parent: Option<&Path>, options: &[&str]) -> anyhow::Result<Self> {
        let program = need("redis-server", "redis-server")?;
        let scratch = Scratch::new(parent)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let port = address.port().to_string();
        let folder = scratch.path().display().to_string();
        let base = ["--port", &port, "--bind", "127.0.0.1", "--dir", &folder, "--save", ""];
        let arguments: Vec<String> =
            base.iter().chain(options).map(|&word| word.to_owned()).collect();
        let log = scratch.path().join("log");
        let mut process = Process::start(&program, &arguments, &log)?;
        let client = redis::Client::open(format!("redis://{address}"))?;
        process.until(&log, async || client.get_connection().ok()).await?;
        Ok(Self { process, _scratch: scratch, address })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// A connection of the bench's own.
    pub(super) fn connect(&self) -> anyhow::Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }
}

/// A MariaDB with an empty database.
#[derive(Debug)]
pub(super) struct MariaServer {
    // Ends before its folder is removed.
    process: Process,
    _scratch: Scratch,
    address: SocketAddr,
}

impl MariaServer {
    /// With its defaults, but for a buffer pool and a log that fit the bench; each commit waits for
    /// the disk.
    pub(super) async fn start(parent: Option<&Path>) -> anyhow::Result<Self> {
        let program = need("mariadbd", "mariadb-server")?;
        let scratch = Scratch::new(parent)?;
        let file = |name: &str| scratch.path().join(name).display().to_string();
        install(&file("data"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        // One statement on each line.
        fs::write(
            file("init.sql"),
            format!(
                "CREATE DATABASE floodgate CHARACTER SET utf8mb4;\n\
                 CREATE USER floodgate@127.0.0.1 IDENTIFIED BY '{PASSWORD}';\n\
                 GRANT ALL ON `floodgate%`.* TO floodgate@127.0.0.1;\n"
            ),
        )?;
        let mut arguments = vec![
            "--no-defaults".to_owned(),
            format!("--datadir={}", file("data")),
            format!("--socket={}", file("socket")),
            format!("--pid-file={}", file("pid")),
            format!("--init-file={}", file("init.sql")),
            format!("--port={}", address.port()),
            "--bind-address=127.0.0.1".to_owned(),
            "--skip-name-resolve".to_owned(),
            "--innodb-buffer-pool-size=512M".to_owned(),
            "--innodb-log-file-size=512M".to_owned(),
            "--innodb-flush-log-at-trx-commit=1".to_owned(),
        ];
        arguments.extend(as_root());
        let log = scratch.path().join("log");
        let process = Process::start(&program, &arguments, &log)?;
        let mut server = Self { process, _scratch: scratch, address };
        let url = server.url();
        let greet = async || AsyncMysqlConnection::establish(&url).await.ok();
        server.process.until(&log, greet).await?;
        Ok(server)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn url(&self) -> String {
        self.url_of("floodgate")
    }

    /// A further empty database; its URL.
    pub(super) async fn database(&self) -> anyhow::Result<String> {
        let name = format!("floodgate_{:016x}", fastrand::u64(..));
        let mut connection = AsyncMysqlConnection::establish(&self.url()).await?;
        let create = format!("CREATE DATABASE {name} CHARACTER SET utf8mb4");
        connection.batch_execute(&create).await?;
        Ok(self.url_of(&name))
    }

    fn url_of(&self, database: &str) -> String {
        format!("mysql://floodgate:{PASSWORD}@{}/{database}", self.address)
    }
}

/// Makes an empty data folder.
fn install(folder: &str) -> anyhow::Result<()> {
    let made = Command::new("mariadb-install-db")
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .arg(format!("--datadir={folder}"))
        .args(as_root())
        .output()
        .context("cannot run mariadb-install-db")?;
    if !made.status.success() {
        bail!("mariadb-install-db: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

/// MariaDB runs as root only when told to.
fn as_root() -> Option<String> {
    rustix::process::geteuid().is_root().then(|| "--user=root".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = need("no-such-server", "no-such-package").unwrap_err();
        let missing = error.downcast_ref::<Missing>().unwrap().to_string();
        assert_eq!(missing, "no-such-server is not installed (apt-get install no-such-package)");
    }
}
