//! A MariaDB on a copy of an empty data folder. Starts in 0.2 s.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::data::{cached, copy, folder, run};
use crate::port::Port;
use crate::process::temporary;
use crate::server::{Launch, PrivateServer, find_program};

/// The server listens on loopback for minutes and holds test data only.
pub const PASSWORD: &str = "quite-secret";

/// Starts a server with further settings; the last value of a name applies. It has an empty
/// database `floodgate` and a user of that name with all privileges on it. Its folder is created in
/// `parent`; empty data is kept in `cache`.
pub fn start(parent: &Path, cache: &Path, settings: &[&str]) -> Result<PrivateServer> {
    let (program, version) = find_program("mariadbd", "mariadb-server")?;
    let (folder, port) = (folder(parent)?, Port::claim()?);
    let temporary = temporary(folder.path())?;
    let empty = cached(cache, "data", &version, |data| install(data, &temporary))?;
    copy(&empty, &folder.path().join("data"))?;
    fs::write(folder.path().join("init.sql"), first_statements())?;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut arguments = vec![
        "--no-defaults".to_owned(),
        format!("--datadir={}", file("data")),
        format!("--socket={}", file("socket")),
        format!("--pid-file={}", file("pid")),
        format!("--init-file={}", file("init.sql")),
        format!("--log-error={}", file("error.log")),
        format!("--tmpdir={}", file("tmp")),
        format!("--port={}", port.number()),
        "--bind-address=127.0.0.1".to_owned(),
        "--skip-name-resolve".to_owned(),
    ];
    arguments.extend(as_root().map(str::to_owned));
    arguments.extend(settings.iter().map(|&setting| setting.to_owned()));
    let launch = Launch {
        program,
        arguments,
        environment: Vec::new(),
        log: "error.log".into(),
        ready: "ready for connections",
    };
    PrivateServer::start(folder, launch, port, (Vec::new(), None))
}

/// The URL of a database for the user `floodgate` or `root`.
pub fn url(user: &str, address: SocketAddr, database: &str) -> String {
    format!("mysql://{user}:{PASSWORD}@{address}/{database}")
}

/// The name of a new database, and the statements by which `root` creates it.
pub fn new_database() -> (String, String) {
    let name = format!("floodgate_{:016x}", fastrand::u64(..));
    let statements = format!(
        "CREATE DATABASE {name} CHARACTER SET utf8mb4;\
         GRANT ALL ON {name}.* TO floodgate@127.0.0.1"
    );
    (name, statements)
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

fn install(data: &Path, temporary: &Path) -> Result<()> {
    let mut command = Command::new("mariadb-install-db");
    command
        .env("TMPDIR", temporary)
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .args(["--innodb-log-file-size=16M"])
        .args(as_root())
        .arg(format!("--datadir={}", data.display()));
    run(&mut command).map(drop)
}

/// MariaDB runs as root only with this flag.
fn as_root() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}
