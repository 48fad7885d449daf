//! The goals of tier `gate` over HTTP: what a crowd costs Redis, and how fast it is served.

use anyhow::bail;

use super::goals::{ENDLESS, Pair, keep, row};
use super::lab::{Lab, newly_accepted};
use super::private::{MariaServer, RedisServer};
use super::probe::{Measured, measure, measure_with};
use super::sample::{self, Round};
use super::stats::{Goal, Spread};
use super::table::Row;
use crate::load::{Load, Until};

/// Sold-out answers that are counted together.
const ANSWERS: u64 = 100_000;

/// S2: how many commands Redis hears while buyers are told "sold out". Commands that scripts call
/// and those of background work count.
pub(super) async fn commands(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(lab.args.directory.as_deref(), &[]).await?;
    let url = redis.url();
    let product =
        lab.product(&[("FLOODGATE__TIER", "gate"), ("FLOODGATE__REDIS__URL", &url)]).await?;
    let sale = lab.sale(&product, 1).await?;
    let (status, _) = lab.try_one(&product, &sale).await?;
    let (refusal, _) = lab.try_one(&product, &sale).await?;
    if !(200..300).contains(&status) || refusal != 409 {
        bail!("expected one sale and then a sold-out answer, got {status} and {refusal}");
    }
    Lab::warm_up(lab.closed(&product, &sale)).await?;
    let mut asker = redis.connect()?;
    let mut rounds = Vec::new();
    for _ in 0..lab.args.rounds {
        let load = Load { until: Until::Requests(ANSWERS), ..lab.closed(&product, &sale) };
        let before = num_commands(&mut asker)?;
        let measured = measure(&product.server, load).await?;
        // The first look counts itself at the second.
        let commands = num_commands(&mut asker)?.saturating_sub(before + 1);
        lab.check(&product, &sale, 1).await?;
        lab.note(&measured);
        let answered = measured.report.answered.max(1);
        let scaled = commands as f64 * ANSWERS as f64 / answered as f64;
        lab.say(&format!("{commands} commands for {answered} answers, {:.0}/s", measured.rate()));
        rounds.push(Round { product: measured.sample(scaled), yardstick: None });
    }
    let goal = Goal::Count { floor: 10.0, aim: 0.0 };
    Ok(vec![sample::row("S2", "Redis commands per 100,000 sold-out answers", goal, &rounds, "")?])
}

/// Calls of all commands since the server was started.
fn num_commands(connection: &mut redis::Connection) -> anyhow::Result<u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection)?;
    Ok(sum_of_calls(&stats))
}

fn sum_of_calls(stats: &str) -> u64 {
    let calls = |line: &str| {
        let (_, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        fields.split(',').next()?.parse::<u64>().ok()
    };
    stats.lines().filter_map(calls).sum()
}

/// S5: how many purchases a second end as orders in MariaDB, gates in Redis before it. The answer
/// comes after both; Redis keeps an append-only file (everysec), each commit waits for the disk.
pub(super) async fn purchases(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let parent = lab.args.directory.as_deref();
    let redis = RedisServer::start(parent, &["--appendonly", "yes"]).await?;
    let maria = MariaServer::start(parent).await?;
    let behind = [("redis", redis.pid()), ("mariadb", maria.pid())];
    let (redis_url, ledger_url) = (redis.url(), maria.url());
    let product = lab
        .product(&[
            ("FLOODGATE__TIER", "gate"),
            ("FLOODGATE__REDIS__URL", &redis_url),
            ("FLOODGATE__REDIS__DURABILITY", "aof"),
            ("FLOODGATE__LEDGER__URL", &ledger_url),
        ])
        .await?;
    let sale = lab.sale(&product, ENDLESS).await?;
    let (_, bytes) = lab.try_one(&product, &sale).await?;
    Lab::warm_up(lab.closed(&product, &sale)).await?;
    Lab::warm_up(lab.closed_yardstick(bytes)).await?;
    let mut pairs = Vec::new();
    for _ in 0..lab.args.rounds {
        let sale = lab.sale(&product, ENDLESS).await?;
        let load = lab.closed(&product, &sale);
        let pair = Pair {
            product: measure_with(&product.server, &behind, load).await?,
            yardstick: measure(&lab.yardstick, lab.closed_yardstick(bytes)).await?,
        };
        lab.check(&product, &sale, newly_accepted(&pair.product.report)).await?;
        product.admin.close_sale(&sale).await?;
        keep(lab, &mut pairs, pair);
    }
    let goal = Goal::AtLeast { floor: 0.50, aim: 0.70 };
    let what = "purchases per second, tier gate, orders in MariaDB";
    let mut row = row("S5", what, goal, &pairs, Measured::goodput, "/s")?;
    let costs = behind.iter().map(|(name, _)| {
        let each = pairs.iter().flat_map(|pair| pair.product.behind_us());
        let all = Spread::of(each.filter(|(who, _)| who == name).map(|(_, us)| us));
        format!("{name} {:.1}", all.map_or(0.0, |all| all.median))
    });
    row.remark = Some(format!("core-µs per purchase behind the server: {}", join(costs)));
    Ok(vec![row])
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_commands_are_counted() {
        let stats = "# Commandstats\r\ncmdstat_config|get:calls=2,usec=15\r\n\
                     cmdstat_evalsha:calls=1000,usec=990,usec_per_call=0.99\r\n";
        assert_eq!(sum_of_calls(stats), 1_002);
    }
}
