//! Random steps of several workers, of rescuers, and of calls that arrive late, on a real server
//! and on a model: answer by answer, and in the end entry by entry.

use std::collections::BTreeMap;

use floodgate::scripts::outbox::{Claim, Line, Report, Step};
use floodgate::scripts::{Call, Error as ScriptError};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::random::num_cases;

use super::model::{Item, Life, Model, Refused};
use super::*;

const NAMES: [&str; 3] = ["one/1", "one/2", "two/1"];

/// How many steps a sequence has.
const NUM_STEPS: usize = 40;

#[derive(Debug, Clone)]
enum Operation {
    Accept(u8),
    Look(usize),
    Claim(usize, usize),
    Report(usize, Vec<u8>),
    GiveBack(usize),
    /// A successor takes the worker's place.
    Succeed(usize),
    /// A copy of what the worker could send now will arrive later.
    Delay(usize, Vec<u8>, bool),
    /// A copy arrives.
    Arrive(prop::sample::Index),
    Collect(usize),
}

fn operations() -> impl Strategy<Value = Operation> {
    let who = || 0..NAMES.len();
    let fates = || prop::collection::vec(0..8_u8, 8);
    prop_oneof![
        4 => (1..5_u8).prop_map(Operation::Accept),
        3 => who().prop_map(Operation::Look),
        8 => (who(), 0..5_usize).prop_map(|(who, max)| Operation::Claim(who, max)),
        8 => (who(), fates()).prop_map(|(who, fates)| Operation::Report(who, fates)),
        2 => who().prop_map(Operation::GiveBack),
        2 => who().prop_map(Operation::Succeed),
        4 => (who(), fates(), any::<bool>())
            .prop_map(|(who, fates, claims)| Operation::Delay(who, fates, claims)),
        4 => any::<prop::sample::Index>().prop_map(Operation::Arrive),
        1 => (0..4_usize).prop_map(Operation::Collect),
    ]
}

fn fate(number: u8) -> Fate {
    match number {
        0..=3 => Fate::Published,
        4 => Fate::Kept,
        5 | 6 => Fate::Failed,
        _ => dead_of("why"),
    }
}

/// A worker as its own process sees it.
struct Player {
    outbox: Arc<dyn Outbox>,
    worker: Worker,
    /// What it believes to have in hand.
    view: Vec<Entry>,
    /// The mark that it knows and the entries it counts; `None` for a count in doubt.
    known: Option<(u64, Option<usize>)>,
    is_replaced: bool,
}

/// A call under way.
struct Delayed {
    call: Call,
    name: &'static str,
    life: Life,
    what: What,
}

enum What {
    Claim(Step, usize),
    Report(Vec<(Item, Fate)>),
}

struct Play<'a> {
    ground: &'a Ground,
    bucket: BucketKey,
    model: Model,
    players: Vec<Player>,
    delayed: Vec<Delayed>,
    /// The body of each entry, by its request.
    bodies: BTreeMap<u64, Vec<u8>>,
}

fn items(entries: &[Entry]) -> Vec<Item> {
    requests(entries).into_iter().zip(attempts(entries)).collect()
}

impl<'a> Play<'a> {
    fn new(ground: &'a Ground, processes: &[Arc<dyn Outbox>], sku: i32) -> Self {
        let bucket = BucketKey { sku: SkuNo(sku), bucket: BucketNo(0) };
        // The processes remember the sequences before.
        let first_life = u64::try_from(sku).unwrap() * 1_000;
        let player = |(name, outbox): (&&'static str, &Arc<dyn Outbox>)| Player {
            outbox: outbox.clone(),
            worker: worker(name, first_life),
            view: Vec::new(),
            known: None,
            is_replaced: false,
        };
        Self {
            ground,
            bucket,
            model: Model::new(ground.kind),
            players: NAMES.iter().zip(processes).map(player).collect(),
            delayed: Vec::new(),
            bodies: BTreeMap::new(),
        }
    }

    fn line(&self) -> Line {
        match self.ground.kind {
            Kind::List => Line::List,
            Kind::Stream => Line::Stream,
        }
    }

    /// The mark that the store has for a worker.
    fn mark(&self, name: &str) -> u64 {
        let claims = self.ground.keys(self.bucket).claims();
        let life: String = self.ground.cmd("HGET", &claims, &[name.as_bytes()]);
        life.split_once('.').unwrap().1.parse().unwrap()
    }

    async fn play(&mut self, operation: &Operation) {
        match operation {
            Operation::Accept(size) => {
                for _ in 0..*size {
                    let no = self.model.accept();
                    let body = body(&[no]);
                    self.ground.accept(self.bucket, std::slice::from_ref(&body));
                    self.bodies.insert(no, body);
                }
            }
            Operation::Look(who) => self.look(*who).await,
            Operation::Claim(who, max) => self.claim(*who, *max).await,
            Operation::Report(who, fates) => self.report(*who, fates).await,
            Operation::GiveBack(who) => {
                let moved = self.ground.outbox.give_back(self.bucket, NAMES[*who]).await;
                assert_eq!(moved, Ok(self.model.give_back(NAMES[*who]) as u64));
            }
            Operation::Succeed(who) => {
                let player = &mut self.players[*who];
                player.worker.life += 1;
                (player.view, player.known, player.is_replaced) = (Vec::new(), None, false);
            }
            Operation::Delay(who, fates, claims) => self.delay(*who, fates, *claims),
            Operation::Arrive(which) => self.arrive(*which),
            Operation::Collect(max) => {
                let dead = self.ground.outbox.dead(self.bucket, *max).await.unwrap();
                self.ground.outbox.collect(self.bucket, &dead).await.unwrap();
                for letter in dead {
                    let (no, attempts) = self.model.collect();
                    assert_eq!(
                        (&letter.bytes[..], letter.attempts),
                        (&self.bodies[&no][..], attempts)
                    );
                }
            }
        }
        self.model.assert_nothing_is_lost();
    }

    /// What the model says to a claim; the mark of a new one is the store's own choice.
    fn expect_claim(&mut self, who: usize, step: Step, max: usize) -> Result<Vec<Item>, Refused> {
        let (number, name) = (self.players[who].worker.life, NAMES[who]);
        let is_new = !matches!(step, Step::GoOn { .. });
        let mark = match self.players[who].known {
            Some((mark, _)) if !is_new => mark,
            _ => u64::MAX,
        };
        let expected = self.model.claim(name, Life { number, mark }, step, max);
        if is_new && expected.is_ok() {
            let mark = self.mark(name);
            self.model.mark_anew(name, mark);
            self.players[who].known = Some((mark, None));
        }
        expected
    }

    /// Compares, and lets the worker know as much as a process would.
    fn heard<T>(&mut self, who: usize, said: &Result<T, Error>, expected: Option<Refused>) {
        let player = &mut self.players[who];
        match (expected, said) {
            (None, Ok(_)) => {}
            (Some(Refused::Replaced), Err(Error::Replaced { .. })) => player.is_replaced = true,
            (Some(Refused::Changed), Err(Error::Unknown { .. })) => {
                player.known = player.known.map(|(mark, _)| (mark, None));
            }
            (expected, said) => {
                panic!("{}: {:?} instead of {expected:?}", player.worker, said.as_ref().err());
            }
        }
    }

    async fn look(&mut self, who: usize) {
        let player = &self.players[who];
        let said = player.outbox.in_hand(self.bucket, &player.worker).await;
        if player.is_replaced {
            return self.heard(who, &said, Some(Refused::Replaced));
        }
        let step = if player.known.is_some() { Step::Look } else { Step::Begin };
        let expected = self.expect_claim(who, step, 0);
        self.heard(who, &said, expected.as_ref().err().copied());
        if let (Ok(hand), Ok(expected)) = (said, expected) {
            assert_eq!(items(&hand.entries), expected);
            self.hold(who, hand.entries);
        }
    }

    fn hold(&mut self, who: usize, view: Vec<Entry>) {
        let player = &mut self.players[who];
        player.known = player.known.map(|(mark, _)| (mark, Some(view.len())));
        player.view = view;
    }

    async fn claim(&mut self, who: usize, max: usize) {
        let player = &self.players[who];
        let said = claim(player.outbox.as_ref(), self.bucket, &player.worker, max).await;
        let (is_replaced, known) = (player.is_replaced, player.known);
        if max == 0 {
            return assert_eq!(said, Ok(Vec::new()));
        }
        let expected = match known {
            _ if is_replaced => Err(Refused::Replaced),
            None => self.expect_claim(who, Step::Begin, max),
            Some((_, Some(held))) => self.expect_claim(who, Step::GoOn { held }, max),
            Some((_, None)) => Err(Refused::Changed),
        };
        self.heard(who, &said, expected.as_ref().err().copied());
        if let (Ok(entries), Ok(expected)) = (said, expected) {
            assert_eq!(items(&entries), expected);
            let before = if known.is_some() { self.players[who].view.clone() } else { Vec::new() };
            self.hold(who, [before, entries].concat());
        }
    }

    async fn report(&mut self, who: usize, fates: &[u8]) {
        let player = &self.players[who];
        let fates = fates.iter().cycle().map(|number| fate(*number));
        let fates: Vec<Fate> = fates.take(player.view.len()).collect();
        let hand = Hand { bucket: self.bucket, entries: player.view.clone() };
        let said = report(player.outbox.as_ref(), &player.worker, hand, fates.clone()).await;
        let told: Vec<_> = items(&player.view).into_iter().zip(fates).collect();
        let expected = match player.known {
            _ if player.is_replaced => Err(Refused::Replaced),
            _ if told.is_empty() => Ok(()),
            None => Err(Refused::Changed),
            Some((mark, _)) => {
                let life = Life { number: player.worker.life, mark };
                self.model.report(NAMES[who], life, &told)
            }
        };
        self.heard(who, &said, expected.err());
        if said.is_ok() && !told.is_empty() {
            let mut view = self.players[who].view.clone();
            for (entry, (_, fate)) in view.iter_mut().zip(&told) {
                entry.attempts += u32::from(*fate == Fate::Failed);
            }
            let mut stays = told.iter().map(|(_, fate)| matches!(fate, Fate::Kept | Fate::Failed));
            view.retain(|_| stays.next().unwrap());
            self.hold(who, view);
        }
    }

    fn delay(&mut self, who: usize, fates: &[u8], claims: bool) {
        let player = &self.players[who];
        let Some((mark, held)) = player.known else { return };
        let keys = &self.ground.keys(self.bucket);
        let (line, installation, worker) = (self.line(), INSTALLATION, &player.worker);
        let (call, what) = if claims {
            let step = held.map_or(Step::Look, |held| Step::GoOn { held });
            let door = Claim { keys, installation, line, worker, mark, step, max: 2 };
            (door.call(), What::Claim(step, 2))
        } else {
            let entries = &player.view;
            let fates: Vec<_> =
                fates.iter().cycle().map(|no| fate(*no)).take(entries.len()).collect();
            if entries.is_empty() {
                return;
            }
            let (now_ms, fates) = (NOW_MS, &fates[..]);
            let door = Report { keys, installation, line, worker, mark, entries, fates, now_ms };
            let told = items(entries).into_iter().zip(fates.iter().cloned()).collect();
            (door.call(), What::Report(told))
        };
        let life = Life { number: worker.life, mark };
        self.delayed.push(Delayed { call, name: NAMES[who], life, what });
    }

    fn arrive(&mut self, which: prop::sample::Index) {
        if self.delayed.is_empty() {
            return;
        }
        let Delayed { call, name, life, what } =
            self.delayed.swap_remove(which.index(self.delayed.len()));
        let answer = self.ground.send(&call);
        let (said, expected) = match what {
            What::Claim(step, max) => {
                let keys = &self.ground.keys(self.bucket);
                let (worker, line) = (&worker(name, life.number), self.line());
                let (installation, mark) = (INSTALLATION, life.mark);
                let door = Claim { keys, installation, line, worker, mark, step, max };
                let expected = self.model.claim(name, life, step, max);
                (door.parse(answer).map(drop), expected.map(drop))
            }
            What::Report(told) => {
                let expected = self.model.report(name, life, &told);
                (Report::parse(self.line(), answer).map(drop), expected)
            }
        };
        let expected = expected.map_err(|refused| match refused {
            Refused::Replaced => ScriptError::Replaced,
            Refused::Changed => ScriptError::Changed,
        });
        assert_eq!(said, expected);
    }

    /// Everything that is left is where the model has it.
    async fn end(mut self) {
        let (outbox, bucket) = (self.ground.outbox.clone(), self.bucket);
        let standing = outbox.standing(bucket).await.unwrap();
        let (num_waiting, in_hand) = self.model.standing();
        assert_eq!((standing.num_waiting, standing.in_hand), (num_waiting as u64, in_hand));
        assert_eq!(standing.num_dead, self.model.dead.len() as u64);
        for name in NAMES {
            let moved = outbox.give_back(bucket, name).await;
            assert_eq!(moved, Ok(self.model.give_back(name) as u64));
        }
        let last = worker("last/1", 1);
        let life = Life { number: 1, mark: 0 };
        let expected = self.model.claim("last/1", life, Step::Begin, 1_000).unwrap();
        let claimed = claim(outbox.as_ref(), bucket, &last, 1_000).await.unwrap();
        assert_eq!(items(&claimed), expected);
        for entry in &claimed {
            assert_eq!(entry.bytes, self.bodies[&requests(std::slice::from_ref(entry))[0]]);
        }
        self.play(&Operation::Collect(1_000)).await;
        assert_eq!(outbox.dead(bucket, 1).await, Ok(Vec::new()));
    }
}

fn play(kind: Kind) {
    let ground = Ground::single(kind);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let processes: Vec<_> = NAMES.iter().map(|_| ground.elsewhere()).collect();
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
            let mut play = Play::new(&ground, &processes, sku.get());
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
fn a_list_loses_nothing_and_gives_nothing_to_two() {
    play(Kind::List);
}

#[test]
fn a_stream_loses_nothing_and_gives_nothing_to_two() {
    play(Kind::Stream);
}
