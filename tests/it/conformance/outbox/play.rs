//! Random steps of several workers and rescuers, with calls that arrive late: every entry is in
//! exactly one place until it is acknowledged, and only what was acknowledged leaves.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::random::num_cases;

use super::*;

const NAMES: [&str; 3] = ["one/0.1", "one/0.2", "two/0.1"];

/// How many steps a sequence has.
const NUM_STEPS: usize = 40;

#[derive(Debug, Clone)]
enum Operation {
    Accept(u8),
    Claim(usize, usize),
    /// Acknowledges some of what the worker knows of, the rest of it later: whoever has it by then.
    Acknowledge(usize, Vec<bool>),
    /// Gives up the first entry that the worker knows of.
    GiveUp(usize),
    TakeOver(usize, usize),
    Reclaim(usize),
    Collect,
}

fn operations() -> impl Strategy<Value = Operation> {
    let who = || 0..NAMES.len();
    let some = prop::collection::vec(any::<bool>(), 8);
    prop_oneof![
        4 => (1..5_u8).prop_map(Operation::Accept),
        6 => (who(), 0..5_usize).prop_map(|(who, max)| Operation::Claim(who, max)),
        6 => (who(), some).prop_map(|(who, some)| Operation::Acknowledge(who, some)),
        1 => who().prop_map(Operation::GiveUp),
        2 => (who(), who()).prop_map(|(who, from)| Operation::TakeOver(who, from)),
        2 => who().prop_map(Operation::Reclaim),
        1 => Just(Operation::Collect),
    ]
}

struct Play<'a> {
    ground: &'a Ground,
    bucket: BucketKey,
    /// What each worker believes to hold.
    known: [Vec<OutboxEntry>; NAMES.len()],
    num_accepted: u64,
    /// What was acknowledged by any worker, as published or as given up.
    ended: BTreeSet<u64>,
    collected: BTreeSet<u64>,
}

impl<'a> Play<'a> {
    fn new(ground: &'a Ground, sku: i32) -> Self {
        let bucket = BucketKey { sku: SkuNo(sku), bucket: BucketNo(0) };
        let (ended, collected) = (BTreeSet::new(), BTreeSet::new());
        Self { ground, bucket, known: Default::default(), num_accepted: 0, ended, collected }
    }

    async fn play(&mut self, operation: &Operation) {
        let (ground, bucket) = (self.ground, self.bucket);
        match operation {
            Operation::Accept(num) => {
                let first = self.num_accepted + 1;
                self.num_accepted += u64::from(*num);
                ground.accept_requests(bucket, first..self.num_accepted + 1);
            }
            Operation::Claim(who, max) => {
                let claimed = ground.claim(bucket, NAMES[*who], *max).await;
                assert!(claimed.len() <= *max);
                self.known[*who].extend(claimed);
            }
            Operation::Acknowledge(who, some) => {
                let mut chosen = some.iter().cycle();
                let known = std::mem::take(&mut self.known[*who]);
                let (ended, kept): (Vec<_>, Vec<_>) =
                    known.into_iter().partition(|_| *chosen.next().unwrap());
                self.known[*who] = kept;
                if !ended.is_empty() {
                    ground.acknowledge(bucket, NAMES[*who], &ended).await;
                    self.ended.extend(requests(&ended));
                }
            }
            Operation::GiveUp(who) => {
                if let Some(entry) = self.known[*who].first().cloned() {
                    ground.end(bucket, NAMES[*who], &[given_up(&entry, "why")]).await;
                    self.known[*who].remove(0);
                    self.ended.extend(requests(&[entry]));
                }
            }
            Operation::TakeOver(who, from) if who != from => {
                let predecessors = [NAMES[*from].to_owned()];
                let taken = ground.outbox.take_over(NAMES[*who], &predecessors, &[bucket]).await;
                self.known[*who] = only(taken, bucket).unwrap();
            }
            Operation::TakeOver(..) => {}
            Operation::Reclaim(who) => {
                ground.reclaim(bucket, NAMES[*who]).await;
            }
            Operation::Collect => {
                let dead = ground.dead(bucket).await;
                ground.outbox.collect(bucket, &dead).await.unwrap();
                for letter in dead {
                    let of = intent::unpack_entry(&letter.bytes).unwrap()[0].request.get();
                    assert!(self.collected.insert(of), "{of} is a dead letter twice");
                }
            }
        }
    }

    /// Everything that was not acknowledged is still there, once.
    async fn end(mut self) {
        let (ground, bucket) = (self.ground, self.bucket);
        let standing = ground.outbox.standing(bucket).await.unwrap();
        let held: u64 = standing.in_hand.iter().map(|(_, num)| num).sum();
        for name in NAMES {
            ground.reclaim(bucket, name).await;
        }
        let rest = ground.claim(bucket, "last/0.1", 1_000).await;
        assert_eq!(standing.num_waiting + held, rest.len() as u64);
        let rest: Vec<u64> = requests(&rest);
        let once: BTreeSet<u64> = rest.iter().copied().collect();
        assert_eq!(once.len(), rest.len(), "an entry is there twice: {rest:?}");
        self.play(&Operation::Collect).await;
        for no in 1..=self.num_accepted {
            assert!(once.contains(&no) || self.ended.contains(&no), "{no} is lost");
            assert!(!(once.contains(&no) && self.collected.contains(&no)), "{no} is also dead");
        }
    }
}

fn play(kind: EntryKind) {
    let ground = Ground::single(kind);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig {
        cases: num_cases() / 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // Its own SKU for each sequence: nothing is left of the one before.
    let sku = std::cell::Cell::new(0);
    let sequences = prop::collection::vec(operations(), NUM_STEPS);
    let tried = TestRunner::new(config).run(&sequences, |operations| {
        sku.set(sku.get() + 1);
        runtime.block_on(async {
            let mut play = Play::new(&ground, sku.get());
            for operation in &operations {
                play.play(operation).await;
            }
            play.end().await;
        });
        Ok(())
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_list_loses_nothing_and_doubles_nothing() {
    play(EntryKind::List);
}

#[test]
fn a_stream_loses_nothing_and_doubles_nothing() {
    play(EntryKind::Stream);
}
