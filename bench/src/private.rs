//! Servers of other people's making, started for one bench: free ports, folders of their own, gone
//! with the bench.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use tempfile::TempDir;

use crate::process::{Process, scratch};

const PORTS: std::ops::Range<u16> = 12_000..32_000;
const PORT_TRIES: usize = 1_000;
/// The server is on loopback, for minutes, and holds nothing.
const PASSWORD: &str = "bench";

/// Why a goal cannot be measured on this machine; the others still can.
#[derive(Debug, thiserror::Error)]
#[error("{program} is not installed (apt-get install {package})")]
pub(crate) struct Missing {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

/// Requires a program; how it is called. Servers may be where only administrators look.
pub(crate) fn need(program: &'static str, package: &'static str) -> anyhow::Result<String> {
    for name in [program.to_owned(), format!("/usr/sbin/{program}")] {
        let asked = Command::new(&name).arg("--version").output();
        if asked.is_ok_and(|answer| answer.status.success()) {
            return Ok(name);
        }
    }
    Err(Missing { program, package }.into())
}

/// Starts a program in a folder that no other server uses, with its temporary files in there: a
/// starting MariaDB deletes those of another one that it finds. It ends with this process.
pub(crate) fn start(program: &str, words: &[String], folder: &Path) -> anyhow::Result<Process> {
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary)?;
    // The signal comes when the thread that started the child ends: the main one, here.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]).args(words);
    Process::start(command.current_dir(folder).env("TMPDIR", &temporary), folder)
}

/// A port that nobody listens on at the moment, out of a range from which the kernel takes none for
/// outgoing connections: it stays free until the server listens.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let mut tried = std::iter::repeat_with(|| fastrand::u16(PORTS)).take(PORT_TRIES);
    tried.find(is_free).with_context(|| format!("no free port in {PORTS:?}"))
}

/// A redis-server.
#[derive(Debug)]
pub(crate) struct RedisServer {
    /// `None`: it is down. Ends before its folder is removed.
    process: Option<Process>,
    scratch: TempDir,
    program: String,
    words: Vec<String>,
    pub(crate) address: SocketAddr,
}

impl RedisServer {
    /// An empty one without snapshots, with further options such as `--appendonly yes`.
    pub(crate) async fn start(parent: Option<&Path>, options: &[&str]) -> anyhow::Result<Self> {
        let program = need("redis-server", "redis-server")?;
        let scratch = scratch(parent)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let port = address.port().to_string();
        let folder = scratch.path().display().to_string();
        let base = ["--port", &port, "--bind", "127.0.0.1", "--dir", &folder, "--save", ""];
        let words = base.iter().chain(options).map(|&word| word.to_owned()).collect();
        let mut server = Self { process: None, scratch, program, words, address };
        server.up().await?;
        Ok(server)
    }

    /// Starts it on the data that it has; ready once it has read its append-only file.
    pub(crate) async fn up(&mut self) -> anyhow::Result<()> {
        let mut process = start(&self.program, &self.words, self.scratch.path())?;
        let is_loaded =
            async |_: &str| redis::cmd("PING").query::<String>(&mut self.connect().ok()?).ok();
        process.until(is_loaded).await?;
        self.process = Some(process);
        Ok(())
    }

    /// `kill -9`.
    pub(crate) fn down(&mut self) {
        self.process = None;
    }

    /// 0 while it is down.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::id)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// A connection of the bench's own.
    pub(crate) fn connect(&self) -> anyhow::Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }

    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.connect()?)?)
    }

    pub(crate) fn used_memory(&self) -> anyhow::Result<f64> {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut self.connect()?)?;
        let mut lines = info.lines();
        let used = lines.find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
        used.context("INFO has no used_memory")
    }
}

/// A MariaDB with an empty database.
#[derive(Debug)]
pub(crate) struct MariaServer {
    // Ends before its folder is removed.
    process: Process,
    _scratch: TempDir,
    address: SocketAddr,
}

impl MariaServer {
    /// With its defaults, but for a buffer pool and a log that fit the bench; each commit waits for
    /// the disk.
    pub(crate) async fn start(parent: Option<&Path>) -> anyhow::Result<Self> {
        let program = need("mariadbd", "mariadb-server")?;
        let scratch = scratch(parent)?;
        let file = |name: &str| scratch.path().join(name).display().to_string();
        install(&file("data"), scratch.path())?;
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
        let mut words = vec![
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
        words.extend(as_root());
        let process = start(&program, &words, scratch.path())?;
        let mut server = Self { process, _scratch: scratch, address };
        let url = server.url();
        let greet = async |_: &str| AsyncMysqlConnection::establish(&url).await.ok();
        server.process.until(greet).await?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn url(&self) -> String {
        self.url_of("floodgate")
    }

    /// A further empty database; its URL.
    pub(crate) async fn database(&self) -> anyhow::Result<String> {
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
fn install(folder: &str, temporary: &Path) -> anyhow::Result<()> {
    let made = Command::new("mariadb-install-db")
        .env("TMPDIR", temporary)
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
