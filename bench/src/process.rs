//! Child processes of the bench: their output goes to a file, and they are killed when dropped.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use floodgate::runtime::clock::now_monotonic;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Limit of a server's start, which may have to read a large ledger.
const START_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_PERIOD: Duration = Duration::from_millis(10);

/// A fresh temporary directory, in `parent` or else in the system's temporary directory.
pub(crate) fn scratch(parent: Option<&Path>) -> anyhow::Result<TempDir> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let scratch = tempfile::Builder::new().prefix("floodgate-bench-").tempdir_in(&parent);
    scratch.with_context(|| format!("cannot create a directory in {}", parent.display()))
}

/// Repeats `check` until its second value is true or `timeout` is over; returns its last result.
pub(crate) async fn poll<T>(
    timeout: Duration,
    mut check: impl AsyncFnMut() -> anyhow::Result<(T, bool)>,
) -> anyhow::Result<(T, bool)> {
    let begun = now_monotonic();
    loop {
        let (value, is_done) = check().await?;
        if is_done || now_monotonic().duration_since(begun) > timeout {
            return Ok((value, is_done));
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// A process, killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts a program whose output goes to a new file in `folder`.
    pub(crate) fn start(command: &mut Command, folder: &Path) -> anyhow::Result<Self> {
        let output = folder.join(format!("output-{:016x}", fastrand::u64(..)));
        let file = File::create(&output)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, output })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Polls until `answer`, called with the output so far, returns a value. Fails when the process
    /// ends first or does not start in time.
    pub(crate) async fn until<T>(
        &mut self,
        mut answer: impl AsyncFnMut(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let (child, output) = (&mut self.child, &self.output);
        let check = async || {
            let has_ended = child.try_wait()?.is_some();
            let written = fs::read_to_string(output).unwrap_or_default();
            let answer = answer(&written).await;
            let is_done = answer.is_some();
            Ok(((answer, written), has_ended || is_done))
        };
        let ((answer, written), _) = poll(START_TIMEOUT, check).await?;
        answer.with_context(|| format!("a server does not start; its output:\n{written}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A server process of this executable.
#[derive(Debug)]
pub(crate) struct ServerChild {
    process: Process,
    /// The public listener; port 0 in roles without one.
    pub(crate) public: SocketAddr,
    /// The internal listener with the admin API; the baseline server has none.
    pub(crate) internal: Option<SocketAddr>,
}

impl ServerChild {
    /// Starts `floodgate serve` on free ports with its ledger in `folder`. `settings` are further
    /// environment variables.
    pub(crate) async fn serve(
        folder: &Path,
        settings: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let mut command = own_command()?;
        let ledger = format!("sqlite://{}", folder.join("bench.db").display());
        command.current_dir(folder).args(["floodgate", "serve"]);
        command.env("FLOODGATE__HTTP__BIND", "127.0.0.1:0");
        command.env("FLOODGATE__INTERNAL__BIND", "127.0.0.1:0");
        command.env("FLOODGATE__AUTH__MODE", "header");
        command.env("FLOODGATE__LEDGER__URL", ledger);
        command.envs(settings.iter().map(|(key, value)| (key, value)));
        let server = Self::start(command, folder).await?;
        if server.internal.is_none() {
            bail!("the server did not print its internal address");
        }
        Ok(server)
    }

    /// Starts the baseline server with as many workers as the product (0 = one per core).
    pub(crate) async fn baseline(folder: &Path, workers: usize) -> anyhow::Result<Self> {
        let mut command = own_command()?;
        command.args(["yardstick", "--workers", &workers.to_string()]);
        Self::start(command, folder).await
    }

    async fn start(mut command: Command, folder: &Path) -> anyhow::Result<Self> {
        let mut process = Process::start(&mut command, folder)?;
        let find = async |output: &str| output.lines().find_map(parse_listening);
        let (public, internal) = process.until(find).await?;
        Ok(Self { process, public, internal })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.id())?);
        Ok(kill_process(pid.context("no process")?, signal)?)
    }
}

fn own_command() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's own file")?))
}

/// Parses `listening public=HOST:PORT internal=HOST:PORT`. Log lines with addresses begin
/// differently and are skipped.
fn parse_listening(line: &str) -> Option<(SocketAddr, Option<SocketAddr>)> {
    let fields = line.strip_prefix("listening ")?;
    let value = |name: &str| {
        fields.split_whitespace().find_map(|field| field.strip_prefix(name)?.parse().ok())
    };
    let no_address = SocketAddr::from(([127, 0, 0, 1], 0));
    match (value("public="), value("internal=")) {
        (None, None) => None,
        (public, internal) => Some((public.unwrap_or(no_address), internal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found() {
        let both = parse_listening("listening public=127.0.0.1:81 internal=127.0.0.1:82").unwrap();
        assert_eq!((both.0.port(), both.1.map(|address| address.port())), (81, Some(82)));
        assert_eq!(parse_listening("listening public=1.2.3.4:5").map(|both| both.1), Some(None));
        let (public, internal) = parse_listening("listening public=- internal=[::1]:8").unwrap();
        assert_eq!((public.port(), internal.unwrap().port()), (0, 8));
        assert_eq!(parse_listening("listening"), None);
        assert_eq!(parse_listening("public=127.0.0.1:81"), None);
    }
}
