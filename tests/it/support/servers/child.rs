//! A child process that never outlives the test, however the test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crossbeam_channel::{Sender, bounded, unbounded};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::wait;

/// A child process, signalled by its process id only.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program without terminal in `folder`, its working directory, which no other server
    /// uses; `TMPDIR` is inside it. Drop kills the process, and the kernel kills it when the test
    /// process ends.
    pub fn spawn(program: &str, arguments: &[&str], folder: &Path) -> Self {
        // The kernel sends the signal when the thread that spawned the child ends. A test's thread
        // may end before its server does: therefore `SPAWNER` spawns the child.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).args(arguments);
        command.current_dir(folder).env("TMPDIR", temporary(folder));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (send, receive) = bounded(1);
        SPAWNER.send((command, send)).unwrap();
        let child = receive.recv().unwrap();
        Self { child: child.unwrap_or_else(|error| panic!("setpriv {program}: {error}")) }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The directory for temporary files of a server in this folder, created if missing. Servers must
/// not share one: a starting MariaDB deletes every `#sql*` file in it.
pub fn temporary(folder: &Path) -> PathBuf {
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    temporary
}

type SpawnRequest = (Command, Sender<std::io::Result<Child>>);

/// Sends to a thread that runs until the test process ends.
static SPAWNER: LazyLock<Sender<SpawnRequest>> = LazyLock::new(|| {
    let (send, receive) = unbounded::<SpawnRequest>();
    std::thread::spawn(move || {
        for (mut command, answer) in receive {
            drop(answer.send(command.spawn()));
        }
    });
    send
});

#[test]
fn a_server_works_in_its_own_folder_with_temporary_files_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    // The program reports its directories itself: `/proc` is empty while a process starts.
    let script = "{ pwd -P; printenv TMPDIR; } > draft && mv draft report && exec sleep 100";
    let mut process = Process::spawn("sh", &["-c", script], folder.path());
    wait::until_true("the report of the program", || folder.path().join("report").exists());
    let report = fs::read_to_string(folder.path().join("report")).unwrap();
    let directory = folder.path().canonicalize().unwrap();
    let temporary = folder.path().join("tmp");
    assert_eq!(report, format!("{}\n{}\n", directory.display(), temporary.display()));
    assert!(process.is_running());
}
