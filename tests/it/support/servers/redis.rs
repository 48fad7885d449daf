//! A private redis-server.

use std::ops::Deref;
use std::time::Duration;

use redis::{Client, RedisResult, Value};
use testkit::redis::Role;

use super::Server;
use super::redis_users::User;
use crate::support::wait;

/// Every write is in the file at most a second later.
pub const AOF_EVERYSEC: &[&str] = &["appendonly yes", "appendfsync everysec"];
/// Every write is on disk before its answer.
pub const AOF_ALWAYS: &[&str] = &["appendonly yes", "appendfsync always"];

/// Lines of every server's `redis.conf`. The last line of a directive applies.
const BASE: &[&str] = &[
    "appendonly no",
    "enable-debug-command yes",
    "repl-diskless-sync-delay 0",
    "repl-ping-replica-period 1",
];

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// One redis-server or redis-sentinel.
pub struct Redis {
    server: Server,
    password: Option<String>,
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Redis {
    /// Starts an empty server without persistence.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further lines of `redis.conf`.
    pub fn start_with(lines: &[&str]) -> Self {
        let users = [User::Gate, User::Pipeline].map(User::line);
        let users = users.iter().map(String::as_str);
        let lines: Vec<_> = BASE.iter().chain(lines).copied().chain(users).collect();
        Self::start_as(Role::Server, &lines)
    }

    /// Starts a sentinel with these lines.
    pub fn sentinel(lines: &[&str]) -> Self {
        Self::start_as(Role::Sentinel, lines)
    }

    /// Starts either program with only these lines, plus address and folder.
    pub(super) fn start_as(role: Role, lines: &[&str]) -> Self {
        let password = lines.iter().find_map(|line| line.strip_prefix("requirepass "));
        let server = testkit::redis::start(role, &std::env::temp_dir(), lines);
        Self { server: Server::of(server), password: password.map(str::to_owned) }
    }

    /// `redis://127.0.0.1:port`, with the password if there is one.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@{}", self.addr()),
            None => format!("redis://{}", self.addr()),
        }
    }

    /// Runs one command on a new connection.
    pub fn try_cmd(&self, arguments: &[&str]) -> RedisResult<Value> {
        self.send(arguments)
    }

    /// [`Self::cmd`] with binary arguments.
    pub fn cmd_of_bytes(&self, arguments: &[&[u8]]) -> Value {
        self.send(arguments).unwrap()
    }

    fn send(&self, arguments: &[impl redis::ToRedisArgs]) -> RedisResult<Value> {
        let mut connection = Client::open(self.url())?.get_connection_with_timeout(CALL_TIMEOUT)?;
        connection.set_read_timeout(Some(CALL_TIMEOUT))?;
        let mut command = redis::Cmd::new();
        command.arg(arguments);
        command.query(&mut connection)
    }

    /// [`Self::try_cmd`] that must succeed.
    pub fn cmd(&self, arguments: &[&str]) -> Value {
        self.try_cmd(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    /// [`Self::cmd`] with an answer that is a text or a number.
    pub fn text(&self, arguments: &[&str]) -> String {
        redis::from_redis_value(self.cmd(arguments)).unwrap()
    }

    /// A field of `INFO`.
    pub fn info(&self, name: &str) -> String {
        let info = self.cmd(&["INFO", "everything"]);
        field(&info, name).unwrap_or_else(|| panic!("INFO has no {name}"))
    }

    /// The run id: a new one at each start.
    pub fn run_id(&self) -> String {
        self.info("run_id")
    }

    /// Number of connected clients, without replicas and the connection of this call.
    pub fn clients(&self) -> usize {
        self.text(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
    }

    /// Makes the server a replica and waits until it has copied the master's data.
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

    /// Promotes the server to a master.
    pub fn replica_of_no_one(&self) {
        self.cmd(&["REPLICAOF", "NO", "ONE"]);
    }
}

/// A field of an `INFO` answer.
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

    /// Starts replicas of a running server.
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
        assert_eq!(
            redis.cmd(&["GET", "key"]),
            Value::Nil,
            "a server without persistence kept a key"
        );
    }

    #[test]
    fn writes_in_the_file_survive_a_kill() {
        for aof in [AOF_EVERYSEC, AOF_ALWAYS] {
            let redis = Redis::start_with(aof);
            redis.cmd(&["SET", "key", "value"]);
            // With `everysec`, a server with a slow disk answers before the write.
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
        wait::until_true("the end of every connection", || set.master.clients() == 0);
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
    fn a_server_ends_with_its_value() {
        let redis = Redis::start();
        let addr = redis.addr();
        redis.stop();
        drop(redis);
        assert!(std::net::TcpStream::connect(addr).is_err());
    }
}
