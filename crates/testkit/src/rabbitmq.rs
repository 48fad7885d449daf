//! A RabbitMQ: a node and `epmd`, on a copy of the data folder of an empty node. Starts in 5 s and
//! takes 100 MB.

use std::fs::{self, Permissions};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::data::{Folder, cached, copy, folder, run};
use crate::port::Port;
use crate::process::{Process, command, wait};
use crate::server::{Launch, MissingProgram, PrivateServer};

/// Where the package may have its programs; the wrappers on the `PATH` change the user.
const FOLDERS: [&str; 3] =
    ["/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin", "/opt/rabbitmq/sbin"];
/// The name of a single node, which has its own `epmd`: the data folder contains the name.
const NODE: &str = "floodgate@localhost";
/// Schedulers without busy waiting: spinning would take CPU time from the other processes.
const RUNTIME: &str = "+sbwt none +sbwtdcpu none +sbwtdio none \
                       -kernel inet_dist_use_interface {127,0,0,1}";
/// Settings of every node, as Erlang terms: `rabbitmq.conf` would have to be translated first.
const SETTINGS: &str = "{loopback_users, []}, {vm_memory_high_watermark, 0.6}, \
                        {disk_free_limit, 50000000}, \
                        {log, [{console, [{enabled, false}]}, {file, [{level, info}]}]}";

/// Starts an empty broker; `runtime` are further arguments of the Erlang runtime, `settings` are
/// further settings of `rabbit`, each an Erlang term. Its folder is created in `parent`; its home
/// and empty data are kept in `cache`.
pub fn start(
    parent: &Path,
    cache: &Path,
    runtime: &str,
    settings: &[&str],
) -> Result<PrivateServer> {
    let (program, version) = program_of_home(cache)?;
    let start_in = |folder: Folder| {
        let (mapper, epmd) = start_epmd(folder.path())?;
        let nodes = Nodes { program: &program, cookie: cookie(), mapper: mapper.number(), runtime };
        nodes.start(NODE, folder, settings, (vec![mapper], Some(epmd)))
    };
    let create = |fresh: &Path| {
        let server = start_in(folder(parent)?)?;
        ctl(&server, &["stop_app"])?;
        server.kill();
        copy(&server.folder().join("data"), fresh)
    };
    let folder = folder(parent)?;
    copy(&cached(cache, "data", &version, create)?, &folder.path().join("data"))?;
    start_in(folder)
}

/// Starts a cluster of empty nodes. The first one's folder has what they share.
pub fn start_cluster(
    parent: &Path,
    cache: &Path,
    count: usize,
    runtime: &str,
) -> Result<Vec<PrivateServer>> {
    let (program, _) = program_of_home(cache)?;
    let folders: Vec<Folder> = (0..count).map(|_| folder(parent)).collect::<Result<_>>()?;
    let (mapper, epmd) = start_epmd(folders.first().context("no node")?.path())?;
    let nodes = Nodes { program: &program, cookie: cookie(), mapper: mapper.number(), runtime };
    let (mut shared, mut servers) = ((vec![mapper], Some(epmd)), Vec::new());
    for (number, folder) in folders.into_iter().enumerate() {
        let name = format!("floodgate{number}@localhost");
        let server = nodes.start(&name, folder, &[], mem::take(&mut shared))?;
        if number > 0 {
            ctl(&server, &["stop_app"])?;
            ctl(&server, &["join_cluster", "floodgate0@localhost"])?;
            ctl(&server, &["start_app"])?;
        }
        servers.push(server);
    }
    Ok(servers)
}

/// The program of a copy of the package's home without its optional plugins, and its version.
///
/// Erlang looks for each module in every folder below `plugins`: forty that stay off cost half of
/// the CPU time of a start. A node finds its home by the real path of its script.
fn program_of_home(cache: &Path) -> Result<(String, String)> {
    let scripts = fs::canonicalize(program("rabbitmq-server")?)?;
    let package = scripts.parent().and_then(Path::parent).context("a program without a home")?;
    // The folder of the package has the version in its name.
    let version = package.display().to_string();
    let home = cached(cache, "home", &version, |home| {
        fs::create_dir_all(home.join("plugins"))?;
        copy(&package.join("sbin"), &home.join("sbin"))?;
        symlink(package.join("escript"), home.join("escript"))?;
        for plugin in fs::read_dir(package.join("plugins"))? {
            let plugin = plugin?;
            let name = plugin.file_name().display().to_string();
            let is_optional =
                name.starts_with("rabbitmq_") && !name.starts_with("rabbitmq_prelaunch");
            if !is_optional {
                symlink(plugin.path(), home.join("plugins").join(name))?;
            }
        }
        Ok(())
    })?;
    Ok((home.join("sbin/rabbitmq-server").display().to_string(), version))
}

fn cookie() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Starts the mapper from node names to ports.
fn start_epmd(folder: &Path) -> Result<(Port, Process)> {
    let mapper = Port::claim()?;
    let mut epmd = command("epmd");
    epmd.args(["-address", "127.0.0.1", "-port", &mapper.number().to_string()]);
    let epmd = Process::spawn(epmd, folder)?;
    let is_up = wait(|| Ok(TcpStream::connect(mapper.addr()).is_ok()))?;
    ensure!(is_up, "epmd does not start: {}", epmd.output());
    Ok((mapper, epmd))
}

/// What the nodes of one cluster share.
struct Nodes<'a> {
    program: &'a str,
    cookie: String,
    /// The port of `epmd`.
    mapper: u16,
    runtime: &'a str,
}

impl Nodes<'_> {
    /// Starts a node; `shared` lives as long as its server.
    fn start(
        &self,
        name: &str,
        folder: Folder,
        settings: &[&str],
        shared: (Vec<Port>, Option<Process>),
    ) -> Result<PrivateServer> {
        let file = |name: &str| folder.path().join(name);
        fs::create_dir(file("home"))?;
        let cookie = file("home/.erlang.cookie");
        fs::write(&cookie, &self.cookie)?;
        fs::set_permissions(&cookie, Permissions::from_mode(0o400))?;
        fs::write(file("plugins"), "[].")?;
        let settings = [&[SETTINGS], settings].concat().join(", ");
        fs::write(file("advanced.config"), format!("[{{rabbit, [{settings}]}}].\n"))?;
        let (port, distribution) = (Port::claim()?, Port::claim()?);
        let text = |name: &str| file(name).display().to_string();
        let environment = vec![
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", text("home")),
            ("TMPDIR", text("tmp")),
            ("ERL_EPMD_PORT", self.mapper.to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODENAME", name.to_owned()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODE_PORT", port.number().to_string()),
            ("RABBITMQ_DIST_PORT", distribution.number().to_string()),
            ("RABBITMQ_MNESIA_BASE", text("data")),
            ("RABBITMQ_LOG_BASE", text("log")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", text("plugins")),
            ("RABBITMQ_CONFIG_FILE", text("none")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", text("advanced.config")),
            ("RABBITMQ_CONF_ENV_FILE", text("none")),
            // The script replaces itself by the node instead of waiting for it.
            ("RUNNING_UNDER_SYSTEMD", "1".to_owned()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", format!("{} {RUNTIME}", self.runtime)),
        ];
        let launch = Launch {
            program: self.program.to_owned(),
            arguments: Vec::new(),
            environment,
            log: format!("log/{name}.log").into(),
            ready: "Server startup complete",
        };
        let (mut ports, epmd) = shared;
        ports.push(distribution);
        PrivateServer::start(folder, launch, port, (ports, epmd))
    }
}

/// The URL of the virtual host `/`.
pub fn url(address: SocketAddr) -> String {
    format!("amqp://guest:guest@{address}/%2f")
}

/// The output of `rabbitmqctl` with these arguments.
pub fn ctl(server: &PrivateServer, arguments: &[&str]) -> Result<String> {
    // The node's name is in the environment.
    let arguments: Vec<String> =
        ["-q"].iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    run(&mut server.command(Command::new(program("rabbitmqctl")?), &arguments))
}

fn program(name: &str) -> Result<String> {
    let found = FOLDERS.iter().map(|folder| format!("{folder}/{name}"));
    let found = found.into_iter().find(|program| Path::new(program).is_file());
    let missing = MissingProgram { program: "rabbitmq-server", package: "rabbitmq-server" };
    Ok(found.ok_or(missing)?)
}
