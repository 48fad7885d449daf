//! Processes that the bench starts: their output goes to a file, and they end with their value.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use floodgate::runtime::clock::now_monotonic;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to start; it may have a large ledger to read.
const START_PATIENCE: Duration = Duration::from_mins(2);
const POLL_PERIOD: Duration = Duration::from_millis(10);

/// A fresh directory, in the system's for temporary files unless another was named.
pub(crate) fn scratch(parent: Option<&Path>) -> anyhow::Result<TempDir> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let scratch = tempfile::Builder::new().prefix("floodgate-bench-").tempdir_in(&parent);
    scratch.with_context(|| format!("cannot create a directory in {}", parent.display()))
}

/// Looks again and again until the second value is true or `patience` is over; the last look.
pub(crate) async fn poll<T>(
    patience: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<(T, bool)>,
) -> anyhow::Result<(T, bool)> {
    let begun = now_monotonic();
    loop {
        let (seen, is_done) = look().await?;
        if is_done || now_monotonic().duration_since(begun) > patience {
            return Ok((seen, is_done));
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
    /// Starts a program, which writes to a file of its own in `folder`.
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

    /// Polls until `answer`, which is given what the process wrote, gives a value.
    pub(crate) async fn until<T>(
        &mut self,
        mut answer: impl AsyncFnMut(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let (child, output) = (&mut self.child, &self.output);
        let look = async || {
            let has_ended = child.try_wait()?.is_some();
            let written = fs::read_to_string(output).unwrap_or_default();
            let answer = answer(&written).await;
            let is_done = answer.is_some();
            Ok(((answer, written), has_ended || is_done))
        };
        let ((answer, written), _) = poll(START_PATIENCE, look).await?;
        answer.with_context(|| format!("a server does not start; its output:\n{written}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already when these fail.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A server process of this program.
#[derive(Debug)]
pub(crate) struct ServerChild {
    process: Process,
    /// Where buyers connect; port 0 in a role that does not sell.
    pub(crate) public: SocketAddr,
    /// Where the admin API listens; the yardstick has none.
    pub(crate) internal: Option<SocketAddr>,
}

impl ServerChild {
    /// Starts `floodgate serve` on free ports with its ledger in `folder`. `settings` are further
    /// configuration variables.
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

    /// Starts the yardstick with as many workers as the server (0 = one per core).
    pub(crate) async fn yardstick(folder: &Path, workers: usize) -> anyhow::Result<Self> {
        let mut command = own_command()?;
        command.args(["yardstick", "--workers", &workers.to_string()]);
        Self::start(command, folder).await
    }

    async fn start(mut command: Command, folder: &Path) -> anyhow::Result<Self> {
        let mut process = Process::start(&mut command, folder)?;
        let find = async |written: &str| written.lines().find_map(parse_listening);
        let (public, internal) = process.until(find).await?;
        Ok(Self { process, public, internal })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Freezes it, or lets it go on.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.id())?);
        Ok(kill_process(pid.context("no process")?, signal)?)
    }
}

fn own_command() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's own file")?))
}

/// Reads `listening public=HOST:PORT internal=HOST:PORT`. The log tells the addresses, too, in
/// lines that begin otherwise.
fn parse_listening(line: &str) -> Option<(SocketAddr, Option<SocketAddr>)> {
    let fields = line.strip_prefix("listening ")?;
    let value = |name: &str| {
        fields.split_whitespace().find_map(|field| field.strip_prefix(name)?.parse().ok())
    };
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    match (value("public="), value("internal=")) {
        (None, None) => None,
        (public, internal) => Some((public.unwrap_or(nowhere), internal)),
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
