//! A private redis-server.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Client, RedisResult, Value};
use rustix::process::Signal;
use tempfile::TempDir;

use super::child::Process;
use super::ports::Port;
use super::redis_users::User;
use crate::support::wait;

/// Every accepted write is in the file at most a second later.
pub const AOF_EVERYSEC: &[&str] = &["appendonly yes", "appendfsync everysec"];
/// Every accepted write is on the disk before its answer.
pub const AOF_ALWAYS: &[&str] = &["appendonly yes", "appendfsync always"];

/// What every server is started with. The last of two lines about the same wins.
const BASE: &[&str] = &[
    "save \"\"",
    "appendonly no",
    "enable-debug-command yes",
    "repl-diskless-sync-delay 0",
    "repl-ping-replica-period 1",
];

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// One redis-server (or redis-sentinel, which is the same program): its port and folder outlive its
/// process.
pub struct Redis {
    program: &'static str,
    port: Port,
    folder: TempDir,
    password: Option<String>,
    process: Mutex<Option<Process>>,
}

impl Redis {
    /// An empty server that keeps nothing on disk.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with further lines of `redis.conf`.
    pub fn start_with(lines: &[&str]) -> Self {
        let users = [User::Gate, User::Pipeline].map(User::line);
        let users = users.iter().map(String::as_str);
        let lines: Vec<_> = BASE.iter().chain(lines).copied().chain(users).collect();
        Self::start_program("redis-server", &lines)
    }

    /// A server of either kind, with nothing but these lines.
    pub(super) fn start_program(program: &'static str, lines: &[&str]) -> Self {
        let port = Port::claim();
        let folder = tempfile::tempdir().unwrap();
        let place = [
            "bind 127.0.0.1".to_owned(),
            "daemonize no".to_owned(),
            format!("port {}", port.number()),
            format!("dir {}", folder.path().display()),
            format!("logfile {}", folder.path().join("log").display()),
        ];
        let all: Vec<_> = place.iter().map(String::as_str).chain(lines.iter().copied()).collect();
        let password = lines.iter().find_map(|line| line.strip_prefix("requirepass "));
        std::fs::write(folder.path().join("redis.conf"), all.join("\n")).unwrap();
        let password = password.map(str::to_owned);
        let server = Self { program, port, folder, password, process: Mutex::new(None) };
        server.restart();
        server
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// `redis://127.0.0.1:port`, with the password if there is one.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@{}", self.addr()),
            None => format!("redis://{}", self.addr()),
        }
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    /// `kill -9`.
    pub fn kill(&self) {
        drop(self.process.lock().take());
    }

    /// Freezes it: connections are accepted by the kernel, nothing is answered.
    pub fn stop(&self) {
        self.process.lock().as_ref().expect("it runs").signal(Signal::STOP);
    }

    /// Lets a frozen server go on.
    pub fn cont(&self) {
        self.process.lock().as_ref().expect("it runs").signal(Signal::CONT);
    }

    /// Starts it (again) on its port and its folder, and waits until it has read its files.
    pub fn restart(&self) {
        self.launch();
        wait::until_true(&format!("{} on {}", self.program, self.addr()), || self.answers());
    }

    /// Starts it (again) without waiting for it.
    pub fn launch(&self) {
        self.kill();
        let config = self.folder().join("redis.conf");
        let process = Process::spawn(self.program, &[config.to_str().unwrap()], self.folder());
        *self.process.lock() = Some(process);
    }

    /// Whether the process that was started, and no other, answers on the port.
    fn answers(&self) -> bool {
        let mut process = self.process.lock();
        let process = process.as_mut().expect("it was started");
        assert!(process.is_running(), "{} ended by itself:\n{}", self.program, self.log());
        let Ok(info) = self.try_cmd(&["INFO"]) else { return false };
        let loading = field(&info, "loading").is_some_and(|loading| loading != "0");
        field(&info, "process_id") == Some(process.id().to_string()) && !loading
    }

    /// One command on a connection of its own.
    pub fn try_cmd(&self, words: &[&str]) -> RedisResult<Value> {
        self.send(words)
    }

    /// The same with words that are no text.
    pub fn cmd_of_bytes(&self, words: &[&[u8]]) -> Value {
        self.send(words).unwrap()
    }

    fn send(&self, words: &[impl redis::ToRedisArgs]) -> RedisResult<Value> {
        let mut connection = Client::open(self.url())?.get_connection_with_timeout(CALL_TIMEOUT)?;
        connection.set_read_timeout(Some(CALL_TIMEOUT))?;
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut connection)
    }

    /// [`Self::try_cmd`] that must succeed.
    pub fn cmd(&self, words: &[&str]) -> Value {
        self.try_cmd(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// [`Self::cmd`] with an answer of text or number.
    pub fn text(&self, words: &[&str]) -> String {
        redis::from_redis_value(self.cmd(words)).unwrap()
    }

    /// A field of `INFO`.
    pub fn info(&self, name: &str) -> String {
        let info = self.cmd(&["INFO", "everything"]);
        field(&info, name).unwrap_or_else(|| panic!("INFO has no {name}"))
    }

    /// Which start of which server this is.
    pub fn run_id(&self) -> String {
        self.info("run_id")
    }

    /// How many clients are connected, apart from replicas and the one that asks.
    pub fn clients(&self) -> usize {
        self.text(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
    }

    /// Makes it a replica and waits until it has all that its master had.
    pub fn replica_of(&self, master: &Self) {
        let port = master.port().to_string();
        if let Some(password) = &master.password {
            self.cmd(&["CONFIG", "SET", "masterauth", password]);
        }
        self.cmd(&["REPLICAOF", "127.0.0.1", &port]);
        let what = format!("{} to copy {}", self.addr(), master.addr());
        wait::until_true(&what, || self.info("master_link_status") == "up");
        let online = format!("port={},state=online", self.port());
        wait::until_true(&what, || {
            let info = master.text(&["INFO", "replication"]);
            info.lines().any(|line| line.contains(&online))
        });
    }

    /// Makes it a master.
    pub fn replica_of_no_one(&self) {
        self.cmd(&["REPLICAOF", "NO", "ONE"]);
    }
}

/// A field of the answer of `INFO`.
fn field(info: &Value, name: &str) -> Option<String> {
    let text: String = redis::from_redis_value(info.clone()).ok()?;
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.map(|value| value.trim_end().to_owned())
}

/// A master and its replicas.
pub struct Replicated {
    pub master: Redis,
    pub replicas: Vec<Redis>,
}

impl Replicated {
    pub fn start(replicas: usize) -> Self {
        Self::of(Redis::start(), replicas)
    }

    /// Replicas of a server that runs.
    pub fn of(master: Redis, replicas: usize) -> Self {
        let replicas = (0..replicas).map(|_| Redis::start());
        let replicas: Vec<_> = replicas.inspect(|replica| replica.replica_of(&master)).collect();
        Self { master, replicas }
    }
}

mod tests {
    use super::*;

    #[test]
    fn a_server_comes_back_as_another_one_on_the_same_port() {
        let redis = Redis::start();
        redis.cmd(&["SET", "key", "value"]);
        let first = redis.run_id();
        redis.kill();
        assert!(redis.try_cmd(&["PING"]).is_err());
        redis.restart();
        assert_ne!(redis.run_id(), first);
        assert_eq!(redis.cmd(&["GET", "key"]), Value::Nil, "nothing was kept on disk");
    }

    #[test]
    fn what_is_in_the_file_survives_a_kill() {
        for aof in [AOF_EVERYSEC, AOF_ALWAYS] {
            let redis = Redis::start_with(aof);
            redis.cmd(&["SET", "key", "value"]);
            // While the disk is slow, `everysec` answers before it writes.
            wait::until_true("the write", || redis.info("aof_buffer_length") == "0");
            redis.kill();
            redis.restart();
            assert_eq!(redis.text(&["GET", "key"]), "value");
            assert_eq!(redis.info("aof_enabled"), "1");
        }
    }

    #[test]
    fn replicas_copy_their_master_until_they_are_let_go() {
        let set = Replicated::of(Redis::start_with(&["requirepass secret"]), 2);
        set.master.cmd(&["SET", "key", "value"]);
        for replica in &set.replicas {
            wait::until_true("the copy", || {
                replica.cmd(&["GET", "key"]) == Value::BulkString(b"value".to_vec())
            });
            assert!(replica.try_cmd(&["SET", "key", "other"]).is_err());
            replica.replica_of_no_one();
            replica.cmd(&["SET", "key", "other"]);
        }
        wait::until_true("nobody", || set.master.clients() == 0);
        assert_eq!(set.master.text(&["GET", "key"]), "value");
    }

    #[test]
    fn a_frozen_server_answers_when_it_goes_on() {
        let redis = Redis::start();
        redis.stop();
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| redis.text(&["PING"]));
            redis.cont();
            assert_eq!(answer.join().unwrap(), "PONG");
        });
    }

    #[test]
    fn a_server_is_gone_with_its_value() {
        let redis = Redis::start();
        let addr = redis.addr();
        redis.stop();
        drop(redis);
        assert!(std::net::TcpStream::connect(addr).is_err());
    }
}
