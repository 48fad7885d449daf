//! Tier `gate` on a private Redis behind a [`FaultProxy`] and on a private MariaDB.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use floodgate::config::{ConfigSources, Settings};
use floodgate::redis::scripts::Script;
use floodgate::runtime::clock::now_monotonic;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::admin::assert_all_hold;
use super::app::TestApp;
use super::crowd::{Attempt, History, Purchase, Verdict, check_promises, send};
use super::fault_proxy::FaultProxy;
use super::orders::orders_in;
use super::process::{Server, command};
use super::servers::mariadb::MariaDb;
use super::servers::redis::Redis;
use super::servers::redis_users::User;
use super::wait::{DEADLINE, drains_within, until};

/// Delays and intervals, much shorter than in production.
const QUICK: &[(&str, &str)] = &[
    ("tier", "gate"),
    ("http.bind", "127.0.0.1:0"),
    ("internal.bind", "127.0.0.1:0"),
    ("http.answer_deadline_ms", "2000"),
    ("http.sales_refresh_ms", "20"),
    ("redis.connect_timeout_ms", "300"),
    ("redis.command_timeout_ms", "300"),
    ("redis.sold_out_refresh_ms", "50"),
    ("maintenance.every_ms", "20"),
    ("maintenance.lease_ttl_ms", "200"),
    ("gate.resubmit_every_ms", "50"),
    ("gate.resubmit_after_ms", "100"),
    ("gate.resubmit_backoff_min_ms", "1"),
    ("gate.resubmit_backoff_max_ms", "20"),
    ("consumer.retry_backoff_min_ms", "1"),
    ("consumer.retry_backoff_max_ms", "20"),
];

/// Long time-outs for a slow Redis, for tests without an unresponsive one.
pub const PATIENT: [(&str, &str); 3] = [
    ("http.answer_deadline_ms", "20000"),
    ("redis.connect_timeout_ms", "10000"),
    ("redis.command_timeout_ms", "10000"),
];

/// A lease that a busy machine renews in time, for tests of one process that loads buckets.
pub const LONG_LEASE: [(&str, &str); 1] = [("maintenance.lease_ttl_ms", "20000")];

/// The stores of one installation. They outlive its Floodgate processes.
pub struct GateFixture {
    folder: TempDir,
    pub redis: Redis,
    /// Between the Floodgate processes and Redis.
    pub proxy: FaultProxy,
    pub mariadb: MariaDb,
}

impl GateFixture {
    pub fn new() -> Self {
        Self::on(Redis::start())
    }

    pub fn on(redis: Redis) -> Self {
        let proxy = FaultProxy::start(redis.addr());
        Self { folder: tempfile::tempdir().unwrap(), redis, proxy, mariadb: MariaDb::start() }
    }

    fn keys(&self, more: &[(&str, &str)]) -> Vec<(String, String)> {
        let redis = User::Gate.url(self.proxy.addr());
        let ledger = self.mariadb.url();
        let own = [("redis.url", redis.as_str()), ("ledger.url", ledger.as_str())];
        let all = QUICK.iter().chain(&own).chain(more);
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// The short delays plus `more`; the last value of a key applies.
    pub fn settings(&self, more: &[(&str, &str)]) -> Settings {
        let set = self.keys(more).iter().map(|(key, value)| format!("{key}={value}")).collect();
        Settings::load(&ConfigSources { set, ..ConfigSources::default() }).unwrap()
    }

    /// A server in this process.
    pub fn app(&self, more: &[(&str, &str)]) -> TestApp {
        TestApp::start(self.settings(more))
    }

    /// A server in a child process.
    pub fn server(&self, more: &[(&str, &str)]) -> Server {
        Server::from_command(self.command(more))
    }

    /// The command of [`Self::server`].
    pub fn command(&self, more: &[(&str, &str)]) -> Command {
        let variable = |key: &str| format!("FLOODGATE__{}", key.to_uppercase().replace('.', "__"));
        let keys: Vec<_> =
            self.keys(more).into_iter().map(|(key, value)| (variable(&key), value)).collect();
        let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        command(self.folder.path(), &["serve"], &keys)
    }

    /// The Redis keys that match this pattern.
    pub fn names(&self, pattern: &str) -> Vec<String> {
        redis::from_redis_value(self.redis.cmd(&["KEYS", pattern])).unwrap()
    }

    pub fn field(&self, key: &str, field: &str) -> Option<String> {
        redis::from_redis_value(self.redis.cmd(&["HGET", key, field])).unwrap()
    }

    /// The SHA by which `EVALSHA` calls a script.
    pub fn sha_of(&self, script: Script) -> String {
        self.redis.text(&["SCRIPT", "LOAD", &script.text()])
    }

    /// Waits until every accepted request is settled, then asserts that the audit finds no
    /// violation and that ledger and answers agree.
    pub async fn check(&self, internal: SocketAddr, history: &History, stock: u64) -> Verdict {
        let begun = now_monotonic();
        until("every accepted request to be settled", async || {
            (try_stage(internal, "unsettled").await == Some(0)).then_some(())
        })
        .await;
        let drain = now_monotonic().duration_since(begun);
        assert_holds_at_rest(internal).await;
        let orders = orders_in(&self.settings(&[])).await;
        let verdict = history.check(0, &orders, stock);
        println!("drain_ms={}", drain.as_millis());
        verdict.assert_clean();
        assert!(drain < drains_within(), "drained after {drain:?}");
        verdict
    }
}

/// Waits for the first audit that evaluates every invariant, and asserts that it finds no
/// violation. Background work may still write after the last answer.
pub async fn assert_holds_at_rest(internal: SocketAddr) {
    assert_all_hold(&audit_at_rest(internal).await);
}

/// The first audit report that evaluates every invariant.
pub async fn audit_at_rest(internal: SocketAddr) -> Json {
    until("an audit at rest", async || {
        let call = reqwest::Client::new().post(format!("http://{internal}/admin/v1/audit"));
        let answer = call.json(&json!({})).send().await.ok()?;
        // There is no report while a store is unreachable.
        let report: Json = answer.error_for_status().ok()?.json().await.ok()?;
        (report["could_tell"] == true).then_some(report)
    })
    .await
}

/// One purchase for each buyer.
pub fn purchases(buyers: std::ops::Range<u64>) -> Vec<Purchase> {
    buyers.map(Purchase::of).collect()
}

/// The count of a funnel stage of the sale `sale`; `None` if the server could not count it.
pub async fn try_stage(internal: SocketAddr, stage: &str) -> Option<u64> {
    try_stages(internal, [stage]).await.map(|[count]| count)
}

/// The counts of several stages at one time.
pub async fn try_stages<const N: usize>(
    internal: SocketAddr,
    names: [&str; N],
) -> Option<[u64; N]> {
    let url = format!("http://{internal}/admin/v1/sales/sale/funnel");
    let funnel: Json = reqwest::get(url).await.ok()?.json().await.ok()?;
    let stages = funnel["stages"].as_array()?;
    let count = |name| stages.iter().find(|found| found["stage"] == name)?["count"].as_u64();
    let counts: Vec<u64> = names.into_iter().map(count).collect::<Option<_>>()?;
    counts.try_into().ok()
}

/// Fails if no documented metric has this name or begins with it: one that had no event yet is not
/// exposed and reads as 0.
fn assert_is_metric(name: &str) {
    let documented = include_str!("../../../docs/operate/metrics.md");
    let name = name.split('{').next().unwrap();
    let name = name.strip_suffix("_count").unwrap_or(name);
    assert!(documented.contains(&format!("| `{name}")), "no metric {name}");
}

/// The sum of a metric over all its labels that contain `label`.
pub async fn metric(internal: SocketAddr, name: &str, label: &str) -> u64 {
    assert_is_metric(name);
    let text = reqwest::get(format!("http://{internal}/metrics")).await.unwrap();
    let text = text.text().await.unwrap();
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Sends one purchase without request id and returns status and document; `None` without a
/// response.
pub async fn buy(public: SocketAddr, buyer: u64) -> Option<(u16, Json)> {
    let call = reqwest::Client::new().post(format!("http://{public}/v1/buy/sale"));
    let call = call.header("x-buyer-id", buyer.to_string());
    let answer = call.json(&json!({"sku_id": "sku", "quantity": 1})).send().await.ok()?;
    Some((answer.status().as_u16(), answer.json().await.ok()?))
}

/// Repeats a purchase until the answer is an order.
pub async fn buy_for_sure(public: SocketAddr, buyer_no: u64) -> Json {
    until("an order", async || {
        let (status, body) = buy(public, buyer_no).await?;
        assert!(matches!(status, 200 | 202 | 503), "{status} {body}");
        (status == 200).then_some(body)
    })
    .await
}

/// Repeats every purchase until its answer is final, as a buyer does on `busy` or `unknown`; for
/// tiers that answer after the ledger. Then repeats the promised ones, for the comparison in
/// [`super::checker`].
pub async fn retry_until_answered(
    public: SocketAddr,
    purchases: Arc<Vec<Purchase>>,
    connections: usize,
) -> History {
    retry_until(public, purchases, connections, |attempt| matches!(attempt.status, Some(200 | 409)))
        .await
}

/// [`retry_until_answered`] with another definition of a final answer.
pub async fn retry_until(
    public: SocketAddr,
    purchases: Arc<Vec<Purchase>>,
    connections: usize,
    is_final: impl Fn(&Attempt) -> bool,
) -> History {
    let mut history = History::default();
    let mut open: Vec<usize> = (0..purchases.len()).collect();
    let end = now_monotonic() + DEADLINE;
    while !open.is_empty() {
        let last = history.purchases.last();
        assert!(now_monotonic() < end, "{} purchases without a final answer: {last:?}", open.len());
        let sent = send(public, "sale", purchases.clone(), open.into(), connections).await;
        open = sent
            .purchases
            .iter()
            .filter(|attempt| !is_final(attempt))
            .map(|attempt| attempt.purchase)
            .collect();
        history.absorb(sent);
    }
    let checked = check_promises(public, "sale", purchases, &history, connections).await;
    history.checked.extend(checked);
    history
}
