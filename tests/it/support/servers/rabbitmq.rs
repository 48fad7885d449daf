//! A private RabbitMQ: a node and `epmd` as child processes on free ports of 127.0.0.1, on a copy
//! of a data folder that is created once. Starts in 5 s and takes 100 MB: few tests start one, and
//! each of those checks many things.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use floodgate::broker::{RabbitOptions, Topology};
use lapin::options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use parking_lot::Mutex;
use rustix::process::Signal;
use tempfile::TempDir;

use super::child::{Process, temporary};
use super::ports::Port;
use crate::support::wait::{until_true, until_true_within};

/// The same name for every node: each has its own `epmd`, and the data folder contains the name.
const NODE: &str = "floodgate@localhost";
const BOOT_MAX: Duration = Duration::from_secs(120);

const SETTINGS: &str = "\
loopback_users = none
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 50MB
log.console = false
log.file.level = info
";

/// Unconfirmed dead letters are retried after 500 ms instead of three minutes.
const ADVANCED: &str = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 500}]}].\n";

/// The resource that the broker is short of.
#[derive(Debug, Clone, Copy)]
pub enum Alarm {
    Memory,
    Disk,
}

/// A running node. Ports and data outlive its process.
pub struct RabbitMq {
    folder: TempDir,
    port: Port,
    node_port: Port,
    epmd_port: Port,
    /// `None`: killed.
    process: Mutex<Option<Process>>,
    /// Maps the node's name to its port, for `rabbitmqctl`.
    _epmd: Process,
}

impl RabbitMq {
    /// Starts an empty broker.
    pub fn start() -> Self {
        let server = Self::prepare();
        let copy = Command::new("cp").arg("-a").arg(empty_data()).arg(server.file("data")).status();
        assert!(copy.unwrap().success(), "cannot copy an empty data folder");
        server.restart();
        server
    }

    fn prepare() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::create_dir(file("home")).unwrap();
        let cookie = file("home/.erlang.cookie");
        fs::write(&cookie, "floodgate").unwrap();
        fs::set_permissions(&cookie, fs::Permissions::from_mode(0o400)).unwrap();
        fs::write(file("plugins"), "[].").unwrap();
        fs::write(file("rabbitmq.conf"), SETTINGS).unwrap();
        fs::write(file("advanced.config"), ADVANCED).unwrap();
        let [port, node_port, epmd_port] = [(); 3].map(|()| Port::claim());
        let number = epmd_port.number().to_string();
        let arguments = ["-address", "127.0.0.1", "-port", &number];
        let epmd = Process::spawn("epmd", &arguments, folder.path());
        until_true("epmd", || std::net::TcpStream::connect(epmd_port.addr()).is_ok());
        let process = Mutex::new(None);
        Self { folder, port, node_port, epmd_port, process, _epmd: epmd }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The arguments of `env` that precede the program.
    fn environment(&self) -> Vec<String> {
        let file = |name: &str| self.file(name).display().to_string();
        let erl_arguments = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none \
                     -kernel inet_dist_use_interface {127,0,0,1}";
        let variables = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", file("home")),
            ("TMPDIR", temporary(self.folder.path()).display().to_string()),
            ("ERL_EPMD_PORT", self.epmd_port.number().to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODENAME", NODE.to_owned()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODE_PORT", self.port.number().to_string()),
            ("RABBITMQ_DIST_PORT", self.node_port.number().to_string()),
            ("RABBITMQ_MNESIA_BASE", file("data")),
            ("RABBITMQ_LOG_BASE", file("log")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins")),
            ("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", file("advanced.config")),
            ("RABBITMQ_CONF_ENV_FILE", file("none")),
            // The script replaces itself by the node instead of waiting for it.
            ("RUNNING_UNDER_SYSTEMD", "1".to_owned()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", erl_arguments.to_owned()),
        ];
        let mut arguments = vec!["-i".to_owned()];
        arguments.extend(variables.map(|(name, value)| format!("{name}={value}")));
        arguments
    }

    /// Starts or restarts the node on its ports and data, and waits until it accepts connections.
    pub fn restart(&self) {
        self.kill();
        drop(fs::remove_dir_all(self.file("log")));
        let mut arguments = self.environment();
        arguments.push(program("rabbitmq-server"));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut process = Process::spawn("env", &arguments, self.folder.path());
        until_true_within(BOOT_MAX, "RabbitMQ to take connections", || {
            assert!(process.is_running(), "RabbitMQ ended: {}", self.log());
            self.log().contains("Server startup complete")
        });
        *self.process.lock() = Some(process);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file(&format!("log/{NODE}.log"))).unwrap_or_default()
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The URL of its virtual host `/`.
    pub fn url(&self) -> String {
        Self::url_by(self.addr())
    }

    /// [`Self::url`] through another address that forwards to the node.
    pub fn url_by(address: SocketAddr) -> String {
        format!("amqp://guest:guest@{address}/%2f")
    }

    /// Options of a client with short reconnect delays.
    pub fn options(&self, topology: Topology) -> RabbitOptions {
        let mut options = RabbitOptions::new(&self.url(), topology).unwrap();
        options.connect_timeout = Duration::from_secs(20);
        options.reconnect_min = Duration::from_millis(5);
        options.reconnect_max = Duration::from_millis(50);
        options
    }

    /// `kill -9`.
    pub fn kill(&self) {
        drop(self.process.lock().take());
    }

    /// `SIGSTOP`: connections stay open without answers.
    pub fn stop(&self) {
        self.process.lock().as_ref().expect("a running node").signal(Signal::STOP);
    }

    /// `SIGCONT`: resumes a stopped node.
    pub fn cont(&self) {
        self.process.lock().as_ref().expect("a running node").signal(Signal::CONT);
    }

    /// The output of `rabbitmqctl` with these arguments.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("env");
        command.args(self.environment()).arg(program("rabbitmqctl"));
        let output = command.args(["-q", "-n", NODE]).args(arguments).output().unwrap();
        let [out, err] = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "rabbitmqctl {arguments:?}: {out}{err}");
        out
    }

    /// Persists the directory of queues. The node does so by itself a second after a declare; a
    /// kill before that loses the queue.
    pub fn settle(&self) {
        assert_eq!(self.ctl(&["eval", "dets:sync(ra_directory_reverse)."]).trim(), "ok");
    }

    /// Raises or clears an alarm. The broker blocks publishers during an alarm.
    pub fn alarm(&self, alarm: Alarm, is_on: bool) {
        let (limit, name) = match (alarm, is_on) {
            (Alarm::Memory, true) => (["set_vm_memory_high_watermark", "0.0000001"], "memory"),
            (Alarm::Memory, false) => (["set_vm_memory_high_watermark", "0.6"], "memory"),
            (Alarm::Disk, true) => (["set_disk_free_limit", "1000000GB"], "disk"),
            (Alarm::Disk, false) => (["set_disk_free_limit", "50MB"], "disk"),
        };
        self.ctl(&limit);
        until_true("the alarm", || {
            self.ctl(&["eval", "rabbit_alarm:get_alarms()."]).contains(name) == is_on
        });
    }

    /// Runs a job on a new connection, without client-side limits.
    pub fn with_channel<T: Send>(&self, job: impl AsyncFnOnce(&Channel) -> T + Send) -> T {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                let runtime = builder.enable_all().build().unwrap();
                runtime.block_on(async {
                    let properties = ConnectionProperties::default();
                    let connection = Connection::connect(&self.url(), properties).await.unwrap();
                    let channel = connection.create_channel().await.unwrap();
                    let result = job(&channel).await;
                    connection.close(200, "done".into()).await.unwrap();
                    result
                })
            });
            worker.join().unwrap()
        })
    }

    /// Deletes a queue with its messages.
    pub fn delete_queue(&self, name: &str) {
        self.with_channel(async |channel| {
            channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
        });
    }

    /// Deletes an exchange with its bindings.
    pub fn delete_exchange(&self, name: &str) {
        self.with_channel(async |channel| {
            channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await.unwrap();
        });
    }

    /// Number of ready messages in a queue; `None` without such a queue.
    pub fn num_ready(&self, name: &str) -> Option<u32> {
        self.with_channel(async |channel| {
            let options = QueueDeclareOptions::durable().passive();
            let declared = channel.queue_declare(name.into(), options, FieldTable::default()).await;
            declared.ok().map(|queue| queue.message_count())
        })
    }
}

/// The path of a program in the package: the wrappers on `PATH` change the user.
fn program(name: &str) -> String {
    static FILES: LazyLock<String> = LazyLock::new(|| {
        let output = Command::new("dpkg").args(["-L", "rabbitmq-server"]).output();
        let output = output.expect("dpkg is missing: where is rabbitmq-server?");
        assert!(output.status.success(), "rabbitmq-server is missing: scripts/test-deps.sh");
        String::from_utf8(output.stdout).unwrap()
    });
    let end = format!("/lib/rabbitmq/bin/{name}");
    let file = FILES.lines().find(|file| file.ends_with(&end));
    file.unwrap_or_else(|| panic!("the package rabbitmq-server has no {end}")).to_owned()
}

/// The data folder of a node that was started once, created by the first test that needs it.
fn empty_data() -> PathBuf {
    let version = Command::new("dpkg-query")
        .args(["-W", "-f", "rabbitmq-${Version}", "rabbitmq-server"])
        .output();
    let version = String::from_utf8(version.unwrap().stdout).unwrap();
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join(version.replace('/', "-"));
    let lock = File::create(data.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !data.exists() {
        let server = RabbitMq::prepare();
        server.restart();
        server.ctl(&["stop_app"]);
        server.kill();
        let fresh = data.with_extension("fresh");
        drop(fs::remove_dir_all(&fresh));
        let copy = Command::new("cp").arg("-a").arg(server.file("data")).arg(&fresh).status();
        assert!(copy.unwrap().success(), "cannot store the empty data folder");
        fs::rename(&fresh, &data).unwrap();
    }
    data
}
