//! A RabbitMQ of the bench's own: a node and a port mapper on free ports, in a folder of their own,
//! gone with the bench.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::private::{Missing, free_port, start};
use crate::process::{Process, scratch};

/// Where the package keeps its own program: the one on the path changes user.
const PROGRAMS: [&str; 3] = [
    "/usr/lib/rabbitmq/bin/rabbitmq-server",
    "/usr/local/lib/rabbitmq/bin/rabbitmq-server",
    "/opt/rabbitmq/sbin/rabbitmq-server",
];
/// The same for every node: each has a port mapper of its own.
const NODE: &str = "floodgate@localhost";
/// For both sides of a comparison: a scheduler that waits in vain takes the time of others.
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
    /// `None`: it is down.
    node: Option<Process>,
    _mapper: Process,
    // Removed after both have ended.
    scratch: TempDir,
    /// The program and its environment, as `env` takes them.
    words: Vec<String>,
    port: u16,
}

impl RabbitServer {
    /// An empty one with its defaults.
    pub(crate) async fn start(parent: Option<&Path>) -> anyhow::Result<Self> {
        let program = PROGRAMS.into_iter().find(|program| Path::new(program).is_file());
        let missing = Missing { program: "rabbitmq-server", package: "rabbitmq-server" };
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
        let words = ["-address", "127.0.0.1", "-port", &mapper_port.to_string()];
        let mut mapper = start("epmd", &words.map(str::to_owned), &file("home"))?;
        let mapped = (Ipv4Addr::LOCALHOST, mapper_port);
        mapper.until(async |_: &str| TcpStream::connect(mapped).ok()).await?;
        let (port, node_port) = (free_port()?, free_port()?);
        let mut words = vec!["-i".to_owned()];
        let environment = environment(scratch.path(), [mapper_port, port, node_port]);
        words.extend(environment.map(|(name, value)| format!("{name}={value}")));
        words.push(program.to_owned());
        let mut server = Self { node: None, _mapper: mapper, scratch, words, port };
        server.up().await?;
        Ok(server)
    }

    /// Starts it on the data that it has.
    pub(crate) async fn up(&mut self) -> anyhow::Result<()> {
        // What the node before wrote does not say that this one is ready.
        drop(fs::remove_dir_all(self.scratch.path().join("log")));
        let mut node = start("env", &self.words, self.scratch.path())?;
        let log = self.scratch.path().join(format!("log/{NODE}.log"));
        let is_up = |said: &String| said.contains("Server startup complete");
        node.until(async |_: &str| fs::read_to_string(&log).ok().filter(is_up)).await?;
        self.node = Some(node);
        Ok(())
    }

    /// `kill -9`.
    pub(crate) fn down(&mut self) {
        self.node = None;
    }

    /// 0 while it is down.
    pub(crate) fn pid(&self) -> u32 {
        self.node.as_ref().map_or(0, Process::id)
    }

    /// The address of its virtual host `/`.
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
        // The script becomes the node, instead of waiting for it.
        ("RUNNING_UNDER_SYSTEMD", "1".to_owned()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", RUNTIME.to_owned()),
    ]
}
