//! A RabbitMQ: a node and `epmd`, on a copy of the data folder of an empty node. Starts in 5 s and
//! takes 100 MB.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use tempfile::TempDir;

use crate::data::{copy, copy_empty, folder, run};
use crate::port::Port;
use crate::process::{Process, command, wait};
use crate::server::{Launch, MissingProgram, Server};

/// Where the package may have its programs; the wrappers on the `PATH` change the user.
const FOLDERS: [&str; 3] =
    ["/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin", "/opt/rabbitmq/sbin"];
/// The same name for every node: each has its own `epmd`, and the data folder contains the name.
const NODE: &str = "floodgate@localhost";
/// Schedulers without busy waiting: spinning would take CPU time from the other processes.
const RUNTIME: &str = "+sbwt none +sbwtdcpu none +sbwtdio none \
                       -kernel inet_dist_use_interface {127,0,0,1}";
const SETTINGS: &str = "\
loopback_users = none
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 50MB
log.console = false
log.file.level = info
";

/// Starts an empty broker; `runtime` are further arguments of the Erlang runtime, `advanced` is the
/// advanced configuration. Its folder is created in `parent`; empty data is kept in `cache`.
pub fn start(parent: &Path, cache: &Path, runtime: &str, advanced: &str) -> anyhow::Result<Server> {
    let program = program("rabbitmq-server")?;
    let runtime = format!("{runtime} {RUNTIME}");
    let start_in = |folder| start_in(folder, &program, &runtime, advanced);
    let create = |fresh: &Path| {
        let server = start_in(folder(parent)?)?;
        ctl(&server, &["stop_app"])?;
        server.kill();
        copy(&server.folder().join("data"), fresh)
    };
    // The folder of the package has the version in its name.
    let version = fs::canonicalize(&program)?.display().to_string();
    let folder = folder(parent)?;
    copy_empty(cache, &version, create, &folder.path().join("data"))?;
    start_in(folder)
}

fn start_in(
    folder: TempDir,
    program: &str,
    runtime: &str,
    advanced: &str,
) -> anyhow::Result<Server> {
    let file = |name: &str| folder.path().join(name);
    fs::create_dir(file("home"))?;
    let cookie = file("home/.erlang.cookie");
    fs::write(&cookie, format!("{:032x}", fastrand::u128(..)))?;
    fs::set_permissions(&cookie, Permissions::from_mode(0o400))?;
    fs::write(file("plugins"), "[].")?;
    fs::write(file("rabbitmq.conf"), SETTINGS)?;
    fs::write(file("advanced.config"), advanced)?;
    let (port, node, mapper) = (Port::claim()?, Port::claim()?, Port::claim()?);
    let mut epmd = command("epmd");
    epmd.args(["-address", "127.0.0.1", "-port", &mapper.number().to_string()]);
    let epmd = Process::spawn(epmd, folder.path())?;
    let is_up = wait(|| Ok(TcpStream::connect(mapper.addr()).is_ok()))?;
    ensure!(is_up, "epmd does not start: {}", epmd.output());
    let launch = Launch {
        program: program.to_owned(),
        arguments: Vec::new(),
        environment: environment(folder.path(), [&port, &node, &mapper], runtime),
        log: format!("log/{NODE}.log").into(),
        ready: "Server startup complete",
    };
    Server::start(folder, launch, port, (vec![node, mapper], Some(epmd)))
}

fn environment(folder: &Path, ports: [&Port; 3], runtime: &str) -> Vec<(&'static str, String)> {
    let file = |name: &str| folder.join(name).display().to_string();
    let [broker, node, mapper] = ports.map(|port| port.number().to_string());
    vec![
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
        ("RABBITMQ_ADVANCED_CONFIG_FILE", file("advanced.config")),
        ("RABBITMQ_CONF_ENV_FILE", file("none")),
        // The script replaces itself by the node instead of waiting for it.
        ("RUNNING_UNDER_SYSTEMD", "1".to_owned()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", runtime.to_owned()),
    ]
}

/// The URL of the virtual host `/`.
pub fn url(address: SocketAddr) -> String {
    format!("amqp://guest:guest@{address}/%2f")
}

/// The output of `rabbitmqctl` with these arguments.
pub fn ctl(server: &Server, arguments: &[&str]) -> anyhow::Result<String> {
    let arguments: Vec<String> =
        ["-q", "-n", NODE].iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    run(&mut server.command(Command::new(program("rabbitmqctl")?), &arguments))
}

fn program(name: &str) -> anyhow::Result<String> {
    let found = FOLDERS.iter().map(|folder| format!("{folder}/{name}"));
    let found = found.into_iter().find(|program| Path::new(program).is_file());
    let missing = MissingProgram { program: "rabbitmq-server", package: "rabbitmq-server" };
    Ok(found.ok_or(missing)?)
}
