//! Private Redis and MariaDB servers: on free ports, in temporary directories. They end with the
//! bench.

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
/// The server listens on loopback for minutes and holds test data only.
const PASSWORD: &str = "bench";

/// A goal that needs this program cannot be measured; the other goals can.
#[derive(Debug, thiserror::Error)]
#[error("{program} is not installed (apt-get install {package})")]
pub(crate) struct MissingProgram {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

/// Finds a program on the `PATH` or in `/usr/sbin` and returns its name or path.
pub(crate) fn find_program(program: &'static str, package: &'static str) -> anyhow::Result<String> {
    for name in [program.to_owned(), format!("/usr/sbin/{program}")] {
        let version = Command::new(&name).arg("--version").output();
        if version.is_ok_and(|output| output.status.success()) {
            return Ok(name);
        }
    }
    Err(MissingProgram { program, package }.into())
}

/// Starts a program in a directory of its own, which also holds its temporary files: a starting
/// MariaDB deletes the temporary files of other servers. The process ends with this process.
pub(crate) fn start(program: &str, arguments: &[String], folder: &Path) -> anyhow::Result<Process> {
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary)?;
    // The kernel sends the signal when the thread that started the child ends: the main thread.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]).args(arguments);
    Process::start(command.current_dir(folder).env("TMPDIR", &temporary), folder)
}

/// A free port outside the kernel's range for outgoing connections, so that it stays free until the
/// server listens.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let mut tried = std::iter::repeat_with(|| fastrand::u16(PORTS)).take(PORT_TRIES);
    tried.find(is_free).with_context(|| format!("no free port in {PORTS:?}"))
}

/// A redis-server.
#[derive(Debug)]
pub(crate) struct RedisServer {
    /// `None` after [`Self::kill`]. Dropped before its directory is removed.
    process: Option<Process>,
    scratch: TempDir,
    program: String,
    arguments: Vec<String>,
    pub(crate) address: SocketAddr,
}

impl RedisServer {
    /// Starts an empty server without snapshots, with further options such as `--appendonly yes`.
    pub(crate) async fn start(parent: Option<&Path>, options: &[&str]) -> anyhow::Result<Self> {
        let program = find_program("redis-server", "redis-server")?;
        let scratch = scratch(parent)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let port = address.port().to_string();
        let folder = scratch.path().display().to_string();
        let base = ["--port", &port, "--bind", "127.0.0.1", "--dir", &folder, "--save", ""];
        let arguments = base.iter().chain(options).map(|&option| option.to_owned()).collect();
        let mut server = Self { process: None, scratch, program, arguments, address };
        server.launch().await?;
        Ok(server)
    }

    /// Starts the server on its existing data and waits until the append-only file is loaded.
    pub(crate) async fn launch(&mut self) -> anyhow::Result<()> {
        let mut process = start(&self.program, &self.arguments, self.scratch.path())?;
        let is_loaded =
            async |_: &str| redis::cmd("PING").query::<String>(&mut self.connect().ok()?).ok();
        process.until(is_loaded).await?;
        self.process = Some(process);
        Ok(())
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// The process id; 0 after [`Self::kill`].
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::id)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

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
    // Dropped before its directory is removed.
    process: Process,
    _scratch: TempDir,
    address: SocketAddr,
}

impl MariaServer {
    /// Starts a server with defaults, except for buffer pool and log sizes that fit the bench. Each
    /// commit waits for the disk.
    pub(crate) async fn start(parent: Option<&Path>) -> anyhow::Result<Self> {
        let program = find_program("mariadbd", "mariadb-server")?;
        let scratch = scratch(parent)?;
        let file = |name: &str| scratch.path().join(name).display().to_string();
        install(&file("data"), scratch.path())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        // An init file takes one statement per line.
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
        let process = start(&program, &arguments, scratch.path())?;
        let mut server = Self { process, _scratch: scratch, address };
        let url = server.url();
        let connect = async |_: &str| AsyncMysqlConnection::establish(&url).await.ok();
        server.process.until(connect).await?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn url(&self) -> String {
        self.url_of("floodgate")
    }

    /// Creates another empty database and returns its URL.
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

/// Creates an empty data directory.
fn install(folder: &str, temporary: &Path) -> anyhow::Result<()> {
    let output = Command::new("mariadb-install-db")
        .env("TMPDIR", temporary)
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .arg(format!("--datadir={folder}"))
        .args(as_root())
        .output()
        .context("cannot run mariadb-install-db")?;
    if !output.status.success() {
        bail!("mariadb-install-db: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// MariaDB runs as root only with this flag.
fn as_root() -> Option<String> {
    rustix::process::geteuid().is_root().then(|| "--user=root".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = find_program("no-such-server", "no-such-package").unwrap_err();
        let missing = error.downcast_ref::<MissingProgram>().unwrap().to_string();
        assert_eq!(missing, "no-such-server is not installed (apt-get install no-such-package)");
    }
}
