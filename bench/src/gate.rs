//! S3 and S4: reservations per second that one Redis decides, in batches and one by one.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use testkit::{Folder, PrivateServer, find_program};

use crate::harness::Harness;
use crate::servers::{clear, connect, redis, redis_url};
use crate::stats::{RoundSample, for_seconds};
use crate::stores::{CALIBRATION_ORDERS, Offer, PER_BUCKET_MAX, Stores, stock_for};

/// The usual script, called once per purchase: checks request and buyer, decrements the stock and
/// pushes the order to a list.
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
/// As many bytes as an order in JSON.
const MESSAGE: &str =
    "request-buyer-sku-bucket-epoch-quantity-amount-placed_at-pay_by-trace-0123456789abcdef";
/// Upper limit of redis-benchmark's random numbers: few repeat.
const RANDOM_BELOW: &str = "2000000000";

/// The stores of tier `gate` without a server, on a private Redis and ledger file.
struct GateFixture {
    stores: Stores,
    redis: PrivateServer,
    _scratch: Folder,
}

impl GateFixture {
    async fn start(harness: &Harness) -> Result<Self> {
        let scratch = testkit::folder(&harness.args.parent())?;
        let redis = redis(harness, &[])?;
        let set = [
            "tier=gate".to_owned(),
            // The final reads of all orders take long.
            "redis.command_timeout_ms=60000".to_owned(),
            "http.answer_deadline_ms=120000".to_owned(),
            format!("redis.url={}", redis_url(&redis)),
            format!("ledger.url=sqlite://{}", scratch.path().join("l.db").display()),
        ];
        Ok(Self { stores: Stores::open(&set).await?, redis, _scratch: scratch })
    }

    /// One round of batches, audited.
    async fn product(
        &self,
        harness: &mut Harness,
        concurrency: usize,
        wanted: u64,
    ) -> Result<RoundSample> {
        clear(&self.redis)?;
        let offer = Offer::open(&self.stores, stock_for(wanted)?, 1).await?;
        let selling = offer.sell(concurrency, wanted);
        let (sold, metered) = harness.meter(&[("redis", self.redis.id())], selling).await?;
        offer.check(harness, sold.accepted, wanted).await?;
        let sample = metered.sample(metered.rate(wanted), wanted);
        Ok(RoundSample { batches: vec![("gate", sold.mean_batch)], ..sample })
    }

    /// One round of one call for each purchase.
    async fn baseline(
        &self,
        harness: &mut Harness,
        clients: usize,
        pipeline: usize,
        wanted: u64,
    ) -> Result<RoundSample> {
        clear(&self.redis)?;
        let mut connection = connect(&self.redis)?;
        let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(USUAL).query(&mut connection)?;
        redis::cmd("SET").arg("stock").arg(i64::MAX).exec(&mut connection)?;
        let mut command = Command::new("redis-benchmark");
        command
            .args(["-p", &self.redis.port().to_string()])
            .args(["-c", &clients.to_string(), "-P", &pipeline.to_string()])
            .args(["-n", &wanted.to_string(), "-r", RANDOM_BELOW, "--csv"])
            .args(["EVALSHA", &sha, "4", "stock", "buyers", "request:__rand_int__", "outbox"])
            .args(["buyer:__rand_int__", MESSAGE])
            .stdin(Stdio::null());
        let running = async { command.output().context("cannot run redis-benchmark") };
        let (output, metered) = harness.meter(&[("redis", self.redis.id())], running).await?;
        let csv = String::from_utf8_lossy(&output.stdout);
        let Some(rate) = per_second(&csv) else {
            bail!(
                "unexpected output of redis-benchmark: {csv} {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        let accepted: u64 = redis::cmd("LLEN").arg("outbox").query(&mut connection)?;
        if accepted < wanted - wanted / 100 {
            bail!("the usual script accepted {accepted} of {wanted}");
        }
        Ok(metered.sample(rate, wanted))
    }
}

/// The rate in the last line of `redis-benchmark --csv`: the name of the test, which may contain
/// commas, and seven numbers.
fn per_second(csv: &str) -> Option<f64> {
    let line = csv.lines().last()?;
    line.rsplit(',').nth(6)?.trim_matches('"').parse().ok()
}

/// S3: as many open purchases as redis-benchmark has clients; each client waits for its answer.
pub async fn one_by_one(harness: &mut Harness) -> Result<()> {
    decisions(harness, "S3", 1).await
}

/// S4: redis-benchmark pipelines 16 calls per client; the product has as many open purchases.
pub async fn pipelined(harness: &mut Harness) -> Result<()> {
    decisions(harness, "S4", 16).await
}

async fn decisions(harness: &mut Harness, id: &'static str, pipeline: usize) -> Result<()> {
    find_program("redis-benchmark", "redis-tools")?;
    let fixture = GateFixture::start(harness).await?;
    let (clients, concurrency) = (harness.args.connections, harness.args.connections * pipeline);
    let seconds = harness.args.seconds;
    let per_round =
        |sample: RoundSample| for_seconds(sample.value, seconds, (1_000, PER_BUCKET_MAX));
    let product_calls = per_round(fixture.product(harness, concurrency, CALIBRATION_ORDERS).await?);
    let baseline_calls =
        per_round(fixture.baseline(harness, clients, pipeline, CALIBRATION_ORDERS).await?);
    for _ in 0..harness.args.rounds {
        let product = fixture.product(harness, concurrency, product_calls).await?;
        let baseline = fixture.baseline(harness, clients, pipeline, baseline_calls).await?;
        harness.pair(id, product, baseline);
    }
    fixture.stores.ledger.close().await;
    let remark = format!(
        "core-µs are Redis's; {concurrency} open purchases against {clients} clients; the driver \
         is the stock without actors and HTTP"
    );
    harness.remark(id, remark);
    Ok(())
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
