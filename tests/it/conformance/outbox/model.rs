//! An outbox of one bucket in plain Rust: what the scripts of either kind promise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use floodgate::outbox::Fate;
use floodgate::scripts::outbox::Step;

use super::Kind;

/// An entry, by its request, and its attempts.
pub type Item = (u64, u32);

/// Why nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Replaced,
    /// The asker knows something else than there is.
    Changed,
}

/// Who asks: a life and the mark that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub number: u64,
    pub mark: u64,
}

pub struct Model {
    kind: Kind,
    line: VecDeque<Item>,
    hands: BTreeMap<&'static str, Vec<Item>>,
    lives: BTreeMap<&'static str, Life>,
    pub dead: VecDeque<Item>,
    /// Published, or collected.
    published: BTreeSet<u64>,
    num_accepted: u64,
}

impl Model {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            line: VecDeque::new(),
            hands: BTreeMap::new(),
            lives: BTreeMap::new(),
            dead: VecDeque::new(),
            published: BTreeSet::new(),
            num_accepted: 0,
        }
    }

    /// The next entry is accepted.
    pub fn accept(&mut self) -> u64 {
        self.num_accepted += 1;
        self.line.push_back((self.num_accepted, 0));
        self.num_accepted
    }

    pub fn claim(
        &mut self,
        name: &'static str,
        life: Life,
        step: Step,
        max: usize,
    ) -> Result<Vec<Item>, Refused> {
        let present = self.lives.get(name);
        let hand = self.hands.entry(name).or_default();
        let new_from = match step {
            Step::Begin if present.is_none_or(|present| present.number <= life.number) => 0,
            Step::Look if present.is_some_and(|present| present.number == life.number) => 0,
            Step::GoOn { held } if present.is_some_and(|it| it.number == life.number) => {
                if present != Some(&life) || hand.len() != held {
                    return Err(Refused::Changed);
                }
                held
            }
            Step::Begin | Step::Look | Step::GoOn { .. } => return Err(Refused::Replaced),
        };
        self.lives.insert(name, life);
        // A stream shows a hand by age, whatever the order in which it was claimed.
        if self.kind == Kind::Stream {
            hand.sort_unstable();
        }
        hand.extend(self.line.drain(..max.min(self.line.len())));
        Ok(hand[new_from..].to_vec())
    }

    pub fn report(
        &mut self,
        name: &'static str,
        life: Life,
        told: &[(Item, Fate)],
    ) -> Result<(), Refused> {
        match self.lives.get(name) {
            Some(present) if present.number == life.number => {
                if *present != life {
                    return Err(Refused::Changed);
                }
            }
            _ => return Err(Refused::Replaced),
        }
        let hand = self.hands.entry(name).or_default();
        let mut known: Vec<u64> = told.iter().map(|((no, _), _)| *no).collect();
        let mut held: Vec<u64> = hand.iter().map(|(no, _)| *no).collect();
        if self.kind == Kind::Stream {
            known.sort_unstable();
            held.sort_unstable();
        }
        if known != held {
            return Err(Refused::Changed);
        }
        for ((no, attempts), fate) in told {
            let at = hand.iter().position(|(held, _)| held == no).unwrap();
            match fate {
                Fate::Kept => {}
                Fate::Failed => hand[at].1 += 1,
                Fate::Published => {
                    hand.remove(at);
                    assert!(self.published.insert(*no), "{no} left twice");
                }
                Fate::Dead { .. } => {
                    hand.remove(at);
                    self.dead.push_back((*no, *attempts));
                }
            }
        }
        Ok(())
    }

    pub fn give_back(&mut self, name: &'static str) -> usize {
        self.lives.remove(name);
        let hand = self.hands.remove(name).unwrap_or_default();
        for item in hand.iter().rev() {
            self.line.push_front(*item);
        }
        // What belongs to nobody is claimed by age. It is older than what nobody has claimed yet.
        if self.kind == Kind::Stream {
            self.line.make_contiguous().sort_unstable();
        }
        hand.len()
    }

    /// The life of a worker has drawn this mark.
    pub fn mark_anew(&mut self, name: &'static str, mark: u64) {
        self.lives.get_mut(name).unwrap().mark = mark;
    }

    /// The oldest dead letter was collected: it is somebody else's from now on.
    pub fn collect(&mut self) -> Item {
        let (no, attempts) = self.dead.pop_front().unwrap();
        assert!(self.published.insert(no), "{no} left twice");
        (no, attempts)
    }

    /// Entries that wait, and in each registered hand.
    pub fn standing(&self) -> (usize, Vec<(String, u64)>) {
        let size = |name| self.hands.get(name).map_or(0, |hand| hand.len() as u64);
        let hands = self.lives.keys().map(|name| ((*name).to_owned(), size(name)));
        (self.line.len(), hands.collect())
    }

    /// Every entry is in exactly one place.
    pub fn assert_nothing_is_lost(&self) {
        let in_hands = self.hands.values().flatten();
        let places = self.line.iter().chain(in_hands).chain(&self.dead).map(|(no, _)| *no);
        let mut all: Vec<u64> = places.chain(self.published.iter().copied()).collect();
        all.sort_unstable();
        assert_eq!(all, (1..=self.num_accepted).collect::<Vec<_>>());
    }
}
