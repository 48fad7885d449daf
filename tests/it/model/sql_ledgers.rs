//! The ledgers compared with the model and with each other: the same purchases, one at a time and
//! in small batches, must get the same answers and leave the same rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use floodgate::db::Ledger;
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::placement::place_each;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{OrderIntent, PlaceOutcome, Policy, Sku};
use floodgate::runtime::clock::{ManualClock, SharedClock};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use crate::support::offers::{ANY, ONE, buyer, intent, offer, orders, quota, run};
use crate::support::oracle::{Model, ModelAnswer};
use crate::support::random::num_cases;
use crate::support::servers::mariadb::MariaDb;

/// One purchase; requests and buyers come from small ranges, so that purchases conflict.
#[derive(Debug, Clone, Copy)]
struct Buy {
    request: u64,
    buyer: u64,
    quantity: u32,
}

#[derive(Debug, Clone)]
struct Sequence {
    policy: Policy,
    initial: u32,
    batches: Vec<Vec<Buy>>,
}

/// The length of a sequence, and the ranges that decide how often its purchases conflict.
#[derive(Debug, Clone, Copy)]
struct Size {
    requests: u64,
    buyers: u64,
    batches: usize,
    batch: usize,
}

const SHORT: Size = Size { requests: 40, buyers: 8, batches: 10, batch: 6 };
const LONG: Size = Size { requests: 120, buyers: 20, batches: 100, batch: 3 };

/// Sequences that run side by side, each with its own SKU: together they fill the batches of a
/// networked database.
const SIDE_BY_SIDE: usize = 50;

fn sequence(size: Size) -> impl Strategy<Value = Sequence> {
    let buy = (1..=size.requests, 1..=size.buyers, 1_u32..=3)
        .prop_map(|(request, buyer, quantity)| Buy { request, buyer, quantity });
    let policy = prop_oneof![Just(ONE), Just(ANY), (1_u32..=7).prop_map(quota)];
    // Half of the batches are single purchases.
    let batch = prop_oneof![vec(buy.clone(), 1), vec(buy, 1..=size.batch)];
    let length = if size.batches > 50 { size.batches..=size.batches } else { 1..=size.batches };
    let units = 1..=u32::try_from(size.requests).unwrap();
    (policy, units, vec(batch, length)).prop_map(|(policy, initial, batches)| Sequence {
        policy,
        initial,
        batches,
    })
}

/// A sequence in progress.
struct Run<'a> {
    sequence: &'a Sequence,
    sku: Sku,
    model: Model,
    /// Added to requests, so that sequences do not share them.
    base: u64,
}

impl<'a> Run<'a> {
    /// Offers the sequence's SKU on every ledger.
    async fn begin(ledgers: &[&dyn Ledger], sequence: &'a Sequence, number: u64) -> Self {
        let Sequence { policy, initial, .. } = *sequence;
        let mut skus = Vec::new();
        for ledger in ledgers {
            skus.push(offer(*ledger, &format!("sale-{number}"), policy, initial).await);
        }
        let sku = skus.pop().unwrap();
        assert!(
            skus.iter().all(|other| *other == sku),
            "every ledger gives the SKU the same number"
        );
        Self { sequence, sku, model: Model::new(policy, initial), base: number * 1_000 }
    }

    /// The intents of a step.
    fn batch(&self, step: usize) -> Vec<OrderIntent> {
        let batch = self.sequence.batches.get(step).into_iter().flatten();
        let intents = batch.map(|buy| {
            // Under one_per_buyer no two buyers share a request id.
            let request = match self.sequence.policy {
                Policy::OnePerBuyer { .. } => 2 * buy.buyer + buy.request % 2,
                Policy::Unlimited { .. } | Policy::Quota { .. } => buy.request,
            };
            intent(&self.sku, self.base + request, buy.buyer, buy.quantity)
        });
        intents.collect()
    }

    async fn compare_rows(&self, ledger: &dyn Ledger, buyers: u64) {
        let Self { sku, model, .. } = self;
        assert_eq!(ledger.available(sku.no).await.unwrap(), model.available());
        let found: BTreeMap<_, _> = orders(ledger, sku.no)
            .await
            .into_iter()
            .map(|order| (order.request, (order.buyer, order.quantity)))
            .collect();
        let expected: BTreeMap<_, _> =
            model.orders().map(|(request, buyer, quantity)| (request, (buyer, quantity))).collect();
        assert_eq!(found, expected);
        if sku.policy.quota().is_some() {
            let intents = (1..=buyers).map(|number| intent(sku, number, number, 1)).collect();
            let owned = ledger.examine(intents).await.unwrap().owned;
            for number in 1..=buyers {
                let row = owned.get(&(sku.no, buyer(number))).copied().unwrap_or(0);
                assert_eq!(row, model.owned(buyer(number)));
            }
        }
        assert_eq!(ledger.anomalies(sku.no).await.unwrap(), []);
    }
}

async fn assert_one_order_per_request(ledger: &dyn Ledger) {
    assert_eq!(ledger.anomalies_across_skus().await.unwrap(), []);
}

/// Places the next batches of all runs as one batch, on every ledger.
async fn step(ledgers: &[&dyn Ledger], runs: &mut [Run<'_>], step: usize) {
    let mut batch = Vec::new();
    let mut expected = Vec::new();
    for run in runs {
        for intent in run.batch(step) {
            expected.push(run.model.buy(intent.request, intent.buyer, intent.quantity));
            batch.push(intent);
        }
    }
    for ledger in ledgers {
        let mut outcomes = vec![None; batch.len()];
        place_each(*ledger, &batch, &mut outcomes).await.unwrap();
        let answers: Vec<_> = outcomes.into_iter().map(answer_of).collect();
        assert_eq!(answers, expected, "{batch:?}");
    }
}

/// The model's answer that corresponds to a ledger's outcome.
fn answer_of(outcome: Option<PlaceOutcome>) -> ModelAnswer {
    match outcome {
        Some(PlaceOutcome::Placed(_)) => ModelAnswer::Yes,
        Some(PlaceOutcome::Repeat(_)) => ModelAnswer::Again,
        Some(PlaceOutcome::Refused(refusal)) => ModelAnswer::No(refusal),
        other => panic!("{other:?}"),
    }
}

/// The same time on every ledger: an order's deadline begins with its row.
fn clock() -> SharedClock {
    Arc::new(ManualClock::new(1_800_000_000_000))
}

fn sqlite() -> (TempDir, SqliteLedger) {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    let ledger = SqliteLedger::open(&OpenOptions { clock: clock(), ..options }).unwrap();
    (directory, ledger)
}

fn check<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(strategy, |value| {
            test(value);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_ledger_in_a_file_answers_as_the_model_does() {
    let (_directory, ledger) = sqlite();
    let number = AtomicU64::new(0);
    check(num_cases(), &sequence(SHORT), |sequence| {
        let number = number.fetch_add(1, Ordering::SeqCst) + 1;
        run(async {
            let ledgers = [&ledger as &dyn Ledger];
            let mut runs = [Run::begin(&ledgers, &sequence, number).await];
            for at in 0..sequence.batches.len() {
                step(&ledgers, &mut runs, at).await;
                runs[0].compare_rows(&ledger, SHORT.buyers).await;
            }
        });
    });
    run(async {
        assert_one_order_per_request(&ledger).await;
        ledger.close().await;
    });
}

#[test]
fn the_ledgers_in_a_file_and_in_mariadb_answer_alike() {
    let (_directory, file) = sqlite();
    // Without a disk sync per commit: the test compares answers, not durability.
    let server = MariaDb::start_with(&["--innodb-flush-log-at-trx-commit=0"]);
    let options = MysqlOptions { clock: clock(), ..server.options() };
    let mariadb = MysqlLedger::open(&options).unwrap();
    let number = AtomicU64::new(0);
    let cases = num_cases().div_ceil(4 * u32::try_from(SIDE_BY_SIDE).unwrap());
    check(cases, &vec(sequence(LONG), SIDE_BY_SIDE), |sequences| {
        let ledgers = [&file as &dyn Ledger, &mariadb];
        run(async {
            let mut runs = Vec::new();
            for sequence in &sequences {
                let number = number.fetch_add(1, Ordering::SeqCst) + 1;
                runs.push(Run::begin(&ledgers, sequence, number).await);
            }
            for at in 0..LONG.batches {
                step(&ledgers, &mut runs, at).await;
            }
            for run in &runs {
                let sku = run.sku.no;
                assert_eq!(orders(&file, sku).await, orders(&mariadb, sku).await);
                for ledger in ledgers {
                    run.compare_rows(ledger, LONG.buyers).await;
                }
            }
            for ledger in ledgers {
                assert_one_order_per_request(ledger).await;
            }
        });
    });
}
