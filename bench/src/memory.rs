//! S15: how much memory of Redis one buyer takes.

use crate::crowd::{GateRig, Offer};
use crate::lab::Lab;
use crate::private::RedisServer;
use crate::stats::{Round, Sample, row};
use crate::table::Row;

const BUYERS: u32 = 50_000;
const ASKERS: usize = 256;
/// Buyers of the yardstick that are sent together.
const TOGETHER: u32 = 250;

/// Bytes for each accepted buyer, request and limit included, by `used_memory` before and after a
/// whole sale, against the usual pair of a set member and one key per request with its end.
pub(crate) async fn bytes(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let mut rounds = Vec::new();
    for _ in 0..lab.args.rounds {
        let product = ours(lab).await?;
        let usual = usual(lab).await?;
        lab.say(&format!("{:.1} bytes for each buyer, usually {usual:.1}", product.value));
        rounds.push(Round::pair(product, Sample::of(usual)));
    }
    let remark = format!("{BUYERS} buyers, ids of 19 digits, all settled");
    Ok(vec![row("S15", &rounds, Some(remark))?])
}

/// A whole sale: reserved, in the ledger, settled, audited.
async fn ours(lab: &mut Lab<'_>) -> anyhow::Result<Sample> {
    let GateRig { bare, redis, .. } = &GateRig::start(lab).await?;
    let offer = Offer::open(bare, BUYERS, 1).await?;
    let before = redis.used_memory()?;
    let sold = offer.rush(bare, ASKERS, BUYERS.into()).await?;
    offer.check(lab, bare, sold.accepted, BUYERS.into()).await?;
    let each = (redis.used_memory()? - before) / f64::from(BUYERS);
    bare.ledger.close().await;
    Ok(Sample { batches: vec![("gate", sold.mean_batch())], ..Sample::of(each) })
}

async fn usual(lab: &Lab<'_>) -> anyhow::Result<f64> {
    let redis = RedisServer::start(lab.args.directory.as_deref(), &[]).await?;
    let mut connection = redis.connect()?;
    let before = redis.used_memory()?;
    let id = || fastrand::u64(1 << 60..1 << 63);
    for _ in 0..BUYERS / TOGETHER {
        let mut pipe = redis::pipe();
        for _ in 0..TOGETHER {
            pipe.cmd("SADD").arg("seckill:users:1").arg(id());
            pipe.cmd("SET").arg(format!("seckill:req:{}", id())).arg("1").arg("EX").arg(600);
        }
        pipe.exec(&mut connection)?;
    }
    Ok((redis.used_memory()? - before) / f64::from(BUYERS))
}
