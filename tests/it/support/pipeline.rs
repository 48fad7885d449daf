//! Tier `pipeline` on a private Redis, RabbitMQ and MariaDB, in processes of any role.

use std::net::SocketAddr;

use floodgate::config::{ConfigSources, Settings};
use floodgate::runtime::clock::now_monotonic;
use serde_json::Value as Json;
use tempfile::TempDir;

use super::crowd::{History, Verdict};
use super::gate::{PATIENT, assert_holds_at_rest, try_stage};
use super::orders::orders_in;
use super::process::{Server, command};
use super::servers::mariadb::MariaDb;
use super::servers::rabbitmq::RabbitMq;
use super::servers::redis::Redis;
use super::servers::redis_users::User;
use super::wait::{drains_within, until};

/// Everything that waits for a while in production waits a moment here.
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

/// The stages that must be empty before everything has ended.
const UNDER_WAY: [&str; 4] = ["unsettled", "outbox", "relay", "broker"];

/// The servers of one installation; they outlive its processes.
pub struct PipelineGround {
    folder: TempDir,
    pub redis: Redis,
    pub rabbit: RabbitMq,
    pub mariadb: MariaDb,
    /// What all processes of this installation are told besides.
    more: Vec<(String, String)>,
}

impl PipelineGround {
    /// Waits until the order queue is there, and has the broker write down where its queues are: a
    /// RabbitMQ that is killed right after it created a queue may lose it for good, which
    /// `faults/broker_kill.rs` is about and no other test.
    pub fn settle_queues(&self) {
        let declared = || self.rabbit.num_ready("fg.orders.0").is_some();
        super::wait::until_true("the order queue", declared);
        self.rabbit.settle();
    }

    /// Fresh servers, and an outbox of this kind.
    pub fn new(outbox: &str) -> Self {
        Self::on(outbox, Redis::start_with(super::servers::redis::AOF_ALWAYS))
    }

    pub fn on(outbox: &str, redis: Redis) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            redis,
            rabbit: RabbitMq::start(),
            mariadb: MariaDb::start(),
            more: vec![("outbox.kind".to_owned(), outbox.to_owned())],
        }
    }

    /// Waits long for slow servers: for tests in which none is silent.
    pub fn patient(self) -> Self {
        PATIENT.iter().fold(self, |ground, (key, value)| ground.with(key, value))
    }

    /// Tells all processes of this installation one thing more.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.more.push((key.to_owned(), value.to_owned()));
        self
    }

    fn keys(&self, more: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let servers = [
            ("redis.url".to_owned(), User::Pipeline.url(self.redis.addr())),
            ("amqp.url".to_owned(), self.rabbit.url()),
            ("ledger.url".to_owned(), self.mariadb.url()),
        ];
        let quick = QUICK.iter().map(owned).chain(servers).chain(self.more.iter().cloned());
        quick.chain(more.iter().map(owned)).collect()
    }

    /// The quick settings, and more; the last one of a key counts.
    pub fn settings(&self, more: &[(&str, &str)]) -> Settings {
        let set = self.keys(more).iter().map(|(key, value)| format!("{key}={value}")).collect();
        Settings::load(&ConfigSources { set, ..ConfigSources::default() }).unwrap()
    }

    /// A server of this role in a process of its own.
    pub fn server(&self, role: &str, more: &[(&str, &str)]) -> Server {
        let variable = |key: &str| format!("FLOODGATE__{}", key.to_uppercase().replace('.', "__"));
        let keys = self.keys(more);
        let keys: Vec<(String, String)> =
            keys.into_iter().map(|(key, value)| (variable(&key), value)).collect();
        let mut keys: Vec<(&str, &str)> =
            keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        keys.push(("FLOODGATE__ROLE", role));
        Server::start(self.folder.path(), &keys)
    }

    /// `floodgate dlq` with these words, as an operator of this server: what it prints.
    pub fn dlq(&self, internal: SocketAddr, words: &[&str]) -> Json {
        self.ask(internal, &[&["dlq"], words].concat())
    }

    /// `floodgate` with these words, as an operator of this server: what it prints.
    pub fn ask(&self, internal: SocketAddr, words: &[&str]) -> Json {
        self.ask_and_exit(internal, words, 0)
    }

    /// The same, where the command must end with this exit code.
    pub fn ask_and_exit(&self, internal: SocketAddr, words: &[&str], exit: i32) -> Json {
        let url = format!("http://{internal}");
        let words = [words, &["--internal-url", &url, "--json"]].concat();
        let output = command(self.folder.path(), &words, &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(exit), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The open dead letters, newest first.
    pub fn open_letters(&self, internal: SocketAddr) -> Vec<Json> {
        let listed = self.dlq(internal, &["list", "--limit", "500"]);
        listed["dead_letters"].as_array().unwrap().clone()
    }

    /// Waits until everything that was accepted has ended.
    pub async fn drained(&self, internal: SocketAddr) {
        let mut last = Vec::new();
        until("everything to have ended", async || {
            let mut counts = Vec::new();
            for stage in UNDER_WAY {
                counts.push((stage, try_stage(internal, stage).await?));
            }
            let ended = counts.iter().all(|(_, count)| *count == 0);
            if counts != last {
                println!("{counts:?}");
                last = counts;
            }
            ended.then_some(())
        })
        .await;
    }

    /// Waits until everything that was accepted has ended, then requires that the audit holds and
    /// that ledger and answers agree.
    pub async fn judge(
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
        let ledger = orders_in(&self.settings(&[])).await;
        let verdict = history.judge(seed, &ledger, stock);
        println!("drain_ms={}", drain.as_millis());
        verdict.assert_clean();
        assert!(drain < drains_within(), "drained after {drain:?}");
        verdict
    }
}
