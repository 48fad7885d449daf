//! The ledger against the model: the same purchases, one at a time and in small batches, must get
//! the same answers and leave the same rows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Ledger, Placing};
use floodgate::domain::model::{Model, Said};
use floodgate::domain::{OrderIntent, Outcome, Policy, Sku};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;

use crate::support::offers::{ANY, ONE, buyer, intent, offer, orders, quota};
use crate::support::random::num_cases;

/// One purchase; few requests and few buyers, so that they meet.
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

const REQUESTS: u64 = 40;
const BUYERS: u64 = 8;

fn sequence() -> impl Strategy<Value = Sequence> {
    let buy = (1..=REQUESTS, 1..=BUYERS, 1_u32..=3).prop_map(|(request, buyer, quantity)| Buy {
        request,
        buyer,
        quantity,
    });
    let policy = prop_oneof![Just(ONE), Just(ANY), (1_u32..=7).prop_map(quota)];
    // Half of the batches are single purchases; 60 purchases at most.
    let batch = prop_oneof![vec(buy.clone(), 1), vec(buy, 1..=6)];
    (policy, 1_u32..=40, vec(batch, 1..=10)).prop_map(|(policy, initial, batches)| Sequence {
        policy,
        initial,
        batches,
    })
}

/// Answers a batch the way the conflict ladder does: blindly, and after a conflict by examination.
async fn place(ledger: &dyn Ledger, batch: &[OrderIntent]) -> Vec<Said> {
    if ledger.place(batch.to_vec()).await.unwrap() == Placing::All {
        return vec![Said::Yes; batch.len()];
    }
    let mut seen = ledger.examine(batch.to_vec()).await.unwrap();
    let mut rest = Vec::new();
    let said = batch
        .iter()
        .map(|intent| match seen.admit(intent) {
            None => {
                rest.push(*intent);
                Said::Yes
            }
            Some(Outcome::Repeat(_)) => Said::Again,
            Some(Outcome::Refused(refusal)) => Said::No(refusal),
            Some(other) => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ledger.place(rest).await.unwrap(), Placing::All, "what was admitted fits");
    said
}

async fn compare(ledger: &dyn Ledger, number: u64, sequence: &Sequence) {
    let sku = offer(ledger, &format!("sale-{number}"), sequence.policy, sequence.initial).await;
    let mut model = Model::new(sequence.policy, sequence.initial);
    let base = number * 1_000;
    for batch in &sequence.batches {
        let intents: Vec<_> =
            batch.iter().map(|b| intent(&sku, base + b.request, b.buyer, b.quantity)).collect();
        let expected: Vec<_> =
            intents.iter().map(|i| model.buy(i.request, i.buyer, i.quantity)).collect();
        assert_eq!(place(ledger, &intents).await, expected, "{intents:?}");
        compare_rows(ledger, &sku, &model).await;
    }
}

async fn compare_rows(ledger: &dyn Ledger, sku: &Sku, model: &Model) {
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
        let asked = (1..=BUYERS).map(|number| intent(sku, number, number, 1)).collect();
        let owned = ledger.examine(asked).await.unwrap().owned;
        for number in 1..=BUYERS {
            let row = owned.get(&(sku.no, buyer(number))).copied().unwrap_or(0);
            assert_eq!(row, model.owned(buyer(number)));
        }
    }
    let anomalies = ledger.anomalies(sku.no).await.unwrap();
    assert_eq!(anomalies.wrong_quotas, []);
}

#[test]
fn the_ledger_answers_as_the_model_does() {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    let runtime: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ledger = SqliteLedger::open(&options).unwrap();
    let number = AtomicU64::new(0);
    let config = Config { cases: num_cases(), failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&sequence(), |sequence| {
            let number = number.fetch_add(1, Ordering::SeqCst) + 1;
            runtime.block_on(compare(&ledger, number, &sequence));
            Ok(())
        })
        .unwrap();
    runtime.block_on(ledger.close());
}
