//! A redis-server behind another command: on a file system or with a clock of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use floodgate::runtime::clock::wall_ms;
use redis::{Client, RedisResult, Value};
use tempfile::TempDir;

use super::Port;
use crate::support::wait;

/// A running server; killed when dropped.
pub struct WrappedRedis {
    child: Child,
    port: Port,
    folder: TempDir,
}

impl WrappedRedis {
    /// Runs `command` with the program and its arguments appended; `command` gets the folder in
    /// which Redis writes, and must replace itself by the program.
    pub fn start(command: impl FnOnce(&Path) -> Command, arguments: &[&str]) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), Port::claim().unwrap());
        let mut command = command(folder.path());
        command.args(["redis-server", "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--port", &port.number().to_string(), "--dir"]).arg(folder.path());
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let redis = Self { child: command.spawn().unwrap(), port, folder };
        wait::until_true("a redis-server", || redis.try_cmd(&["PING"]).is_ok());
        redis
    }

    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    pub fn try_cmd(&self, arguments: &[&str]) -> RedisResult<Value> {
        let mut command = redis::Cmd::new();
        command.arg(arguments);
        command.query(&mut Client::open(self.url())?.get_connection()?)
    }

    /// The answer to a command, as text.
    pub fn text(&self, arguments: &[&str]) -> String {
        redis::from_redis_value(self.try_cmd(arguments).unwrap()).unwrap()
    }

    /// How far its clock is ahead of this process's, in seconds, rounded to whole minutes.
    pub fn ahead_s(&self) -> i64 {
        let [seconds, _]: [i64; 2] =
            redis::from_redis_value::<Vec<i64>>(self.try_cmd(&["TIME"]).unwrap())
                .unwrap()
                .try_into()
                .unwrap();
        let ahead_s = seconds - wall_ms() / 1_000;
        (ahead_s + ahead_s.signum() * 30) / 60 * 60
    }

    /// A file in its folder, which may be visible to its process alone.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        let inside = format!("/proc/{}/root{}", self.child.id(), self.folder.path().display());
        Path::new(&inside).join(name)
    }
}

impl Drop for WrappedRedis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
