//! A process that cannot outlive the test, whatever ends the test.

use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crossbeam_channel::{Sender, bounded, unbounded};
use rustix::process::{Pid, Signal, kill_process};

/// Started, frozen and killed by its number only.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program without terminal. It is killed when this is dropped, and by the kernel when
    /// the test itself is killed.
    pub fn spawn(program: &str, arguments: &[&str]) -> Self {
        // The signal comes when the thread that started the child ends: that thread must not be the
        // test's own, which may hand the server on.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).args(arguments);
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
