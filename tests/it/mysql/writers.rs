//! Several processes on one ledger: each open ledger stands for one process.

use std::collections::BTreeMap;
use std::sync::Arc;

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::placement::place_each;
use floodgate::db::{ErrorClass, Ledger, OrderWriter, SaleStore};
use floodgate::domain::{
    Epoch, Failure, OrderIntent, Phase, PlaceOutcome, Refusal, RequestId, Sku,
};
use futures_util::future::join_all;

use crate::support::migrations;
use crate::support::offers::{
    ANY, ONE, assert_ledger_holds, failures, intent, offer, open_offer, orders, quota, run,
};
use crate::support::servers::mariadb::MariaDb;

fn open_two(server: &MariaDb) -> [Arc<MysqlLedger>; 2] {
    let open = || Arc::new(MysqlLedger::open(&server.options()).unwrap());
    [open(), open()]
}

/// Retries as a consumer does, also after an error that leaves the result unknown.
async fn place(ledger: &MysqlLedger, batch: &[OrderIntent]) -> Vec<PlaceOutcome> {
    let mut outcomes = vec![None; batch.len()];
    while let Err(error) = place_each(ledger, batch, &mut outcomes).await {
        assert_eq!(error.class(), ErrorClass::Retry, "{error:?}");
    }
    outcomes.into_iter().map(Option::unwrap).collect()
}

const STOCK: u32 = 500;
const REQUESTS: u64 = 600;
const BUYERS: u64 = 100;

/// Sends every request through every ledger, in several tasks, in random batches and random order.
async fn place_concurrently(
    ledgers: &[Arc<MysqlLedger>],
    sku: &Sku,
    seed: u64,
) -> Vec<(RequestId, PlaceOutcome)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let base = u64::try_from(sku.no.0).unwrap() * 10_000;
    let all: Vec<OrderIntent> =
        (1..=REQUESTS).map(|n| intent(sku, base + n, 1 + n % BUYERS, 1)).collect();
    let mut tasks = Vec::new();
    for ledger in ledgers {
        let mut intents = all.clone();
        random.shuffle(&mut intents);
        for chunk in intents.chunks(150) {
            let (mut remaining, mut batches) = (chunk.to_vec(), Vec::new());
            while !remaining.is_empty() {
                let length = random.usize(1..=64).min(remaining.len());
                batches.push(remaining.drain(..length).collect::<Vec<_>>());
            }
            tasks.push(async move {
                let mut results = Vec::new();
                for batch in batches {
                    let outcomes = place(ledger, &batch).await;
                    results.extend(batch.iter().map(|intent| intent.request).zip(outcomes));
                }
                results
            });
        }
    }
    join_all(tasks).await.concat()
}

#[test]
fn two_processes_sell_exactly_the_stock_and_agree_on_every_request() {
    run(async {
        let server = MariaDb::start();
        let ledgers = open_two(&server);
        let seed = fastrand::u64(..);
        println!("seed={seed}");
        // Each buyer sends six requests of one unit.
        for (id, policy, sold) in
            [("any", ANY, u64::from(STOCK)), ("one", ONE, BUYERS), ("some", quota(3), 3 * BUYERS)]
        {
            let sku = open_offer(&*ledgers[0], id, policy, STOCK).await;
            let results = place_concurrently(&ledgers, &sku, seed).await;
            let found = orders(&*ledgers[1], sku.no).await;
            assert_eq!(found.len() as u64, sold, "{id}");
            let left = ledgers[1].available(sku.no).await.unwrap();
            assert_eq!(u64::from(left), u64::from(STOCK) - sold, "{id}");

            let mut placed: BTreeMap<RequestId, u32> = BTreeMap::new();
            for (request, outcome) in &results {
                let is_order = found.iter().any(|order| order.request == *request);
                assert_eq!(outcome.order().is_some(), is_order, "{id} {request:?}: {outcome:?}");
                *placed.entry(*request).or_default() +=
                    u32::from(matches!(outcome, PlaceOutcome::Placed(_)));
            }
            assert!(
                placed.values().all(|times| *times <= 1),
                "{id}: an order was reported as placed twice"
            );
            assert_eq!(placed.values().map(|times| u64::from(*times)).sum::<u64>(), sold);
        }
        assert_ledger_holds(&*ledgers[0]).await;
    });
}

#[test]
fn a_request_ends_as_an_order_or_as_a_failure_and_never_as_both() {
    run(async {
        let server = MariaDb::start_with(&["--innodb-flush-log-at-trx-commit=0"]);
        let [placer, recorder] = open_two(&server);
        let sku = open_offer(&*placer, "sale", ANY, 1_000_000).await;
        let (mut as_orders, mut as_failures) = (0, 0);
        for round in 0..200 {
            let batch: Vec<_> = (1..=10).map(|n| intent(&sku, round * 10 + n, n, 1)).collect();
            let failed: Vec<_> = batch
                .iter()
                .map(|intent| Failure {
                    request: intent.request,
                    sku: sku.no,
                    buyer: intent.buyer,
                    quantity: 1,
                    reason: Refusal::Ended,
                    recorded_at_ms: 1,
                })
                .collect();
            let failing = async {
                while let Err(error) = recorder.record_failures(failed.clone()).await {
                    assert_eq!(error.class(), ErrorClass::Retry, "{error:?}");
                }
            };
            let (outcomes, ()) = tokio::join!(place(&placer, &batch), failing);
            as_orders += outcomes.iter().filter(|outcome| outcome.order().is_some()).count();
            as_failures += outcomes.iter().filter(|outcome| outcome.order().is_none()).count();
        }
        println!("orders={as_orders} failures={as_failures}");
        assert_eq!(orders(&*placer, sku.no).await.len(), as_orders);
        assert_eq!(failures(&*placer, sku.no).await.len(), as_failures);
        assert_ledger_holds(&*placer).await;
    });
}

#[test]
fn processes_that_start_at_once_agree_on_secrets_and_never_on_a_token() {
    run(async {
        let server = MariaDb::start();
        let ledgers = open_two(&server);
        let secrets = ledgers.iter().cycle().take(8).map(|ledger| ledger.secret("request-ids"));
        let secrets: Vec<_> = join_all(secrets).await.into_iter().map(Result::unwrap).collect();
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));

        let tokens = ledgers.iter().cycle().take(100).map(|ledger| ledger.next_token("process"));
        let mut tokens: Vec<_> = join_all(tokens).await.into_iter().map(Result::unwrap).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (1..=100).collect::<Vec<_>>());
    });
}

#[test]
fn openings_of_a_sale_are_counted_once_each() {
    run(async {
        let server = MariaDb::start();
        let ledgers = open_two(&server);
        offer(&*ledgers[0], "sale", ANY, 1).await;
        for opening in 1..=20 {
            let transitions = [(Epoch(opening - 1), Phase::Open), (Epoch(opening), Phase::Paused)];
            for (seen, next) in transitions {
                let updates = ledgers.iter().cycle().take(4);
                let updates =
                    updates.map(|l| l.set_sale_phase("sale".parse().unwrap(), seen, next, 1, None));
                for sale in join_all(updates).await {
                    assert_eq!(sale.unwrap().unwrap().epoch.0, opening);
                }
            }
        }
    });
}

#[test]
fn processes_that_start_at_once_migrate_once() {
    let server = MariaDb::start();
    let options = server.options();
    let mut migrated: Vec<Vec<String>> = std::thread::scope(|scope| {
        let start = |options: MysqlOptions| {
            move || {
                let applied = MysqlLedger::migrate(&options).unwrap();
                MysqlLedger::open(&options).unwrap();
                applied
            }
        };
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(start(options.clone()))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    migrated.retain(|applied| !applied.is_empty());
    assert_eq!(migrated, [migrations::all("mysql")]);
}
