//! Child processes, which end with this process.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

const POLL_PERIOD: Duration = Duration::from_millis(5);
/// Ten minutes at least: a server may start beside a load that takes every core.
const POLLS_MAX: usize = 120_000;

/// A child process, signalled by its process id only, and killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    output: PathBuf,
}

/// A command whose process the kernel kills when this process ends.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

impl Process {
    /// Starts a command, such as a [`command`], in `folder`, its working directory; `TMPDIR` is
    /// inside it, and so is a new file with its output.
    pub fn spawn(mut command: Command, folder: &Path) -> Result<Self> {
        let output = folder.join(format!("output-{:016x}", fastrand::u64(..)));
        let file = File::create(&output)?;
        command.current_dir(folder).env("TMPDIR", temporary(folder)?);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let name = format!("{command:?}");
        // The kernel sends the signal when the thread that spawned the child ends, which may be
        // long before this process does: therefore `SPAWNER` spawns the child.
        let (send, receive) = channel();
        SPAWNER.send((command, send)).ok().context("no thread that spawns")?;
        let child = receive.recv()?.with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, output })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// What the process has written so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Sends a signal, such as `STOP` or `CONT`. Returns from `STOP` when every thread has stopped:
    /// the kernel stops a thread that waits for a core only when it gets one.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.id())?);
        kill_process(pid.context("no process")?, signal)?;
        ensure!(signal != Signal::STOP || wait(|| self.is_stopped())?, "a process does not stop");
        Ok(())
    }

    /// Whether no thread of the process runs (proc(5): the state follows the name).
    fn is_stopped(&self) -> Result<bool> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            // A thread that has ended has no file.
            let stat = fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
            if stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['T', 't', 'Z'])) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The directory for temporary files of a server in this folder, created if missing. Servers must
/// not share one: a starting MariaDB deletes every `#sql*` file in it.
pub(crate) fn temporary(folder: &Path) -> Result<PathBuf> {
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary)?;
    Ok(temporary)
}

/// Polls a condition; false if it does not hold in time.
pub(crate) fn wait(mut condition: impl FnMut() -> Result<bool>) -> Result<bool> {
    for _ in 0..POLLS_MAX {
        if condition()? {
            return Ok(true);
        }
        #[expect(clippy::disallowed_methods, reason = "the pause between two polls")]
        thread::sleep(POLL_PERIOD);
    }
    Ok(false)
}

type SpawnRequest = (Command, Sender<std::io::Result<Child>>);

/// Sends to a thread that runs until this process ends.
static SPAWNER: LazyLock<Sender<SpawnRequest>> = LazyLock::new(|| {
    let (send, receive) = channel::<SpawnRequest>();
    thread::spawn(move || {
        for (mut command, answer) in receive {
            drop(answer.send(command.spawn()));
        }
    });
    send
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_works_in_its_own_folder_with_temporary_files_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = command("sh");
        // The program reports its directories itself: `/proc` is empty while a process starts.
        shell.args(["-c", "pwd -P; printenv TMPDIR; exec sleep 100"]);
        let mut process = Process::spawn(shell, folder.path()).unwrap();
        assert!(wait(|| Ok(process.output().lines().count() == 2)).unwrap());
        let directory = folder.path().canonicalize().unwrap();
        let temporary = folder.path().join("tmp");
        let expected = format!("{}\n{}\n", directory.display(), temporary.display());
        assert_eq!(process.output(), expected);
        assert!(process.is_running().unwrap());
        process.signal(Signal::STOP).unwrap();
        assert!(process.is_stopped().unwrap());
        process.signal(Signal::CONT).unwrap();
        assert!(wait(|| Ok(!process.is_stopped()?)).unwrap());
    }
}
