//! A private RabbitMQ: a node and a port mapper (epmd) on free ports, in a temporary directory.
//! Both end with the bench.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::process::{Process, scratch};
use crate::servers::{MissingProgram, free_port, start};

/// Paths of the server program; the wrapper on the `PATH` changes the user.
const PROGRAMS: [&str; 3] = [
    "/usr/lib/rabbitmq/bin/rabbitmq-server",
    "/usr/local/lib/rabbitmq/bin/rabbitmq-server",
    "/opt/rabbitmq/sbin/rabbitmq-server",
];
/// Node names need not be unique: each node has its own port mapper.
const NODE: &str = "floodgate@localhost";
/// Schedulers without busy waiting: spinning would take CPU time from the measured processes.
const RUNTIME: &str = "+sbwt none +sbwtdcpu none +sbwtdio none \
                       -kernel inet_dist_use_interface {127,0,0,1}";
const SETTINGS: &str = "\
loopback_users = none
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 50MB
log.console = false
";

/// A RabbitMQ node.
#[derive(Debug)]
pub(crate) struct RabbitServer {
    /// `None` after [`Self::kill`].
    node: Option<Process>,
    _mapper: Process,
    // Dropped last: the directory is removed after both processes have ended.
    scratch: TempDir,
    /// Arguments of `env`: the environment, then the program.
    arguments: Vec<String>,
    port: u16,
}

impl RabbitServer {
    /// Starts an empty node with default settings.
    pub(crate) async fn start(parent: Option<&Path>) -> anyhow::Result<Self> {
        let program = PROGRAMS.into_iter().find(|program| Path::new(program).is_file());
        let missing = MissingProgram { program: "rabbitmq-server", package: "rabbitmq-server" };
        let program = program.ok_or(missing)?;
        let scratch = scratch(parent)?;
        let file = |name: &str| scratch.path().join(name);
        fs::create_dir(file("home"))?;
        let cookie = file("home/.erlang.cookie");
        fs::write(&cookie, format!("{:032x}", fastrand::u128(..)))?;
        fs::set_permissions(&cookie, Permissions::from_mode(0o400))?;
        fs::write(file("plugins"), "[].")?;
        fs::write(file("rabbitmq.conf"), SETTINGS)?;
        let mapper_port = free_port()?;
        let address = ["-address", "127.0.0.1", "-port", &mapper_port.to_string()];
        let mut mapper = start("epmd", &address.map(str::to_owned), &file("home"))?;
        let mapper_address = (Ipv4Addr::LOCALHOST, mapper_port);
        mapper.until(async |_: &str| TcpStream::connect(mapper_address).ok()).await?;
        let (port, node_port) = (free_port()?, free_port()?);
        let mut arguments = vec!["-i".to_owned()];
        let environment = environment(scratch.path(), [mapper_port, port, node_port]);
        arguments.extend(environment.map(|(name, value)| format!("{name}={value}")));
        arguments.push(program.to_owned());
        let mut server = Self { node: None, _mapper: mapper, scratch, arguments, port };
        server.launch().await?;
        Ok(server)
    }

    /// Starts the node on its existing data.
    pub(crate) async fn launch(&mut self) -> anyhow::Result<()> {
        // The log of an earlier start also contains the line that the poll below waits for.
        drop(fs::remove_dir_all(self.scratch.path().join("log")));
        let mut node = start("env", &self.arguments, self.scratch.path())?;
        let log = self.scratch.path().join(format!("log/{NODE}.log"));
        let is_up = |log: &String| log.contains("Server startup complete");
        node.until(async |_: &str| fs::read_to_string(&log).ok().filter(is_up)).await?;
        self.node = Some(node);
        Ok(())
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.node = None;
    }

    /// The process id; 0 after [`Self::kill`].
    pub(crate) fn pid(&self) -> u32 {
        self.node.as_ref().map_or(0, Process::id)
    }

    /// The URL of the virtual host `/`.
    pub(crate) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }
}

fn environment(folder: &Path, ports: [u16; 3]) -> [(&'static str, String); 16] {
    let file = |name: &str| folder.join(name).display().to_string();
    let [mapper, broker, node] = ports.map(|port| port.to_string());
    [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOME", file("home")),
        ("TMPDIR", file("tmp")),
        ("ERL_EPMD_PORT", mapper),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_NODENAME", NODE.to_owned()),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_NODE_PORT", broker),
        ("RABBITMQ_DIST_PORT", node),
        ("RABBITMQ_MNESIA_BASE", file("data")),
        ("RABBITMQ_LOG_BASE", file("log")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins")),
        ("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf")),
        ("RABBITMQ_CONF_ENV_FILE", file("none")),
        // The start script execs the node instead of waiting for it.
        ("RUNNING_UNDER_SYSTEMD", "1".to_owned()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", RUNTIME.to_owned()),
    ]
}
