//! Units on their way between buckets: nobody ever sees more or fewer, and a process that dies on
//! the way leaves nothing behind that the next one does not finish.
//!
//! Covers the crash points `lent_not_borrowed` and `borrowed_not_cleared`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floodgate::domain::{BucketNo, BuyerId, Sku};
use floodgate::redis::scripts::{BucketKeys, Script};
use floodgate::tier::open_ledger_for_reading;
use redis::Client;
use serde_json::json;

use crate::support::TestApp;
use crate::support::admin::open_sale;
use crate::support::crowd::Wish;
use crate::support::gate::{GateGround, assert_holds_at_rest, buy, buy_for_sure, insist, metric};
use crate::support::wait::until;

/// The one SKU of the ledger.
async fn sku_of(ground: &GateGround) -> Sku {
    let ledger = open_ledger_for_reading(&ground.settings(&[])).unwrap();
    let sales = ledger.sales().await.unwrap();
    ledger.close().await;
    sales[0].skus[0].clone()
}

/// Buyers whose home is this bucket.
fn at_home(bucket: u16, buckets: u16) -> impl Iterator<Item = u64> {
    (1..).filter(move |buyer| {
        BucketNo::home_of(BuyerId::new(*buyer).unwrap(), buckets) == BucketNo(bucket)
    })
}

/// Reads all buckets at one instant, again and again.
struct Sampler {
    connection: redis::Connection,
    keys: Vec<BucketKeys>,
}

impl Sampler {
    fn new(ground: &GateGround, sku: &Sku) -> Self {
        let connection = Client::open(ground.redis.url()).unwrap().get_connection().unwrap();
        let buckets = (0..sku.buckets).map(BucketNo);
        let keys = buckets.map(|bucket| BucketKeys::new("fg", sku, bucket)).collect();
        Self { connection, keys }
    }

    /// Units free, on their way, and taken; and whether any were on their way.
    fn sample(&mut self) -> (u64, bool) {
        let mut all = redis::pipe();
        all.atomic();
        for keys in &self.keys {
            all.cmd("HGET").arg(keys.bucket()).arg("stock");
            all.cmd("HGETALL").arg(keys.moves());
            for page in 0..keys.pages() {
                all.cmd("HLEN").arg(keys.requests(page));
            }
        }
        let answers: Vec<redis::Value> = all.query(&mut self.connection).unwrap();
        let mut answers = answers.into_iter();
        let (mut sum, mut moves) = (0, Vec::new());
        for keys in &self.keys {
            let stock: u64 = redis::from_redis_value(answers.next().unwrap()).unwrap();
            let own: std::collections::HashMap<String, u64> =
                redis::from_redis_value(answers.next().unwrap()).unwrap();
            let taken = (0..keys.pages())
                .map(|_| redis::from_redis_value::<u64>(answers.next().unwrap()).unwrap());
            sum += stock + taken.sum::<u64>();
            moves.push(own);
        }
        let mut on_the_way = 0;
        for (from, lender) in moves.iter().enumerate() {
            for (field, no) in lender {
                let Some(to) = field.strip_prefix("no:") else { continue };
                let borrower = &moves[to.parse::<usize>().unwrap()];
                let arrived = borrower.get(&format!("in:{from}")).copied().unwrap_or(0);
                on_the_way += if *no > arrived { lender[&format!("out:{to}")] } else { 0 };
            }
        }
        (sum + on_the_way, on_the_way > 0)
    }
}

#[test]
fn units_are_all_there_at_every_instant_while_buckets_run_dry() {
    const STOCK: u32 = 240;
    let ground = GateGround::new();
    let app = ground.app(&[("gate.batch_max", "2")]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 8));
    let sku = runtime.block_on(sku_of(&ground));
    // All buyers have two of the eight buckets as their home.
    let buyers = at_home(3, 8).take(150).chain(at_home(5, 8).take(150));
    let wishes: Vec<_> = buyers.map(Wish::of).collect();
    let mut sampler = Sampler::new(&ground, &sku);
    let over = AtomicBool::new(false);
    let history = std::thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let (mut samples, mut moving) = (0_u32, 0_u32);
            while !over.load(Ordering::SeqCst) {
                let (sum, is_moving) = sampler.sample();
                assert_eq!(sum, u64::from(STOCK), "after {samples} samples");
                samples += 1;
                moving += u32::from(is_moving);
            }
            (samples, moving)
        });
        let history = runtime.block_on(insist(app.public, Arc::new(wishes), 16));
        over.store(true, Ordering::SeqCst);
        let (samples, moving) = sampling.join().unwrap();
        println!("samples={samples} moving={moving}");
        assert!(samples > 20, "{samples}");
        history
    });
    runtime.block_on(async {
        assert!(metric(app.internal, "floodgate_transfers_total", "").await > 0);
        let verdict = ground.judge(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok, STOCK as usize, "the last unit of every bucket");
        let refused = history.heard.iter().filter(|heard| heard.status == Some(409)).count();
        assert_eq!(refused, 60);
    });
}

/// Lets the server die when it sends this script for the first time, which must not arrive.
fn killed_before(script: Script) {
    let ground = GateGround::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Nothing but the way of a purchase touches the units for so long.
    let slow = [("http.sales_refresh_ms", "1000")];
    let first = ground.server(&slow);
    let (mut here, mut there) = (at_home(0, 2), at_home(1, 2));
    let [a, b, c] = [here.next().unwrap(), here.next().unwrap(), there.next().unwrap()];
    let sku = runtime.block_on(async {
        open_sale(first.internal, "sale", json!({"kind": "one_per_buyer"}), 2, 2).await;
        buy_for_sure(first.public, a).await;
        sku_of(&ground).await
    });
    ground.proxy.cut_request(ground.sha_of(script));
    runtime.block_on(async {
        // Its home is dry: the unit of the other bucket sets out.
        let (status, body) = buy(first.public, b).await.unwrap();
        assert_eq!((status, &body["code"]), (503, &json!("busy")), "{body}");
    });
    assert_eq!(ground.proxy.cuts(), 1);
    first.kill();
    let mut sampler = Sampler::new(&ground, &sku);
    let arrived = script == Script::ClearLoan;
    assert_eq!(sampler.sample(), (2, !arrived), "half done");
    let lender = BucketKeys::new("fg", &sku, BucketNo(1));
    assert!(ground.field(&lender.moves(), "no:0").is_some());

    let second = ground.server(&slow);
    runtime.block_on(async {
        until("the transfer to be finished", async || {
            ground.field(&lender.moves(), "no:0").is_none().then_some(())
        })
        .await;
        assert_eq!(sampler.sample(), (2, false), "once");
        buy_for_sure(second.public, b).await;
        let (status, body) = buy(second.public, c).await.unwrap();
        assert_eq!((status, &body["code"]), (409, &json!("sold-out")));
        assert_holds_at_rest(second.internal).await;
    });
}

#[test]
fn lent_not_borrowed_is_finished_by_the_next_process() {
    killed_before(Script::Borrow);
}

#[test]
fn borrowed_not_cleared_is_cleared_by_the_next_process_and_adds_nothing() {
    killed_before(Script::ClearLoan);
}

#[test]
fn a_transfer_that_its_process_gave_up_is_finished_by_a_look() {
    for script in [Script::Borrow, Script::ClearLoan] {
        let ground = GateGround::new();
        let app = ground.app(&[]);
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            app.open_sale("sale", json!({"kind": "one_per_buyer"}), 2, 2).await;
            let sku = sku_of(&ground).await;
            let buyers: Vec<_> = at_home(0, 2).take(3).collect();
            buy_for_sure(app.public, buyers[0]).await;
            ground.proxy.cut_request(ground.sha_of(script));
            assert_eq!(buy(app.public, buyers[1]).await.unwrap().0, 503);
            let lender = BucketKeys::new("fg", &sku, BucketNo(1));
            until("a look", async || ground.field(&lender.moves(), "no:0").is_none().then_some(()))
                .await;
            let borrower = BucketKeys::new("fg", &sku, BucketNo(0));
            assert_eq!(ground.field(&borrower.bucket(), "stock").as_deref(), Some("1"));
            buy_for_sure(app.public, buyers[1]).await;
            no_more_for(&app, buyers[2]).await;
        });
    }
}

async fn no_more_for(app: &TestApp, buyer: u64) {
    let (status, body) = buy(app.public, buyer).await.unwrap();
    assert_eq!((status, &body["code"]), (409, &json!("sold-out")));
    assert_holds_at_rest(app.internal).await;
}
