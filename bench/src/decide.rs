//! S3 and S4: how many reservations a second one Redis decides, in batches and one by one.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::crowd::{GUESSED_BY, GateRig, Offer, PER_BUCKET_MAX, stock_for};
use crate::lab::Lab;
use crate::meter::Meter;
use crate::private::need;
use crate::stats::{Round, Sample, for_seconds, grouped, row};
use crate::table::Row;

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

impl GateRig {
    /// One round of batches, audited.
    async fn product(
        &self,
        lab: &mut Lab<'_>,
        askers: usize,
        wanted: u64,
    ) -> anyhow::Result<Sample> {
        self.redis.clear()?;
        let offer = Offer::open(&self.bare, stock_for(wanted)?, lab.args.buckets).await?;
        let meter = Meter::start(&[("redis", self.redis.pid())])?;
        let sold = offer.rush(&self.bare, askers, wanted).await?;
        let metered = lab.stop(meter)?;
        offer.check(lab, &self.bare, sold.accepted, wanted).await?;
        let sample = metered.sample(metered.rate(wanted), wanted);
        Ok(Sample { batches: vec![("gate", sold.mean_batch())], ..sample })
    }

    /// One round of one call for each purchase.
    fn yardstick(
        &self,
        lab: &mut Lab<'_>,
        clients: usize,
        pipeline: usize,
        wanted: u64,
    ) -> anyhow::Result<Sample> {
        self.redis.clear()?;
        let mut connection = self.redis.connect()?;
        let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(USUAL).query(&mut connection)?;
        redis::cmd("SET").arg("stock").arg(i64::MAX).exec(&mut connection)?;
        let meter = Meter::start(&[("redis", self.redis.pid())])?;
        let output = Command::new("redis-benchmark")
            .args(["-p", &self.redis.address.port().to_string()])
            .args(["-c", &clients.to_string(), "-P", &pipeline.to_string()])
            .args(["-n", &wanted.to_string(), "-r", RANDOM_BELOW, "--csv"])
            .args(["EVALSHA", &sha, "4", "stock", "buyers", "request:__rand_int__", "outbox"])
            .args(["buyer:__rand_int__", MESSAGE])
            .stdin(Stdio::null())
            .output()
            .context("cannot run redis-benchmark")?;
        let metered = lab.stop(meter)?;
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

/// The rate in the last line of `redis-benchmark --csv`: the name of the test, which may hold
/// anything, and seven numbers.
fn per_second(csv: &str) -> Option<f64> {
    let line = csv.lines().last()?;
    line.rsplit(',').nth(6)?.trim_matches('"').parse().ok()
}

/// S3: as many askers as redis-benchmark has clients, which wait for each answer.
pub(crate) async fn one_by_one(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    decisions(lab, "S3", 1).await
}

/// S4: clients send 16 before they wait; as many askers as wishes are on their way there.
pub(crate) async fn pipelined(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    decisions(lab, "S4", 16).await
}

async fn decisions(
    lab: &mut Lab<'_>,
    id: &'static str,
    pipeline: usize,
) -> anyhow::Result<Vec<Row>> {
    need("redis-benchmark", "redis-tools")?;
    let rig = GateRig::start(lab).await?;
    let (clients, askers) = (lab.args.connections, lab.args.connections * pipeline);
    let limits = (1_000, PER_BUCKET_MAX * u64::from(lab.args.buckets));
    let seconds = lab.args.seconds;
    let wanted = |guess: Sample| for_seconds(guess.value, seconds, limits);
    let ours = wanted(rig.product(lab, askers, GUESSED_BY).await?);
    let theirs = wanted(rig.yardstick(lab, clients, pipeline, GUESSED_BY)?);
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
        rounds.push(Round::pair(product, yardstick));
    }
    rig.bare.ledger.close().await;
    let remark = format!(
        "core-µs are Redis's; {askers} askers against {clients} clients; the driver is the stock \
         without actors and HTTP"
    );
    Ok(vec![row(id, &rounds, Some(remark))?])
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
