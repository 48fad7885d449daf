//! S3 and S4: how many reservations a second one Redis decides, in batches and one by one.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::crowd::{Offer, settings};
use super::lab::Lab;
use super::meter::Meter;
use super::private::{RedisServer, need};
use super::sample::{Round, Sample, row};
use super::scratch::Scratch;
use super::stats::{Goal, grouped};
use super::table::Row;
use crate::cli::engine::{self, Bare};

/// What is usually run for each purchase: request and buyer are looked up, stock is counted down,
/// the order waits in a list.
const USUAL: &str = "#!lua
if redis.call('EXISTS', KEYS[3]) == 1 then return 'repeated' end
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return 'bought' end
local stock = tonumber(redis.call('GET', KEYS[1]))
if not stock or stock < 1 then return 'sold out' end
redis.call('LPUSH', KEYS[4], ARGV[2])
redis.call('DECR', KEYS[1])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], '1', 'EX', 600)
return 'accepted'
";
/// As long as an order is as JSON.
const MESSAGE: &str =
    "request-buyer-sku-bucket-epoch-quantity-amount-placed_at-pay_by-trace-0123456789abcdef";
/// Random numbers of redis-benchmark are below this: few come twice.
const RANDOM_BELOW: &str = "2000000000";
/// More in one bucket than its pages are made for would not be what a sale is.
const PER_BUCKET_MAX: u64 = 393_216;
/// Decisions by which a side's rate is guessed.
const GUESSED_BY: u64 = 20_000;
/// Settings of the driver's engine: what is read at the end is long.
const PATIENT: [&str; 2] = ["redis.command_timeout_ms=60000", "http.answer_deadline_ms=120000"];

/// The rig of both goals.
struct Rig {
    bare: Bare,
    redis: RedisServer,
    _scratch: Scratch,
}

impl Rig {
    async fn start(lab: &Lab<'_>) -> anyhow::Result<Self> {
        need("redis-benchmark", "redis-tools")?;
        let parent = lab.args.directory.as_deref();
        let scratch = Scratch::new(parent)?;
        let redis = RedisServer::start(parent, &[]).await?;
        let ledger = scratch.path().join("l.db");
        let mut set = vec![
            "tier=gate".to_owned(),
            format!("redis.url={}", redis.url()),
            format!("ledger.url=sqlite://{}", ledger.display()),
        ];
        set.extend(PATIENT.map(str::to_owned));
        let bare = engine::bare(&settings(&set)?).await?;
        Ok(Self { bare, redis, _scratch: scratch })
    }

    fn clear(&self) -> anyhow::Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.redis.connect()?)?)
    }

    /// One round of batches, audited.
    async fn product(
        &self,
        lab: &mut Lab<'_>,
        askers: usize,
        wanted: u64,
    ) -> anyhow::Result<Sample> {
        self.clear()?;
        // Buyers do not spread evenly; nobody is to be short of units.
        let stock = u32::try_from(wanted + wanted / 20 + 1_000)?;
        let offer = Offer::open(&self.bare, stock, lab.args.buckets).await?;
        let meter = Meter::start(self.redis.pid())?;
        let sold = offer.rush(&self.bare, askers, wanted).await?;
        let metered = meter.stop(lab)?;
        let landed = offer.land(&self.bare).await?;
        let sale = &offer.sale;
        if sold.accepted != wanted || landed != wanted {
            let (accepted, landed) = (sold.accepted, landed);
            lab.void.push(format!("{sale}: {wanted} asked, {accepted} accepted, {landed} landed"));
        }
        let violations = self.bare.violations(sale).await?;
        if !violations.is_empty() {
            lab.void.push(format!("{sale}: audit {}", violations.join("; ")));
        }
        let mut sample = metered.sample(metered.rate(wanted), wanted);
        sample.batches = vec![("gate", sold.mean_batch())];
        Ok(sample)
    }

    /// One round of one call for each purchase.
    fn yardstick(
        &self,
        lab: &mut Lab<'_>,
        clients: usize,
        pipeline: usize,
        wanted: u64,
    ) -> anyhow::Result<Sample> {
        self.clear()?;
        let mut connection = self.redis.connect()?;
        let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(USUAL).query(&mut connection)?;
        redis::cmd("SET").arg("stock").arg(i64::MAX).exec(&mut connection)?;
        let meter = Meter::start(self.redis.pid())?;
        let output = Command::new("redis-benchmark")
            .args(["-p", &self.redis.address.port().to_string()])
            .args(["-c", &clients.to_string(), "-P", &pipeline.to_string()])
            .args(["-n", &wanted.to_string(), "-r", RANDOM_BELOW, "--csv"])
            .args(["EVALSHA", &sha, "4", "stock", "buyers", "request:__rand_int__", "outbox"])
            .args(["buyer:__rand_int__", MESSAGE])
            .stdin(Stdio::null())
            .output()
            .context("cannot run redis-benchmark")?;
        let metered = meter.stop(lab)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let Some(rate) = per_second(&said) else {
            bail!("redis-benchmark said {said} {}", String::from_utf8_lossy(&output.stderr));
        };
        let accepted: u64 = redis::cmd("LLEN").arg("outbox").query(&mut connection)?;
        if accepted < wanted - wanted / 100 {
            bail!("the usual script accepted {accepted} of {wanted}");
        }
        Ok(metered.sample(rate, wanted))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is not negative, and far below 2^53"
)]
fn whole(rate: f64) -> u64 {
    rate as u64
}

/// The rate in the last line of `redis-benchmark --csv`: the name of the test, which may hold
/// anything, and seven numbers.
fn per_second(csv: &str) -> Option<f64> {
    let line = csv.lines().last()?;
    line.rsplit(',').nth(6)?.trim_matches('"').parse().ok()
}

/// S3: as many askers as redis-benchmark has clients, which wait for each answer.
pub(super) async fn one_by_one(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let goal = Goal::AtLeast { floor: 2.0, aim: 6.0 };
    decisions(lab, "S3", "gate decisions per second against one EVALSHA each", 1, goal).await
}

/// S4: clients send 16 before they wait; as many askers as wishes are on their way there.
pub(super) async fn pipelined(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let goal = Goal::AtLeast { floor: 1.5, aim: 4.0 };
    decisions(lab, "S4", "the same against a pipeline of 16", 16, goal).await
}

async fn decisions(
    lab: &mut Lab<'_>,
    id: &'static str,
    what: &'static str,
    pipeline: usize,
    goal: Goal,
) -> anyhow::Result<Vec<Row>> {
    let rig = Rig::start(lab).await?;
    let (clients, askers) = (lab.args.connections, lab.args.connections * pipeline);
    let most = PER_BUCKET_MAX * u64::from(lab.args.buckets);
    let seconds = lab.args.seconds;
    let wanted = |rate: f64| (whole(rate) * seconds).clamp(1_000, most);
    let ours = wanted(rig.product(lab, askers, GUESSED_BY).await?.value);
    let theirs = wanted(rig.yardstick(lab, clients, pipeline, GUESSED_BY)?.value);
    let mut rounds = Vec::new();
    for number in 1..=lab.args.rounds {
        let product = rig.product(lab, askers, ours).await?;
        let yardstick = rig.yardstick(lab, clients, pipeline, theirs)?;
        let batch = product.batches.first().map_or(0.0, |(_, size)| *size);
        lab.say(&format!(
            "round {number}: {}/s in batches of {batch:.1}, {}/s one by one",
            grouped(product.value),
            grouped(yardstick.value)
        ));
        rounds.push(Round { product, yardstick: Some(yardstick) });
    }
    rig.bare.ledger.close().await;
    let mut row = row(id, what, goal, &rounds, "/s")?;
    row.remark = Some(format!(
        "core-µs are Redis's; {askers} askers against {clients} clients; the driver is the stock \
         without actors and HTTP"
    ));
    Ok(vec![row])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_behind_any_name() {
        let csv = r#""test","rps","avg_latency_ms","min","p50","p95","p99","max"
"EVAL return 1 1 k b x,"y","41666.67","0.1","0.0","0.1","0.1","0.2","3.4"
"#;
        assert_eq!(per_second(csv), Some(41_666.67));
        assert_eq!(per_second("Could not connect"), None);
    }
}
