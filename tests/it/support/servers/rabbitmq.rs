//! A private RabbitMQ. Starts in 5 s and takes 100 MB: few tests start one, and each of those
//! checks many things.

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use floodgate::broker::{RabbitOptions, Topology};
use lapin::options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use testkit::rabbitmq;

use super::{Port, Server, cache};
use crate::support::wait::until_true;

/// Two schedulers.
const RUNTIME: &str = "+S 2:2";

/// Unconfirmed dead letters are retried after 500 ms instead of three minutes.
const SETTINGS: &[&str] = &["{dead_letter_worker_publisher_confirm_timeout, 500}"];

/// The resource that the broker is short of.
#[derive(Debug, Clone, Copy)]
pub enum Alarm {
    Memory,
    Disk,
}

/// A running node.
pub struct RabbitMq(Server);

impl Deref for RabbitMq {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl RabbitMq {
    /// Starts an empty broker.
    pub fn start() -> Self {
        Self(Server::of(rabbitmq::start(&std::env::temp_dir(), cache(), RUNTIME, SETTINGS)))
    }

    /// Starts a broker that also listens with TLS, with these files: certificate, key, authority.
    pub fn start_with_tls(certificate: &str, key: &str, authority: &str) -> (Self, Port) {
        let port = Port::claim().unwrap();
        let number = port.number();
        let listen = ["127.0.0.1", "127.0.0.2"].map(|ip| format!("{{\"{ip}\", {number}}}"));
        let settings = [
            format!("{{ssl_listeners, [{}]}}", listen.join(", ")),
            format!(
                "{{ssl_options, [{{certfile, \"{certificate}\"}}, {{keyfile, \"{key}\"}}, \
                 {{cacertfile, \"{authority}\"}}]}}"
            ),
        ];
        let settings = settings.each_ref().map(String::as_str);
        let started = rabbitmq::start(&std::env::temp_dir(), cache(), RUNTIME, &settings);
        (Self(Server::of(started)), port)
    }

    /// Starts a cluster of this many empty nodes.
    pub fn start_cluster(count: usize) -> Vec<Self> {
        let started =
            rabbitmq::start_cluster(&std::env::temp_dir(), cache(), count, RUNTIME).unwrap();
        started.into_iter().map(|server| Self(Server::of(Ok(server)))).collect()
    }

    /// The URL of its virtual host `/`.
    pub fn url(&self) -> String {
        Self::url_by(self.addr())
    }

    /// [`Self::url`] through another address that forwards to the node.
    pub fn url_by(address: SocketAddr) -> String {
        rabbitmq::url(address)
    }

    /// Options of a client with short reconnect delays.
    pub fn options(&self, topology: Topology) -> RabbitOptions {
        let mut options = RabbitOptions::new(&self.url(), topology).unwrap();
        options.connect_timeout = Duration::from_secs(20);
        options.reconnect_min = Duration::from_millis(5);
        options.reconnect_max = Duration::from_millis(50);
        options
    }

    /// The output of `rabbitmqctl` with these arguments.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        rabbitmq::ctl(self, arguments).unwrap()
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
