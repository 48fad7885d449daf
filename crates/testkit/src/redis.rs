//! redis-server and redis-sentinel.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::data::folder;
use crate::port::Port;
use crate::server::{Launch, PrivateServer, find_program};

/// Either of the two programs, which are the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Sentinel,
}

/// Starts an empty server without persistence, with further lines of its configuration; the last
/// line of a directive applies. Its folder is created in `parent`.
pub fn start(role: Role, parent: &Path, lines: &[&str]) -> Result<PrivateServer> {
    let (program, package, ready, first) = match role {
        Role::Server => {
            ("redis-server", "redis-server", "Ready to accept connections", "save \"\"")
        }
        Role::Sentinel => ("redis-sentinel", "redis-sentinel", "Sentinel ID is", ""),
    };
    let (program, _) = find_program(program, package)?;
    let (folder, port) = (folder(parent)?, Port::claim()?);
    let file = |name: &str| folder.path().join(name);
    let location = format!(
        "bind 127.0.0.1\ndaemonize no\nport {}\ndir {}\nlogfile {}\n{first}\n",
        port.number(),
        folder.path().display(),
        file("log").display()
    );
    let configuration = file("redis.conf");
    fs::write(&configuration, location + &lines.join("\n"))?;
    let launch = Launch {
        program,
        arguments: vec![configuration.display().to_string()],
        environment: Vec::new(),
        log: "log".into(),
        ready,
    };
    PrivateServer::start(folder, launch, port, (Vec::new(), None))
}
