//! Random operations on the scripts of a real redis-server, compared with books and the reference
//! model: every answer, and all rows at the end.

mod operations;
mod play;
mod steps;

use std::cell::RefCell;
use std::collections::BTreeMap;

use floodgate::domain::{OrderIntent, Policy, RequestId, RequestRecord};
use floodgate::messages::envelope::intents_in;
use floodgate::redis::scripts::{EntryLimits, OutboxArgs, intent};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::from_redis_value;

use self::operations::{NUM_OPERATIONS, Operation};
use self::play::Play;
use crate::lua::harness::{Fixture, ScriptClient, sku};
use crate::support::oracle::{Model, ModelAnswer};
use crate::support::random::num_cases;
use crate::support::servers::redis::Redis;

/// Initial stock, which sizes the pages: four pages of each kind in a bucket.
const PLANNED: u32 = 600;

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::OnePerBuyer { max_quantity: 3 }),
        Just(Policy::Unlimited { max_quantity: 3 }),
        (1..9_u32).prop_map(|limit| Policy::Quota { limit, max_quantity: 3 }),
    ]
}

/// Every kind of outbox; some fill up after four entries.
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
    let client = RefCell::new(ScriptClient::new(&redis));
    let sku_no = RefCell::new(0);
    let config = ProptestConfig {
        cases: num_cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome =
        TestRunner::new(config).run(&sequences(), |(policy, outbox, stock, operations)| {
            // Each sequence has its own SKU and starts with empty buckets.
            *sku_no.borrow_mut() += 1;
            let fixture = Fixture::new(&redis, sku(*sku_no.borrow(), policy, PLANNED));
            let fixture = Fixture { outbox, ..fixture };
            agree(&fixture, &mut client.borrow_mut(), stock, &operations)
        });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Plays a sequence on books, sends the same calls to the scripts, and compares.
fn agree(
    fixture: &Fixture,
    client: &mut ScriptClient,
    stock: u32,
    operations: &[Operation],
) -> Result<(), TestCaseError> {
    fixture.publish(client, stock);
    let mut play = Play::new(fixture, stock);
    for operation in operations {
        play.play(operation);
    }
    let calls: Vec<_> = play.steps.iter().map(|step| step.call(fixture)).collect();
    let answers = client.send_all(&calls);
    for (no, (step, answer)) in play.steps.iter().zip(answers).enumerate() {
        prop_assert_eq!(step.parse(fixture, answer), step.expected(), "step {}: {:?}", no, step);
    }
    for bucket in 0..2 {
        agree_on_rows(fixture, client, &play, bucket)?;
    }
    agree_on_limits(fixture, &play)
}

/// Compares requests, buyers, intents and counts of one bucket.
fn agree_on_rows(
    fixture: &Fixture,
    client: &mut ScriptClient,
    play: &Play<'_>,
    bucket: usize,
) -> Result<(), TestCaseError> {
    let (book, keys) = (&play.books[bucket], &fixture.buckets[bucket]);
    let mut requests: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut buyers: BTreeMap<u64, u64> = BTreeMap::new();
    for page in fixture.pages().all() {
        let rows = client.cmd(&["HGETALL", &keys.requests(page)]);
        requests.extend(from_redis_value::<Vec<(u64, Vec<u8>)>>(rows).unwrap());
        let rows = client.cmd(&["HGETALL", &keys.buyers(page)]);
        buyers.extend(from_redis_value::<Vec<(u64, u64)>>(rows).unwrap());
    }
    for (request, packed) in &requests {
        let record = RequestRecord::unpack(packed).unwrap();
        let request = RequestId::new(*request).unwrap();
        prop_assert_eq!(book.record(request, Some(record.buyer)), Some(record));
    }
    prop_assert_eq!(buyers, play.buyers(bucket));
    agree_on_intents(fixture, client, play, bucket)?;
    let (counts, expected) = (fixture.counts(client, bucket), book.snapshot());
    prop_assert_eq!(
        requests.len(),
        expected.num_unsettled + expected.num_ordered + expected.num_failed
    );
    prop_assert_eq!(counts.num_requests, requests.len() as u64);
    prop_assert_eq!(counts.num_queued, expected.num_unsettled as u64);
    prop_assert_eq!(counts.num_failed, expected.num_failed as u64);
    prop_assert_eq!(counts.released_units, expected.released_units);
    prop_assert_eq!(counts.returned_units, expected.returned_units);
    prop_assert_eq!(
        (counts.left.stock, counts.left.lent),
        (expected.available, expected.lent_units)
    );
    prop_assert_eq!((counts.epoch, counts.phase), play.epoch_and_phase(bucket));
    prop_assert_eq!(counts.loans, book.loans().collect::<Vec<_>>());
    prop_assert_eq!(counts.num_buyers, expected.num_buyers as u64);
    prop_assert_eq!(counts.change_no, expected.change_no);
    Ok(())
}

/// Compares the queued requests, the intents kept in the bucket, and the outbox entries.
fn agree_on_intents(
    fixture: &Fixture,
    client: &mut ScriptClient,
    play: &Play<'_>,
    bucket: usize,
) -> Result<(), TestCaseError> {
    let mut intents = play.books[bucket].unsettled();
    intents.sort_by_key(|intent| intent.request);
    let queued = fixture.run(client, &fixture.queued(bucket)).unwrap();
    let mut queued: Vec<_> = queued.into_iter().map(Result::unwrap).collect();
    queued.sort_by_key(|(request, _)| *request);
    let records: Vec<_> =
        intents.iter().map(|intent| (intent.request, RequestRecord::queued(intent))).collect();
    prop_assert_eq!(queued, records);

    let rows = client.cmd(&["HVALS", &fixture.buckets[bucket].unsettled()]);
    let rows: Vec<Vec<u8>> = from_redis_value(rows).unwrap();
    let mut kept: Vec<OrderIntent> =
        rows.iter().map(|packed| intent::unpack(packed).unwrap()).collect();
    kept.sort_by_key(|intent| intent.request);
    if fixture.outbox == OutboxArgs::None {
        prop_assert_eq!(kept, intents);
        return Ok(());
    }
    prop_assert_eq!(kept, []);
    let entries = fixture.entries(client, bucket, fixture.outbox);
    let entries: Vec<_> = entries.iter().map(|entry| intents_in(entry)).collect();
    prop_assert_eq!(&entries, &play.entries[bucket]);
    Ok(())
}

/// The model also accepts the requests that were accepted and still count, in their order.
fn agree_on_limits(fixture: &Fixture, play: &Play<'_>) -> Result<(), TestCaseError> {
    for bucket in 0..2 {
        let mut model = Model::new(fixture.sku.policy, u32::MAX);
        for (request, buyer, quantity) in play.counted(bucket) {
            prop_assert_eq!(model.buy(request, buyer, quantity), ModelAnswer::Yes);
        }
    }
    Ok(())
}
