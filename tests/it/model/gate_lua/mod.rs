//! The scripts on a real redis-server against books and the reference model, over random sequences
//! of operations: answer by answer, and at the end row by row.

mod operations;
mod play;
mod steps;

use std::cell::RefCell;
use std::collections::BTreeMap;

use floodgate::domain::{OrderIntent, Policy, RequestId};
use floodgate::redis::scripts::record::RequestRecord;
use floodgate::redis::scripts::{EntryLimits, OutboxArgs, intent};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::from_redis_value;

use self::operations::{NUM_OPERATIONS, Operation};
use self::play::Play;
use crate::lua::rig::{Shop, Wire, sku};
use crate::support::oracle::{Model, Said};
use crate::support::random::num_cases;
use crate::support::servers::redis::Redis;

/// Units that the pages are planned for: four pages of each kind in a bucket.
const PLANNED: u32 = 600;

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::OnePerBuyer { max_quantity: 3 }),
        Just(Policy::Unlimited { max_quantity: 3 }),
        (1..9_u32).prop_map(|limit| Policy::Quota { limit, max_quantity: 3 }),
    ]
}

/// Every kind; some are full soon.
fn outboxes() -> impl Strategy<Value = OutboxArgs> {
    let entries = (1..6_usize, prop_oneof![Just(4_u64), Just(1_000)])
        .prop_map(|(envelope_max, entries_max)| EntryLimits { envelope_max, entries_max });
    prop_oneof![
        Just(OutboxArgs::None),
        entries.clone().prop_map(OutboxArgs::List),
        entries.prop_map(OutboxArgs::Stream),
    ]
}

fn sequences() -> impl Strategy<Value = (Policy, OutboxArgs, u32, Vec<Operation>)> {
    let operations = prop::collection::vec(operations::operations(), NUM_OPERATIONS);
    (policies(), outboxes(), 0..40_u32, operations)
}

#[test]
fn the_scripts_agree_with_the_books_and_the_model() {
    let redis = Redis::start();
    let wire = RefCell::new(Wire::new(&redis));
    let sku_no = RefCell::new(0);
    let config = ProptestConfig {
        cases: num_cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let tried = TestRunner::new(config).run(&sequences(), |(policy, outbox, stock, operations)| {
        // Its own SKU for each sequence: nothing is left of the one before.
        *sku_no.borrow_mut() += 1;
        let shop = Shop::new(&redis, sku(*sku_no.borrow(), policy, PLANNED));
        let shop = Shop { outbox, ..shop };
        agree(&shop, &mut wire.borrow_mut(), stock, &operations)
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
}

/// Plays a sequence on books, then the same calls on the scripts, and compares.
fn agree(
    shop: &Shop,
    wire: &mut Wire,
    stock: u32,
    operations: &[Operation],
) -> Result<(), TestCaseError> {
    shop.publish(wire, stock);
    let mut play = Play::new(shop, stock);
    for operation in operations {
        play.play(operation);
    }
    let calls: Vec<_> = play.steps.iter().map(|step| step.call(shop)).collect();
    let answers = wire.send_all(&calls);
    for (no, (step, answer)) in play.steps.iter().zip(answers).enumerate() {
        let said = step.answer(shop, answer);
        prop_assert_eq!(said, step.said(), "step {}: {:?}", no, step);
    }
    for bucket in 0..2 {
        agree_on_rows(shop, wire, &play, bucket)?;
    }
    agree_on_limits(shop, &play)
}

/// Requests, buyers, intents and counts of one bucket.
fn agree_on_rows(
    shop: &Shop,
    wire: &mut Wire,
    play: &Play<'_>,
    bucket: usize,
) -> Result<(), TestCaseError> {
    let (book, keys) = (&play.books[bucket], &shop.buckets[bucket]);
    let mut requests: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut buyers: BTreeMap<u64, u64> = BTreeMap::new();
    for page in 0..keys.pages() {
        let rows = wire.cmd(&["HGETALL", &keys.requests(page)]);
        requests.extend(from_redis_value::<Vec<(u64, Vec<u8>)>>(rows).unwrap());
        let rows = wire.cmd(&["HGETALL", &keys.buyers(page)]);
        buyers.extend(from_redis_value::<Vec<(u64, u64)>>(rows).unwrap());
    }
    for (request, packed) in &requests {
        let record = RequestRecord::unpack(packed).unwrap();
        let row = (record.quantity, record.placed_at_ms, record.standing());
        let request = RequestId::new(*request).unwrap();
        prop_assert_eq!(book.standing(request, Some(record.buyer)), Some(row));
    }
    prop_assert_eq!(buyers, play.buyers(bucket));
    agree_on_intents(shop, wire, play, bucket)?;
    let (counts, expected) = (shop.counts(wire, bucket), book.snapshot());
    prop_assert_eq!(
        requests.len(),
        expected.num_unsettled + expected.num_ordered + expected.num_failed
    );
    prop_assert_eq!(counts.num_requests, requests.len() as u64);
    prop_assert_eq!(counts.num_queued, expected.num_unsettled as u64);
    prop_assert_eq!(counts.num_failed, expected.num_failed as u64);
    prop_assert_eq!(counts.released_units, expected.released_units);
    prop_assert_eq!(
        (counts.left.stock, counts.left.lent),
        (expected.available, expected.lent_units)
    );
    prop_assert_eq!((counts.epoch, counts.phase), play.opening(bucket));
    prop_assert_eq!(counts.loans, book.loans().collect::<Vec<_>>());
    prop_assert_eq!(counts.num_buyers, expected.num_buyers as u64);
    Ok(())
}

/// What waits for the ledger's answer, and where.
fn agree_on_intents(
    shop: &Shop,
    wire: &mut Wire,
    play: &Play<'_>,
    bucket: usize,
) -> Result<(), TestCaseError> {
    let mut intents = play.books[bucket].unsettled();
    intents.sort_by_key(|intent| intent.request);
    let door = shop.queued(bucket);
    let queued = door.parse(wire.send(&door.call()).unwrap()).unwrap().requests;
    let mut queued: Vec<_> = queued.into_iter().map(Result::unwrap).collect();
    queued.sort_by_key(|(request, _)| *request);
    let records: Vec<_> =
        intents.iter().map(|intent| (intent.request, RequestRecord::queued(intent))).collect();
    prop_assert_eq!(queued, records);

    let rows = wire.cmd(&["HVALS", &shop.buckets[bucket].unsettled()]);
    let rows: Vec<Vec<u8>> = from_redis_value(rows).unwrap();
    let mut kept: Vec<OrderIntent> =
        rows.iter().map(|packed| intent::unpack(packed).unwrap()).collect();
    kept.sort_by_key(|intent| intent.request);
    if shop.outbox == OutboxArgs::None {
        prop_assert_eq!(kept, intents);
        return Ok(());
    }
    prop_assert_eq!(kept, []);
    let entries = shop.entries(wire, bucket, shop.outbox);
    let entries: Vec<_> =
        entries.iter().map(|entry| intent::unpack_entry(entry).unwrap()).collect();
    prop_assert_eq!(&entries, &play.entries[bucket]);
    Ok(())
}

/// What was accepted and not refused later, in order, is what the model would have accepted.
fn agree_on_limits(shop: &Shop, play: &Play<'_>) -> Result<(), TestCaseError> {
    for bucket in 0..2 {
        let mut model = Model::new(shop.sku.policy, u32::MAX);
        for (request, buyer, quantity) in play.live(bucket) {
            prop_assert_eq!(model.buy(request, buyer, quantity), Said::Yes);
        }
    }
    Ok(())
}
