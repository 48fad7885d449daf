use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::load::cpu::Usage;

/// How long a server may take to print where it listens; it may have a large ledger to read.
const START_PATIENCE: Duration = Duration::from_mins(2);
/// Lines of output shown when a server does not start.
const LINES_KEPT: usize = 20;

/// A server process of this program, killed when dropped.
#[derive(Debug)]
pub(super) struct ServerChild {
    child: Child,
    /// Where buyers connect.
    pub(super) public: SocketAddr,
    /// Where the admin API listens; the yardstick has none.
    pub(super) internal: Option<SocketAddr>,
}

impl ServerChild {
    /// Starts `floodgate serve` on free ports with its ledger in `directory`. `settings` are
    /// further configuration variables.
    pub(super) fn serve(directory: &Path, settings: &[(String, String)]) -> anyhow::Result<Self> {
        let mut command = own_command()?;
        let ledger = format!("sqlite://{}", directory.join("bench.db").display());
        command.current_dir(directory).arg("serve");
        command.env("FLOODGATE__HTTP__BIND", "127.0.0.1:0");
        command.env("FLOODGATE__INTERNAL__BIND", "127.0.0.1:0");
        command.env("FLOODGATE__AUTH__MODE", "header");
        command.env("FLOODGATE__LEDGER__URL", ledger);
        command.envs(settings.iter().map(|(key, value)| (key, value)));
        let child = Self::start(command)?;
        if child.internal.is_none() {
            bail!("the server did not print its internal address");
        }
        Ok(child)
    }

    /// Starts the yardstick with as many workers as the server (0 = one per core).
    pub(super) fn yardstick(workers: usize) -> anyhow::Result<Self> {
        let mut command = own_command()?;
        command.args(["bench-yardstick", "--workers", &workers.to_string()]);
        Self::start(command)
    }

    fn start(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().context("cannot start a server process")?;
        // From here on the child is killed when this function fails.
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { child, public: nowhere, internal: None };
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, receiver) = channel();
        if let Some(stdout) = server.child.stdout.take() {
            drain(stdout, Some(sender), tail.clone())?;
        }
        // The log tells the addresses, too, in a form of its own.
        if let Some(stderr) = server.child.stderr.take() {
            drain(stderr, None, tail.clone())?;
        }
        match await_addresses(&receiver) {
            Ok((public, internal)) => {
                (server.public, server.internal) = (public, internal);
                Ok(server)
            }
            Err(error) => {
                let lines: Vec<String> = tail.lock().iter().cloned().collect();
                Err(error.context(format!("output of the server:\n{}", lines.join("\n"))))
            }
        }
    }

    /// Its process number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Freezes it, or lets it go on.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        Ok(kill_process(pid.context("no process")?, signal)?)
    }

    /// CPU time and memory now.
    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.child.id()).context("the server process has ended")
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // It has ended already when these fail.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn own_command() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(Command::new(program))
}

type Addresses = (SocketAddr, Option<SocketAddr>);

/// Reads a stream to its end, so that the server never waits for a full pipe; whoever wants to hear
/// of addresses does.
fn drain(
    stream: impl Read + Send + 'static,
    found: Option<Sender<Addresses>>,
    tail: Arc<Mutex<VecDeque<String>>>,
) -> anyhow::Result<()> {
    let read = move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // Nobody listens any more after the first.
            if let Some(found) = &found
                && let Some(addresses) = parse_listening(&line)
                && found.send(addresses).is_ok()
            {
                continue;
            }
            let mut tail = tail.lock();
            if tail.len() == LINES_KEPT {
                tail.pop_front();
            }
            tail.push_back(line);
        }
    };
    std::thread::Builder::new().name("bench-output".to_owned()).spawn(read)?;
    Ok(())
}

fn await_addresses(receiver: &Receiver<Addresses>) -> anyhow::Result<Addresses> {
    receiver.recv_timeout(START_PATIENCE).map_err(|error| match error {
        RecvTimeoutError::Timeout => anyhow!("the server does not say where it listens"),
        RecvTimeoutError::Disconnected => anyhow!("the server ended before it listened"),
    })
}

/// Finds `listening public=HOST:PORT internal=HOST:PORT` in a line. A role that does not sell has
/// no public listener: port 0 answers nobody.
fn parse_listening(line: &str) -> Option<Addresses> {
    let (_, fields) = line.split_once("listening")?;
    let value = |name: &str| {
        let (_, rest) = fields.split_once(name)?;
        let address: String = rest.chars().take_while(|c| !c.is_whitespace()).collect();
        address.parse().ok()
    };
    match (value("public="), value("internal=")) {
        (None, None) => None,
        (public, internal) => {
            Some((public.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0))), internal))
        }
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
