//! S15: Redis memory per buyer.

use crate::crowd::{GateFixture, Offer};
use crate::harness::Harness;
use crate::servers::RedisServer;
use crate::stats::Sample;
use anyhow::Result;

const BUYERS: u32 = 50_000;
const CONCURRENCY: usize = 256;
/// Buyers per pipeline of the baseline.
const PIPELINED: u32 = 250;
/// Otherwise Redis has 24 KiB for the latency of each command that was ever sent to it.
const NO_HISTOGRAMS: &[&str] = &["latency-tracking no"];

/// Bytes per accepted buyer, including request and purchase limit: `used_memory` before and after a
/// whole sale. The baseline is the usual layout: a set member per buyer and an expiring key per
/// request.
pub async fn bytes(harness: &mut Harness) -> Result<()> {
    for _ in 0..harness.args.rounds {
        let product = product(harness).await?;
        let usual = usual(harness).await?;
        harness.pair("S15", product, usual);
    }
    harness.remark("S15", format!("{BUYERS} buyers, ids of 19 digits, all settled"));
    Ok(())
}

/// Reserves, commits, settles and audits a whole sale.
async fn product(harness: &mut Harness) -> Result<Sample> {
    let GateFixture { stores, redis, .. } = &GateFixture::start(harness, NO_HISTOGRAMS).await?;
    let offer = Offer::open(stores, BUYERS, 1).await?;
    let before = redis.used_memory()?;
    let sold = offer.sell(stores, CONCURRENCY, BUYERS.into()).await?;
    offer.check(harness, stores, sold.accepted, BUYERS.into()).await?;
    let bytes = (redis.used_memory()? - before) / f64::from(BUYERS);
    stores.ledger.close().await;
    Ok(Sample { batches: vec![("gate", sold.mean_batch)], ..bytes.into() })
}

async fn usual(harness: &Harness) -> Result<f64> {
    let redis = RedisServer::start(harness, NO_HISTOGRAMS)?;
    let mut connection = redis.connect()?;
    let before = redis.used_memory()?;
    let id = || fastrand::u64(1 << 60..1 << 63);
    for _ in 0..BUYERS / PIPELINED {
        let mut pipe = redis::pipe();
        for _ in 0..PIPELINED {
            pipe.cmd("SADD").arg("seckill:users:1").arg(id());
            pipe.cmd("SET").arg(format!("seckill:req:{}", id())).arg("1").arg("EX").arg(600);
        }
        pipe.exec(&mut connection)?;
    }
    Ok((redis.used_memory()? - before) / f64::from(BUYERS))
}
