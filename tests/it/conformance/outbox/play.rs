//! Random operations of several workers and rescuers, with late calls: every entry is in exactly
//! one place until it is acknowledged, and only acknowledged entries leave.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::random::num_cases;

use super::*;

const WORKERS: [&str; 3] = ["one/0.1", "one/0.2", "two/0.1"];

/// Operations per sequence.
const NUM_OPERATIONS: usize = 40;

#[derive(Debug, Clone)]
enum Operation {
    Accept(u8),
    Claim(usize, usize),
    /// Acknowledges some of the entries that the worker remembers, even if another worker owns them
    /// by now.
    Acknowledge(usize, Vec<bool>),
    TakeOver(usize, usize),
    Reclaim(usize),
}

fn operations() -> impl Strategy<Value = Operation> {
    let worker = || 0..WORKERS.len();
    let choices = prop::collection::vec(any::<bool>(), 8);
    prop_oneof![
        4 => (1..5_u8).prop_map(Operation::Accept),
        6 => (worker(), 0..5_usize).prop_map(|(worker, max)| Operation::Claim(worker, max)),
        6 => (worker(), choices)
            .prop_map(|(worker, choices)| Operation::Acknowledge(worker, choices)),
        2 => (worker(), worker()).prop_map(|(worker, from)| Operation::TakeOver(worker, from)),
        2 => worker().prop_map(Operation::Reclaim),
    ]
}

struct Sequence<'a> {
    fixture: &'a Fixture,
    bucket: BucketKey,
    /// The entries that each worker remembers; it may have lost them since.
    remembered: [Vec<OutboxEntry>; WORKERS.len()],
    num_accepted: u64,
    /// The requests that any worker acknowledged.
    ended: BTreeSet<u64>,
}

impl<'a> Sequence<'a> {
    fn new(fixture: &'a Fixture, sku: i32) -> Self {
        let bucket = BucketKey { sku: SkuNo(sku), bucket: BucketNo(0) };
        let ended = BTreeSet::new();
        Self { fixture, bucket, remembered: Default::default(), num_accepted: 0, ended }
    }

    async fn run(&mut self, operation: &Operation) {
        let (fixture, bucket) = (self.fixture, self.bucket);
        match operation {
            Operation::Accept(num) => {
                let first = self.num_accepted + 1;
                self.num_accepted += u64::from(*num);
                fixture.accept_requests(bucket, first..self.num_accepted + 1);
            }
            Operation::Claim(worker, max) => {
                let claimed = fixture.claim(bucket, WORKERS[*worker], *max).await;
                assert!(claimed.len() <= *max);
                self.remembered[*worker].extend(claimed);
            }
            Operation::Acknowledge(worker, choices) => {
                let mut chosen = choices.iter().cycle();
                let remembered = std::mem::take(&mut self.remembered[*worker]);
                let (ended, kept): (Vec<_>, Vec<_>) =
                    remembered.into_iter().partition(|_| *chosen.next().unwrap());
                self.remembered[*worker] = kept;
                if !ended.is_empty() {
                    fixture.acknowledge(bucket, WORKERS[*worker], &ended).await;
                    self.ended.extend(requests(&ended));
                }
            }
            Operation::TakeOver(worker, from) if worker != from => {
                let predecessors = [WORKERS[*from].to_owned()];
                let taken =
                    fixture.outbox.take_over(WORKERS[*worker], &predecessors, &[bucket]).await;
                self.remembered[*worker] = only(taken, bucket).unwrap();
            }
            Operation::TakeOver(..) => {}
            Operation::Reclaim(worker) => {
                fixture.reclaim(bucket, WORKERS[*worker]).await;
            }
        }
    }

    /// Requires that every entry that was not acknowledged still exists exactly once.
    async fn check(self) {
        let (fixture, bucket) = (self.fixture, self.bucket);
        let status = fixture.outbox.status(bucket).await.unwrap();
        let held: u64 = status.claimed.iter().map(|(_, num)| num).sum();
        for name in WORKERS {
            fixture.reclaim(bucket, name).await;
        }
        let remaining = fixture.claim(bucket, "last/0.1", 1_000).await;
        assert_eq!(status.num_waiting + held, remaining.len() as u64);
        let remaining: Vec<u64> = requests(&remaining);
        let unique: BTreeSet<u64> = remaining.iter().copied().collect();
        assert_eq!(unique.len(), remaining.len(), "an entry exists twice: {remaining:?}");
        for no in 1..=self.num_accepted {
            assert!(unique.contains(&no) || self.ended.contains(&no), "request {no} is lost");
        }
    }
}

fn run_sequences(kind: OutboxKind) {
    let fixture = Fixture::single(kind);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig {
        cases: num_cases() / 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // Each sequence has its own SKU, so that it starts with an empty bucket.
    let sku = std::cell::Cell::new(0);
    let sequences = prop::collection::vec(operations(), NUM_OPERATIONS);
    let result = TestRunner::new(config).run(&sequences, |operations| {
        sku.set(sku.get() + 1);
        runtime.block_on(async {
            let mut sequence = Sequence::new(&fixture, sku.get());
            for operation in &operations {
                sequence.run(operation).await;
            }
            sequence.check().await;
        });
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_list_loses_nothing_and_doubles_nothing() {
    run_sequences(OutboxKind::List);
}

#[test]
fn a_stream_loses_nothing_and_doubles_nothing() {
    run_sequences(OutboxKind::Stream);
}
