//! The real binary as a child process that a test can kill or freeze.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use floodgate::config::Settings;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::app::url_of;

/// Log lines kept in memory, at most.
const LOG_LINES: usize = 10_000;

/// Log lines that a failing test prints, at most.
const PRINTED_LINES: usize = 200;

/// A `floodgate serve` process; killed when dropped.
pub struct Server {
    child: Child,
    pub public: SocketAddr,
    pub internal: SocketAddr,
    log: Arc<Mutex<VecDeque<String>>>,
    /// Ends after the process has closed its log and all of it has been read.
    reader: Option<JoinHandle<()>>,
}

/// A `floodgate` command on the ledger in `folder`, on free ports; `keys` are further environment
/// variables.
pub fn command(folder: &Path, arguments: &[&str], keys: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodgate"));
    command.current_dir(folder).args(arguments).env_clear();
    command.env("FLOODGATE__HTTP__BIND", "127.0.0.1:0");
    command.env("FLOODGATE__INTERNAL__BIND", "127.0.0.1:0");
    command.env("FLOODGATE__LEDGER__URL", url_of(folder.join("ledger.db")));
    command.envs(keys.iter().copied());
    command
}

/// Settings to read the ledger of a [`command`] in `folder`.
pub fn settings(folder: &Path) -> Settings {
    Settings::with_ledger(&url_of(folder.join("ledger.db")))
}

impl Server {
    /// Starts a server and waits until it listens.
    pub fn start(folder: &Path, keys: &[(&str, &str)]) -> Self {
        Self::from_command(command(folder, &["serve"], keys))
    }

    /// Starts a server with this command and waits until it listens.
    pub fn from_command(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let reader = Some(collect_log(child.stderr.take().unwrap(), log.clone()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = |name: &str| -> Option<SocketAddr> {
            let (_, rest) = line.split_once(name)?;
            rest.split_whitespace().next()?.parse().ok()
        };
        let Some(internal) = address("internal=") else {
            panic!("the server printed {line:?} and logged {:#?}", log.lock());
        };
        // A role that does not sell has no public listener: port 1 refuses connections.
        let public = address("public=").unwrap_or_else(|| ([127, 0, 0, 1], 1).into());
        Self { child, public, internal, log, reader }
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// `SIGSTOP`: connections stay open without answers.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// `SIGTERM`: a graceful end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// `SIGHUP`: secrets are read again.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// `SIGCONT`: resumes a stopped process.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the process exits by itself and its log is complete.
    pub fn wait(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        self.reader.take().map(JoinHandle::join);
        status
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The last 10,000 lines of the log.
    pub fn log(&self) -> String {
        self.log.lock().iter().cloned().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log.lock();
            let last = log.range(log.len().saturating_sub(PRINTED_LINES)..);
            let last: Vec<_> = last.map(String::as_str).collect();
            println!("the last lines of process {}:\n{}", self.child.id(), last.join("\n"));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn collect_log(
    stream: impl Read + Send + 'static,
    log: Arc<Mutex<VecDeque<String>>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut log = log.lock();
            if log.len() == LOG_LINES {
                log.pop_front();
            }
            log.push_back(line);
        }
    })
}
