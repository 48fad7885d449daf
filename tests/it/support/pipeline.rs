//! Tier `pipeline` on a private Redis, RabbitMQ and MariaDB, with child processes of any role.

use std::net::SocketAddr;
use std::process::Command;

use floodgate::config::{ConfigSources, Settings};
use floodgate::runtime::clock::now_monotonic;
use serde_json::Value as Json;
use tempfile::TempDir;

use super::crowd::{History, Verdict};
use super::gate::{PATIENT, assert_holds_at_rest, try_stages};
use super::orders::{Orders, orders_in};
use super::process::{Server, command};
use super::servers::mariadb::MariaDb;
use super::servers::rabbitmq::RabbitMq;
use super::servers::redis::Redis;
use super::servers::redis_users::User;
use super::wait::{drains_within, until};

/// Delays and intervals, much shorter than in production.
const QUICK: &[(&str, &str)] = &[
    ("tier", "pipeline"),
    ("http.bind", "127.0.0.1:0"),
    ("internal.bind", "127.0.0.1:0"),
    ("http.answer_deadline_ms", "2000"),
    ("http.sales_refresh_ms", "50"),
    ("redis.connect_timeout_ms", "300"),
    ("redis.command_timeout_ms", "500"),
    ("redis.sold_out_refresh_ms", "50"),
    ("relay.confirm_timeout_ms", "3000"),
    ("relay.heartbeat_ttl_ms", "1000"),
    ("relay.poll_max_ms", "20"),
    ("amqp.reconnect_max_ms", "500"),
    ("maintenance.every_ms", "50"),
    ("maintenance.lease_ttl_ms", "500"),
    ("maintenance.rescue_every_ms", "200"),
    ("reconciler.after_ms", "1000"),
    ("gate.resubmit_backoff_min_ms", "1"),
    ("gate.resubmit_backoff_max_ms", "20"),
    ("consumer.retry_backoff_min_ms", "1"),
    ("consumer.retry_backoff_max_ms", "50"),
];

/// The stages that are empty once every accepted request has its outcome.
const IN_FLIGHT_STAGES: [&str; 4] = ["unsettled", "outbox", "relay", "broker"];

/// The servers of one installation. They outlive its Floodgate processes.
pub struct PipelineFixture {
    folder: TempDir,
    pub redis: Redis,
    pub rabbit: RabbitMq,
    pub mariadb: MariaDb,
    /// Further settings of all processes of this installation.
    overrides: Vec<(String, String)>,
}

impl PipelineFixture {
    /// Waits until the order queue is declared, and makes the broker persist its queue directory: a
    /// RabbitMQ that is killed right after a declare may lose the queue permanently. Only
    /// `faults/broker_kill.rs` tests that loss.
    pub fn settle_queues(&self) {
        let declared = || self.rabbit.num_ready("fg.orders.0").is_some();
        super::wait::until_true("the order queue", declared);
        self.rabbit.settle();
    }

    /// Fresh servers and processes with this `outbox.kind`.
    pub fn new(outbox: &str) -> Self {
        Self::on(outbox, Redis::start_with(super::servers::redis::AOF_ALWAYS))
    }

    pub fn on(outbox: &str, redis: Redis) -> Self {
        Self::with_broker(outbox, redis, RabbitMq::start())
    }

    pub fn with_broker(outbox: &str, redis: Redis, rabbit: RabbitMq) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            redis,
            rabbit,
            mariadb: MariaDb::start(),
            overrides: vec![("outbox.kind".to_owned(), outbox.to_owned())],
        }
    }

    /// Long time-outs for slow servers, for tests without an unresponsive one.
    pub fn patient(self) -> Self {
        PATIENT.iter().fold(self, |fixture, (key, value)| fixture.with(key, value))
    }

    /// Adds a setting of all processes of this installation.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.overrides.push((key.to_owned(), value.to_owned()));
        self
    }

    fn keys(&self, more: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let servers = [
            ("redis.url".to_owned(), User::Pipeline.url(self.redis.addr())),
            ("amqp.url".to_owned(), self.rabbit.url()),
            ("ledger.url".to_owned(), self.mariadb.url()),
        ];
        let quick = QUICK.iter().map(owned).chain(servers).chain(self.overrides.iter().cloned());
        quick.chain(more.iter().map(owned)).collect()
    }

    /// The short delays plus `more`; the last value of a key applies.
    pub fn settings(&self, more: &[(&str, &str)]) -> Settings {
        let set = self.keys(more).iter().map(|(key, value)| format!("{key}={value}")).collect();
        Settings::load(&ConfigSources { set, ..ConfigSources::default() }).unwrap()
    }

    /// A server of this role in a child process.
    pub fn server(&self, role: &str, more: &[(&str, &str)]) -> Server {
        Server::from_command(self.command(role, more))
    }

    /// The command of [`Self::server`].
    pub fn command(&self, role: &str, more: &[(&str, &str)]) -> Command {
        let variable = |key: &str| format!("FLOODGATE__{}", key.to_uppercase().replace('.', "__"));
        let keys = self.keys(more);
        let keys: Vec<(String, String)> =
            keys.into_iter().map(|(key, value)| (variable(&key), value)).collect();
        let mut keys: Vec<(&str, &str)> =
            keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        keys.push(("FLOODGATE__ROLE", role));
        command(self.folder.path(), &["serve"], &keys)
    }

    /// The JSON output of `floodgate dlq` with these arguments against this server.
    pub fn dlq(&self, internal: SocketAddr, arguments: &[&str]) -> Json {
        self.ask(internal, &[&["dlq"], arguments].concat())
    }

    /// The JSON output of `floodgate` with these arguments against this server.
    pub fn ask(&self, internal: SocketAddr, arguments: &[&str]) -> Json {
        self.ask_and_exit(internal, arguments, 0)
    }

    /// [`Self::ask`] for a command that must exit with this code.
    pub fn ask_and_exit(&self, internal: SocketAddr, arguments: &[&str], exit: i32) -> Json {
        let url = format!("http://{internal}");
        let arguments = [arguments, &["--internal-url", &url, "--json"]].concat();
        let output = command(self.folder.path(), &arguments, &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The open dead letters, newest first.
    pub fn open_dead_letters(&self, internal: SocketAddr) -> Vec<Json> {
        let list = self.dlq(internal, &["list", "--limit", "500"]);
        list["dead_letters"].as_array().unwrap().clone()
    }

    /// Waits until every accepted request has its outcome.
    pub async fn drained(&self, internal: SocketAddr) {
        let mut last = [u64::MAX; 4];
        until("every accepted request to have its outcome", async || {
            let counts = try_stages(internal, IN_FLIGHT_STAGES).await?;
            if counts != last {
                println!("{IN_FLIGHT_STAGES:?}: {counts:?}");
                last = counts;
            }
            (counts == [0; 4]).then_some(())
        })
        .await;
    }

    /// Waits until every accepted request has its outcome, then asserts that the audit finds no
    /// violation and that ledger and answers agree.
    pub async fn check(
        &self,
        seed: u64,
        internal: SocketAddr,
        history: &History,
        stock: u64,
    ) -> Verdict {
        let begun = now_monotonic();
        self.drained(internal).await;
        let drain = now_monotonic().duration_since(begun);
        assert_holds_at_rest(internal).await;
        let ledger = of_the_sale(orders_in(&self.settings(&[])).await);
        let verdict = history.check(seed, &ledger, stock);
        println!("drain_ms={}", drain.as_millis());
        verdict.assert_clean();
        assert!(drain < drains_within(), "drained after {drain:?}");
        verdict
    }
}

/// The outcomes of the sale `sale`, which the history is of.
fn of_the_sale(ledger: Orders) -> Orders {
    let mut kept = Orders::default();
    ledger.records.into_iter().filter(|found| found.sale == "sale").for_each(|found| {
        kept.add(found);
    });
    kept
}
