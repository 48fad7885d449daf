//! Third-party servers for one test, with private ports and folders; they end with the test.

pub mod cluster;
pub mod mariadb;
pub mod rabbitmq;
pub mod redis;
pub mod redis_users;
pub mod sentinel;
pub mod wrapped_redis;

use std::ops::Deref;
use std::path::Path;

pub use testkit::Port;
use testkit::Signal;

/// Where empty data folders are kept between the tests.
fn cache() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// A server of the test kit, whose failures fail the test.
#[derive(Debug)]
pub struct Server(Box<testkit::PrivateServer>);

impl Server {
    fn of(started: anyhow::Result<testkit::PrivateServer>) -> Self {
        Self(Box::new(started.unwrap()))
    }

    /// Restarts the server on its ports and folder, and waits until it is ready.
    pub fn restart(&self) {
        self.0.restart().unwrap();
    }

    /// [`Self::restart`] without waiting.
    pub fn launch(&self) {
        self.0.launch().unwrap();
    }

    /// `SIGSTOP`: the kernel accepts connections, and no request is answered.
    pub fn stop(&self) {
        self.0.signal(Signal::STOP).unwrap();
    }

    /// `SIGCONT`: resumes a stopped server.
    pub fn cont(&self) {
        self.0.signal(Signal::CONT).unwrap();
    }
}

impl Deref for Server {
    type Target = testkit::PrivateServer;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
