//! The server processes of the bench, which are this executable in its other roles, and its
//! threads.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodgate::runtime::clock::now_monotonic;
use serde_json::Value as Json;
use testkit::{Process, Signal};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::admin::Admin;

/// Limit of a server's start, which may have to read a large ledger.
const START_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_PERIOD: Duration = Duration::from_millis(10);

/// Repeats `check` until its second value is true or `timeout` is over; returns its last result.
pub async fn poll<T>(
    timeout: Duration,
    mut check: impl AsyncFnMut() -> Result<(T, bool)>,
) -> Result<(T, bool)> {
    let begun = now_monotonic();
    loop {
        let (value, is_done) = check().await?;
        if is_done || now_monotonic().duration_since(begun) > timeout {
            return Ok((value, is_done));
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// A thread with an event loop of its own, which ends when this is dropped.
pub struct Background {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<io::Result<()>>,
}

impl Background {
    pub fn start<F: Future<Output = io::Result<()>>>(
        name: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                tokio::select! { _ = stopped => Ok(()), ended = work() => ended }
            })
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread and waits for it.
    pub fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        Ok(self.thread.join().ok().context("a thread panicked")??)
    }
}

/// A server process of this executable.
pub struct ServerChild {
    process: Process,
    /// The public listener; port 0 in roles without one.
    pub public: SocketAddr,
    /// The internal listener with the admin API; port 0 of the baseline server, which has none.
    pub internal: SocketAddr,
}

impl ServerChild {
    /// Starts `floodgate serve` on free ports with its ledger in `folder`. `set` are further
    /// settings, `key=value`; the last one of a key applies.
    pub async fn serve(folder: &Path, set: &[String]) -> Result<Self> {
        let ledger = format!("ledger.url=sqlite://{}", folder.join("bench.db").display());
        let first = ["http.bind=127.0.0.1:0", "internal.bind=127.0.0.1:0", "auth.mode=header"];
        let mut command = own_command()?;
        command.args(["floodgate", "serve"]);
        for setting in first.into_iter().chain([&*ledger]).chain(set.iter().map(String::as_str)) {
            command.args(["--set", setting]);
        }
        Self::start(command, folder).await
    }

    /// Starts the baseline server, with as many workers as the product.
    pub async fn baseline(folder: &Path) -> Result<Self> {
        let mut command = own_command()?;
        command.arg("yardstick");
        Self::start(command, folder).await
    }

    async fn start(command: Command, folder: &Path) -> Result<Self> {
        let mut process = Process::spawn(command, folder)?;
        let check = async || {
            let is_running = process.is_running()?;
            let found = process.output().lines().find_map(parse_listening);
            Ok((found, found.is_some() || !is_running))
        };
        let (found, _) = poll(START_TIMEOUT, check).await?;
        let found =
            found.with_context(|| format!("a server does not start:\n{}", process.output()));
        let (public, internal) = found?;
        Ok(Self { process, public, internal })
    }

    /// Runs a command of `floodgate` that asks this server; returns what it prints.
    pub async fn command(&self, arguments: &[&str]) -> Result<Json> {
        let mut command = own_command()?;
        command.arg("floodgate").args(arguments).arg("--json");
        command.args(["--set", &format!("internal.bind={}", self.internal)]);
        let ended = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "{}: {said}", arguments.join(" "));
        serde_json::from_slice(&ended.stdout).context("a command that does not print JSON")
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    pub fn admin(&self) -> Result<Admin> {
        Admin::at(&format!("http://{}", self.internal), None)
    }

    pub async fn ready(&self) -> Result<Admin> {
        let admin = self.admin()?;
        admin.await_ready().await?;
        Ok(admin)
    }
}

/// A command of this executable, whose process the kernel kills when this process ends.
pub fn own_command() -> Result<Command> {
    Ok(testkit::command(std::env::current_exe().context("cannot find this program's own file")?))
}

/// Parses `listening public=HOST:PORT internal=HOST:PORT`. Log lines with addresses begin
/// differently and are skipped.
fn parse_listening(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let fields = line.strip_prefix("listening ")?;
    let value = |name: &str| {
        fields.split_whitespace().find_map(|field| field.strip_prefix(name)?.parse().ok())
    };
    let no_address = SocketAddr::from(([127, 0, 0, 1], 0));
    match (value("public="), value("internal=")) {
        (None, None) => None,
        (public, internal) => Some((public.unwrap_or(no_address), internal.unwrap_or(no_address))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found() {
        let ports =
            |line| parse_listening(line).map(|(public, internal)| (public.port(), internal.port()));
        let both = "listening public=127.0.0.1:81 internal=127.0.0.1:82";
        assert_eq!(ports(both), Some((81, 82)));
        assert_eq!(ports("listening public=1.2.3.4:5"), Some((5, 0)));
        assert_eq!(ports("listening public=- internal=[::1]:8"), Some((0, 8)));
        assert_eq!(parse_listening("listening"), None);
        assert_eq!(parse_listening("public=127.0.0.1:81"), None);
    }
}
