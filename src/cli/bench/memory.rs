//! S15: how much memory of Redis one buyer takes.

use super::crowd::{Offer, settings};
use super::lab::Lab;
use super::private::RedisServer;
use super::sample::{Round, Sample, row};
use super::scratch::Scratch;
use super::stats::Goal;
use super::table::Row;
use crate::cli::engine;

const BUYERS: u64 = 50_000;
const ASKERS: usize = 256;
/// Commands that are sent together where one buyer needs two of them.
const TOGETHER: usize = 256;

/// Bytes for each accepted buyer, request and limit included, by `used_memory` before and after a
/// whole sale, against the usual pair of a set member and one key per request with its end.
pub(super) async fn bytes(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let mut rounds = Vec::new();
    for _ in 0..lab.args.rounds {
        let (product, batch) = ours(lab).await?;
        let side = |value, batches| Sample { value, batches, ..Sample::default() };
        let usual = usual(lab).await?;
        lab.say(&format!("{product:.1} bytes for each buyer, usually {usual:.1}"));
        rounds.push(Round {
            product: side(product, vec![("gate", batch)]),
            yardstick: Some(side(usual, Vec::new())),
        });
    }
    let goal = Goal::AtMost { floor: 0.40, aim: 0.20 };
    let mut row = row("S15", "Redis bytes per accepted buyer", goal, &rounds, " B")?;
    row.remark = Some(format!("{BUYERS} buyers, ids of 19 digits, all settled"));
    Ok(vec![row])
}

/// A whole sale: reserved, in the ledger, settled, audited. Returns the mean batch, too.
async fn ours(lab: &mut Lab<'_>) -> anyhow::Result<(f64, f64)> {
    let parent = lab.args.directory.as_deref();
    let scratch = Scratch::new(parent)?;
    let redis = RedisServer::start(parent, &[]).await?;
    let set = [
        "tier=gate".to_owned(),
        "redis.command_timeout_ms=4000".to_owned(),
        format!("redis.url={}", redis.url()),
        format!("ledger.url=sqlite://{}", scratch.path().join("l.db").display()),
    ];
    let bare = engine::bare(&settings(&set)?).await?;
    let offer = Offer::open(&bare, u32::try_from(BUYERS)?, 1).await?;
    let mut asker = redis.connect()?;
    let before = used(&mut asker)?;
    let sold = offer.rush(&bare, ASKERS, BUYERS).await?;
    let landed = offer.land(&bare).await?;
    let each = (used(&mut asker)? - before) / BUYERS as f64;
    let sale = &offer.sale;
    if (sold.accepted, landed) != (BUYERS, BUYERS) {
        let accepted = sold.accepted;
        lab.void.push(format!("{sale}: {BUYERS} asked, {accepted} accepted, {landed} landed"));
    }
    let violations = bare.violations(sale).await?;
    if !violations.is_empty() {
        lab.void.push(format!("{sale}: audit {}", violations.join("; ")));
    }
    bare.ledger.close().await;
    Ok((each, sold.mean_batch()))
}

async fn usual(lab: &Lab<'_>) -> anyhow::Result<f64> {
    let redis = RedisServer::start(lab.args.directory.as_deref(), &[]).await?;
    let mut connection = redis.connect()?;
    let before = used(&mut connection)?;
    let id = || fastrand::u64(1 << 60..1 << 63);
    let mut left = usize::try_from(BUYERS)?;
    while left > 0 {
        let size = left.min(TOGETHER);
        let mut pipe = redis::pipe();
        for _ in 0..size {
            pipe.cmd("SADD").arg("seckill:users:1").arg(id());
            pipe.cmd("SET").arg(format!("seckill:req:{}", id())).arg("1").arg("EX").arg(600);
        }
        pipe.exec(&mut connection)?;
        left -= size;
    }
    Ok((used(&mut connection)? - before) / BUYERS as f64)
}

pub(super) fn used(connection: &mut redis::Connection) -> anyhow::Result<f64> {
    let info: String = redis::cmd("INFO").arg("memory").query(connection)?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
    used.ok_or_else(|| anyhow::anyhow!("INFO has no used_memory"))
}
