//! What all servers have in common: program, ports, folder, readiness, and faults.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::process::Signal;

use crate::data::Folder;
use crate::port::Port;
use crate::process::{Process, command, wait};

/// A program that is not on this machine.
#[derive(Debug, thiserror::Error)]
#[error("{program} is not installed (apt-get install {package})")]
pub struct MissingProgram {
    pub program: &'static str,
    pub package: &'static str,
}

/// Finds a program on the `PATH` or in `/usr/sbin`; returns its name or path, and its version.
pub fn find_program(program: &'static str, package: &'static str) -> Result<(String, String)> {
    for name in [program.to_owned(), format!("/usr/sbin/{program}")] {
        let output = Command::new(&name).arg("--version").output();
        if let Some(output) = output.ok().filter(|output| output.status.success()) {
            return Ok((name, String::from_utf8_lossy(&output.stdout).into_owned()));
        }
    }
    Err(MissingProgram { program, package }.into())
}

/// How a server is started, and when it is ready.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    /// The whole environment; if empty, that of this process.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// A file in the server's folder, written from its start on.
    pub(crate) log: PathBuf,
    /// What the log contains once the server has loaded its files and takes connections.
    pub(crate) ready: &'static str,
}

/// A server on 127.0.0.1. Ports and folder outlive its process.
#[derive(Debug)]
pub struct PrivateServer {
    // Dropped first: the processes end before their folder is removed.
    process: Mutex<Option<Process>>,
    /// A process that the server needs, such as `epmd`.
    _helper: Option<Process>,
    port: Port,
    _further_ports: Vec<Port>,
    launch: Launch,
    folder: Folder,
}

impl PrivateServer {
    /// Starts a server and waits until it is ready. The first port is the one that clients use.
    pub(crate) fn start(
        folder: Folder,
        launch: Launch,
        port: Port,
        further: (Vec<Port>, Option<Process>),
    ) -> Result<Self> {
        let server = Self {
            process: Mutex::new(None),
            _helper: further.1,
            port,
            _further_ports: further.0,
            launch,
            folder,
        };
        server.restart()?;
        Ok(server)
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id; 0 after [`Self::kill`].
    pub fn id(&self) -> u32 {
        self.process.lock().as_ref().map_or(0, Process::id)
    }

    /// `kill -9`.
    pub fn kill(&self) {
        drop(self.process.lock().take());
    }

    /// Sends a signal to the running process. After `STOP` the kernel accepts connections, and no
    /// request is answered until `CONT`.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.lock().as_ref().context("no running server")?.signal(signal)
    }

    /// Starts or restarts the server on its ports and folder, and waits until it is ready.
    pub fn restart(&self) -> Result<()> {
        self.launch()?;
        ensure!(wait(|| self.is_ready())?, "{} does not start:\n{}", self.name(), self.log());
        Ok(())
    }

    /// [`Self::restart`] without waiting.
    pub fn launch(&self) -> Result<()> {
        self.kill();
        // The log of an earlier start also contains the words of readiness.
        drop(fs::remove_file(self.folder().join(&self.launch.log)));
        let command = self.command(command(&self.launch.program), &self.launch.arguments);
        *self.process.lock() = Some(Process::spawn(command, self.folder())?);
        Ok(())
    }

    /// Whether the launched process takes connections; fails if it has ended.
    pub fn is_ready(&self) -> Result<bool> {
        let mut process = self.process.lock();
        let process = process.as_mut().context("no launched server")?;
        let log = self.log();
        if !process.is_running()? {
            bail!("{} ended:\n{}{log}", self.name(), process.output());
        }
        Ok(log.contains(self.launch.ready))
    }

    /// The log since the last launch.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder().join(&self.launch.log)).unwrap_or_default()
    }

    /// Adds arguments and this server's environment to a command.
    pub(crate) fn command(&self, mut command: Command, arguments: &[String]) -> Command {
        if !self.launch.environment.is_empty() {
            command.env_clear();
        }
        let environment = self.launch.environment.iter();
        command.args(arguments).envs(environment.map(|(name, value)| (name, value)));
        command
    }

    fn name(&self) -> String {
        format!("{} on {}", self.launch.program, self.addr())
    }
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
