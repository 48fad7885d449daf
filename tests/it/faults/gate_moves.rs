//! Stock transfers between buckets: the total number of units is constant at every instant, and the
//! next process completes a transfer whose process crashed.
//!
//! Covers the crash points `lent_not_borrowed` and `borrowed_not_cleared`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floodgate::domain::{BucketNo, BuyerId, Sku};
use floodgate::redis::scripts::{BucketKeys, Pages, Script};
use floodgate::tier::open_ledger_for_reading;
use redis::Client;
use serde_json::json;

use crate::support::TestApp;
use crate::support::admin::open_sale;
use crate::support::crowd::Purchase;
use crate::support::gate::{
    GateFixture, PATIENT, assert_holds_at_rest, buy, buy_for_sure, metric, retry_until_answered,
};
use crate::support::wait::until;

/// The one SKU of the ledger.
async fn sku_of(fixture: &GateFixture) -> Sku {
    let ledger = open_ledger_for_reading(&fixture.settings(&[])).unwrap();
    let sales = ledger.sales().await.unwrap();
    ledger.close().await;
    (*sales[0].skus[0]).clone()
}

/// Buyers whose home bucket is `bucket`.
fn at_home(bucket: u16, buckets: u16) -> impl Iterator<Item = u64> {
    (1..).filter(move |buyer| {
        BucketNo::home_of(BuyerId::new(*buyer).unwrap(), buckets) == BucketNo(bucket)
    })
}

/// Reads all buckets in one transaction.
struct Sampler {
    connection: redis::Connection,
    keys: Vec<BucketKeys>,
    pages: Pages,
}

impl Sampler {
    fn new(fixture: &GateFixture, sku: &Sku) -> Self {
        let connection = Client::open(fixture.redis.url()).unwrap().get_connection().unwrap();
        let buckets = (0..sku.buckets).map(BucketNo);
        let keys = buckets.map(|bucket| BucketKeys::new("fg", sku.no, bucket)).collect();
        Self { connection, keys, pages: Pages::of_sku(sku) }
    }

    /// The sum of free, in-transit and reserved units, and whether any unit is in transit.
    fn sample(&mut self) -> (u64, bool) {
        let mut all = redis::pipe();
        all.atomic();
        for keys in &self.keys {
            all.cmd("HGET").arg(keys.bucket()).arg("stock");
            all.cmd("HGETALL").arg(keys.moves());
            for page in self.pages.all() {
                all.cmd("HLEN").arg(keys.requests(page));
            }
        }
        let answers: Vec<redis::Value> = all.query(&mut self.connection).unwrap();
        let mut answers = answers.into_iter();
        let (mut sum, mut moves) = (0, Vec::new());
        for _ in &self.keys {
            let stock: u64 = redis::from_redis_value(answers.next().unwrap()).unwrap();
            let own: std::collections::HashMap<String, u64> =
                redis::from_redis_value(answers.next().unwrap()).unwrap();
            let taken = self
                .pages
                .all()
                .map(|_| redis::from_redis_value::<u64>(answers.next().unwrap()).unwrap());
            sum += stock + taken.sum::<u64>();
            moves.push(own);
        }
        let mut in_transit = 0;
        for (from, lender) in moves.iter().enumerate() {
            for (field, no) in lender {
                let Some(to) = field.strip_prefix("no:") else { continue };
                let borrower = &moves[to.parse::<usize>().unwrap()];
                let arrived = borrower.get(&format!("in:{from}")).copied().unwrap_or(0);
                in_transit += if *no > arrived { lender[&format!("out:{to}")] } else { 0 };
            }
        }
        (sum + in_transit, in_transit > 0)
    }
}

#[test]
fn units_are_all_there_at_every_instant_while_buckets_run_dry() {
    const STOCK: u32 = 240;
    let fixture = GateFixture::new();
    let app = fixture.app(&[("gate.batch_max", "2")]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(app.open_sale("sale", json!({"kind": "one_per_buyer"}), STOCK, 8));
    let sku = runtime.block_on(sku_of(&fixture));
    // All buyers have two of the eight buckets as their home.
    let buyers = at_home(3, 8).take(150).chain(at_home(5, 8).take(150));
    let purchases: Vec<_> = buyers.map(Purchase::of).collect();
    let mut sampler = Sampler::new(&fixture, &sku);
    let done = AtomicBool::new(false);
    let history = std::thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let (mut samples, mut moving) = (0_u32, 0_u32);
            while !done.load(Ordering::SeqCst) {
                let (sum, is_moving) = sampler.sample();
                assert_eq!(sum, u64::from(STOCK), "after {samples} samples");
                samples += 1;
                moving += u32::from(is_moving);
            }
            (samples, moving)
        });
        let history = runtime.block_on(retry_until_answered(app.public, Arc::new(purchases), 16));
        done.store(true, Ordering::SeqCst);
        let (samples, moving) = sampling.join().unwrap();
        println!("samples={samples} moving={moving}");
        assert!(samples > 20, "{samples}");
        history
    });
    runtime.block_on(async {
        assert!(metric(app.internal, "floodgate_transfers_total", "").await > 0);
        let verdict = fixture.check(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok, STOCK as usize, "the last unit of every bucket");
        let refused =
            history.purchases.iter().filter(|attempt| attempt.status == Some(409)).count();
        assert_eq!(refused, 60);
    });
}

/// Cuts the first request with this script before it arrives, then kills the server.
fn killed_before(script: Script) {
    let fixture = GateFixture::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Refreshes are so slow that only the purchase moves units.
    let slow = [&PATIENT[..], &[("http.sales_refresh_ms", "700")]].concat();
    let first = fixture.server(&slow);
    let (mut here, mut there) = (at_home(0, 2), at_home(1, 2));
    let [a, b, c] = [here.next().unwrap(), here.next().unwrap(), there.next().unwrap()];
    let sku = runtime.block_on(async {
        open_sale(first.internal, "sale", json!({"kind": "one_per_buyer"}), 2, 2).await;
        buy_for_sure(first.public, a).await;
        sku_of(&fixture).await
    });
    fixture.proxy.cut_request(fixture.sha_of(script));
    runtime.block_on(async {
        // The home bucket is empty: the gate transfers the unit of the other bucket.
        let (status, body) = buy(first.public, b).await.unwrap();
        assert_eq!((status, &body["code"]), (503, &json!("busy")), "{body}");
    });
    assert_eq!(fixture.proxy.cuts(), 1);
    first.kill();
    let mut sampler = Sampler::new(&fixture, &sku);
    let arrived = script == Script::ClearLoan;
    assert_eq!(sampler.sample(), (2, !arrived), "the transfer is half done");
    let lender = BucketKeys::new("fg", sku.no, BucketNo(1));
    assert!(fixture.field(&lender.moves(), "no:0").is_some());

    let second = fixture.server(&slow);
    runtime.block_on(async {
        until("the transfer to be finished", async || {
            fixture.field(&lender.moves(), "no:0").is_none().then_some(())
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
fn a_transfer_that_its_process_gave_up_is_finished_by_a_poll() {
    for script in [Script::Borrow, Script::ClearLoan] {
        let fixture = GateFixture::new();
        let app = fixture.app(&PATIENT);
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            app.open_sale("sale", json!({"kind": "one_per_buyer"}), 2, 2).await;
            let sku = sku_of(&fixture).await;
            let buyers: Vec<_> = at_home(0, 2).take(3).collect();
            buy_for_sure(app.public, buyers[0]).await;
            fixture.proxy.cut_request(fixture.sha_of(script));
            assert_eq!(buy(app.public, buyers[1]).await.unwrap().0, 503);
            let lender = BucketKeys::new("fg", sku.no, BucketNo(1));
            until("a refresh", async || {
                fixture.field(&lender.moves(), "no:0").is_none().then_some(())
            })
            .await;
            let borrower = BucketKeys::new("fg", sku.no, BucketNo(0));
            assert_eq!(fixture.field(&borrower.bucket(), "stock").as_deref(), Some("1"));
            buy_for_sure(app.public, buyers[1]).await;
            assert_sold_out(&app, buyers[2]).await;
        });
    }
}

async fn assert_sold_out(app: &TestApp, buyer: u64) {
    let (status, body) = buy(app.public, buyer).await.unwrap();
    assert_eq!((status, &body["code"]), (409, &json!("sold-out")));
    assert_holds_at_rest(app.internal).await;
}
