//! A process that cannot outlive the test, whatever ends the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crossbeam_channel::{Sender, bounded, unbounded};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::wait;

/// Started, frozen and killed by its number only.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program without terminal, in a folder that no other server uses: its working
    /// directory, with a directory for its temporary files. It is killed when this is dropped, and
    /// by the kernel when the test itself is killed.
    pub fn spawn(program: &str, arguments: &[&str], folder: &Path) -> Self {
        // The signal comes when the thread that started the child ends: that thread must not be the
        // test's own, which may hand the server on.
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

    /// Whether it has not ended by itself.
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

/// Where a server in this folder keeps its temporary files. Servers that share such a directory
/// delete each other's: a starting MariaDB removes every `#sql*` that it finds in it.
pub fn temporary(folder: &Path) -> PathBuf {
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    temporary
}

type Order = (Command, Sender<std::io::Result<Child>>);

/// A thread that lives as long as the test process.
static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (send, receive) = unbounded::<Order>();
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
    // The program tells it itself: what the kernel says of a process is empty while it starts.
    let tell = "{ pwd -P; printenv TMPDIR; } > draft && mv draft told && exec sleep 100";
    let mut process = Process::spawn("sh", &["-c", tell], folder.path());
    wait::until_true("word of the program", || folder.path().join("told").exists());
    let told = fs::read_to_string(folder.path().join("told")).unwrap();
    let place = folder.path().canonicalize().unwrap();
    let temporary = folder.path().join("tmp");
    assert_eq!(told, format!("{}\n{}\n", place.display(), temporary.display()));
    assert!(process.is_running());
}
