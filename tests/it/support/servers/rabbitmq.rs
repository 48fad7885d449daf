//! A RabbitMQ of its own: a node and a port mapper as child processes, on free ports of 127.0.0.1,
//! on a copy of a data folder that was made once. It is ready in five seconds and takes 100 MB:
//! few tests start one, and each asks it many things.

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

/// The same for every node: each has a port mapper of its own, and data that others can copy.
const NODE: &str = "floodgate@localhost";
const BOOT_MAX: Duration = Duration::from_secs(120);

const SETTINGS: &str = "\
loopback_users = none
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 50MB
log.console = false
log.file.level = info
";

/// Dead letters that found no place are tried again soon, instead of after three minutes.
const ADVANCED: &str = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 500}]}].\n";

/// What a broker may be short of.
#[derive(Debug, Clone, Copy)]
pub enum Alarm {
    Memory,
    Disk,
}

/// A running node. Port and data outlive its process.
pub struct RabbitMq {
    folder: TempDir,
    port: Port,
    node_port: Port,
    mapper_port: Port,
    /// `None`: killed.
    process: Mutex<Option<Process>>,
    /// Maps the node's name to its port, for `rabbitmqctl`.
    _mapper: Process,
}

impl RabbitMq {
    /// An empty broker.
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
        let [port, node_port, mapper_port] = [(); 3].map(|()| Port::claim());
        let number = mapper_port.number().to_string();
        let words = ["-address", "127.0.0.1", "-port", &number];
        let mapper = Process::spawn("epmd", &words, folder.path());
        until_true("the port mapper", || std::net::TcpStream::connect(mapper_port.addr()).is_ok());
        let process = Mutex::new(None);
        Self { folder, port, node_port, mapper_port, process, _mapper: mapper }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `env` and its arguments, up to the program.
    fn environment(&self) -> Vec<String> {
        let file = |name: &str| self.file(name).display().to_string();
        let quiet = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none \
                     -kernel inet_dist_use_interface {127,0,0,1}";
        let variables = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", file("home")),
            ("TMPDIR", temporary(self.folder.path()).display().to_string()),
            ("ERL_EPMD_PORT", self.mapper_port.number().to_string()),
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
            // The script becomes the node, instead of waiting for it.
            ("RUNNING_UNDER_SYSTEMD", "1".to_owned()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", quiet.to_owned()),
        ];
        let mut words = vec!["-i".to_owned()];
        words.extend(variables.map(|(name, value)| format!("{name}={value}")));
        words
    }

    /// Starts it (again) on its ports and its data, and waits until it takes connections.
    pub fn restart(&self) {
        self.kill();
        drop(fs::remove_dir_all(self.file("log")));
        let mut words = self.environment();
        words.push(program("rabbitmq-server"));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut process = Process::spawn("env", &words, self.folder.path());
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

    /// The address of its virtual host `/`.
    pub fn url(&self) -> String {
        Self::url_by(self.addr())
    }

    /// The same by way of another address, which forwards to its own.
    pub fn url_by(address: SocketAddr) -> String {
        format!("amqp://guest:guest@{address}/%2f")
    }

    /// How to reach it, with short waits.
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

    /// Freezes it; connections stay open and silent.
    pub fn stop(&self) {
        self.process.lock().as_ref().expect("it runs").signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn cont(&self) {
        self.process.lock().as_ref().expect("it runs").signal(Signal::CONT);
    }

    /// `rabbitmqctl`, as its administrator.
    pub fn ctl(&self, words: &[&str]) -> String {
        let mut command = Command::new("env");
        command.args(self.environment()).arg(program("rabbitmqctl"));
        let output = command.args(["-q", "-n", NODE]).args(words).output().unwrap();
        let [out, err] = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "rabbitmqctl {words:?}: {out}{err}");
        out
    }

    /// Writes down where new queues are. By itself it does so a second later, and loses those that
    /// it has not written down when it is killed.
    pub fn settle(&self) {
        assert_eq!(self.ctl(&["eval", "dets:sync(ra_directory_reverse)."]).trim(), "ok");
    }

    /// Raises or ends an alarm: while it lasts, whoever publishes is blocked.
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

    /// Works on a connection of its own, with a client that has no limits.
    pub fn with_channel<T: Send>(&self, job: impl AsyncFnOnce(&Channel) -> T + Send) -> T {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
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
            asked.join().unwrap()
        })
    }

    /// Deletes a queue with all that is in it.
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

    /// Messages that wait in a queue; `None` if there is no such queue.
    pub fn num_ready(&self, name: &str) -> Option<u32> {
        self.with_channel(async |channel| {
            let options = QueueDeclareOptions::durable().passive();
            let seen = channel.queue_declare(name.into(), options, FieldTable::default()).await;
            seen.ok().map(|queue| queue.message_count())
        })
    }
}

/// A program of the package itself: those on the path change user.
fn program(name: &str) -> String {
    static FILES: LazyLock<String> = LazyLock::new(|| {
        let listed = Command::new("dpkg").args(["-L", "rabbitmq-server"]).output();
        let listed = listed.expect("dpkg is missing: where is rabbitmq-server?");
        assert!(listed.status.success(), "rabbitmq-server is missing: scripts/test-deps.sh");
        String::from_utf8(listed.stdout).unwrap()
    });
    let end = format!("/lib/rabbitmq/bin/{name}");
    let file = FILES.lines().find(|file| file.ends_with(&end));
    file.unwrap_or_else(|| panic!("the package rabbitmq-server has no {end}")).to_owned()
}

/// The data of a node that was started once, made by whoever needs it first.
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
        assert!(copy.unwrap().success(), "cannot keep an empty data folder");
        fs::rename(&fresh, &data).unwrap();
    }
    data
}
