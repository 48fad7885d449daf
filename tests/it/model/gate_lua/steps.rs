//! Steps of a sequence: a call of a script, what books said, and what the script answered.

use floodgate::domain::{BucketNo, Epoch, Loan, Order, Phase, Reservation, Verdict};
use floodgate::redis::scripts::settle::{RefusedRequest, SettleOutcome};
use floodgate::redis::scripts::{
    Borrow, BucketLevel, ClearLoan, Lend, Release, ReserveBatch, ScriptCall, SetPhase, Settle,
};
use redis::Value;

use crate::lua::rig::Shop;

/// What is asked of the scripts, with what the books said.
#[derive(Debug)]
pub enum Asked {
    ReserveBatch(Vec<Reservation>, Vec<Verdict>),
    /// The second: which of them were news.
    Settle(Vec<Order>, Vec<bool>),
    Release(Vec<RefusedRequest>, Vec<bool>),
    Lend(u32, Option<Loan>),
    Borrow(Loan, u32),
    ClearLoan(Loan),
    SetPhase(Phase, Epoch, bool),
}

/// One step.
#[derive(Debug)]
pub struct Step {
    pub bucket: usize,
    pub asked: Asked,
    /// What the bucket has after it.
    pub left: BucketLevel,
}

/// An answer, of books or of scripts.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    Verdicts(Vec<Verdict>, BucketLevel),
    News(Vec<bool>, BucketLevel),
    Loan(Option<Loan>, BucketLevel),
    Added(u32, BucketLevel),
    BucketLevel(BucketLevel),
    Turned(bool),
}

impl Step {
    fn doors<'a>(&'a self, shop: &'a Shop) -> Doors<'a> {
        Doors { shop, bucket: self.bucket }
    }

    pub fn call(&self, shop: &Shop) -> ScriptCall {
        let doors = self.doors(shop);
        match &self.asked {
            Asked::ReserveBatch(batch, _) => doors.reserve(batch).call(),
            Asked::Settle(orders, _) => doors.settle(orders).call(),
            Asked::Release(refused, _) => doors.release(refused).call(),
            Asked::Lend(want, _) => doors.lend(*want).call(),
            Asked::Borrow(loan, _) => doors.borrow(*loan).call(),
            Asked::ClearLoan(loan) => doors.clear_loan(*loan).call(),
            Asked::SetPhase(phase, epoch, _) => doors.turn(*phase, *epoch).call(),
        }
    }

    /// What the books said.
    pub fn said(&self) -> Said {
        match &self.asked {
            Asked::ReserveBatch(_, verdicts) => Said::Verdicts(verdicts.clone(), self.left),
            Asked::Settle(_, news) | Asked::Release(_, news) => Said::News(news.clone(), self.left),
            Asked::Lend(_, loan) => Said::Loan(*loan, self.left),
            Asked::Borrow(_, added) => Said::Added(*added, self.left),
            Asked::ClearLoan(_) => Said::BucketLevel(self.left),
            Asked::SetPhase(.., turned) => Said::Turned(*turned),
        }
    }

    /// What the scripts said.
    pub fn answer(&self, shop: &Shop, answer: Value) -> Said {
        let doors = self.doors(shop);
        let news = |items: Vec<SettleOutcome>| -> Vec<bool> {
            items
                .iter()
                .map(|noted| matches!(noted, SettleOutcome::Now | SettleOutcome::Adopted))
                .collect()
        };
        match &self.asked {
            Asked::ReserveBatch(batch, _) => {
                let decided = doors.reserve(batch).parse(answer).unwrap();
                Said::Verdicts(decided.verdicts, decided.left)
            }
            Asked::Settle(orders, _) => {
                let notes = doors.settle(orders).parse(answer).unwrap();
                Said::News(news(notes.items), notes.left)
            }
            Asked::Release(refused, _) => {
                let notes = doors.release(refused).parse(answer).unwrap();
                Said::News(news(notes.items), notes.left)
            }
            Asked::Lend(want, _) => {
                let (loan, left) = doors.lend(*want).parse(answer).unwrap();
                Said::Loan(loan, left)
            }
            Asked::Borrow(loan, _) => {
                let (added, left) = doors.borrow(*loan).parse(answer).unwrap();
                Said::Added(added, left)
            }
            Asked::ClearLoan(loan) => {
                Said::BucketLevel(doors.clear_loan(*loan).parse(answer).unwrap().1)
            }
            Asked::SetPhase(phase, epoch, _) => {
                Said::Turned(doors.turn(*phase, *epoch).parse(answer).unwrap())
            }
        }
    }
}

/// The doors of one bucket; the other one is its partner in loans.
struct Doors<'a> {
    shop: &'a Shop,
    bucket: usize,
}

impl<'a> Doors<'a> {
    fn other(&self) -> BucketNo {
        BucketNo(u16::from(self.bucket == 0))
    }

    fn reserve(&self, batch: &'a [Reservation]) -> ReserveBatch<'a> {
        self.shop.reserving(self.bucket, batch)
    }

    fn settle(&self, orders: &'a [Order]) -> Settle<'a> {
        let (keys, fence) = (&self.shop.buckets[self.bucket], &self.shop.fence);
        Settle { keys, fence, policy: self.shop.sku.policy, orders }
    }

    fn release(&self, refused: &'a [RefusedRequest]) -> Release<'a> {
        let (keys, fence) = (&self.shop.buckets[self.bucket], &self.shop.fence);
        Release { keys, fence, policy: self.shop.sku.policy, refused }
    }

    fn lend(&self, want: u32) -> Lend<'a> {
        let (keys, fence) = (&self.shop.buckets[self.bucket], &self.shop.fence);
        Lend { keys, fence, to: self.other(), want }
    }

    fn borrow(&self, loan: Loan) -> Borrow<'a> {
        let (keys, fence) = (&self.shop.buckets[self.bucket], &self.shop.fence);
        Borrow { keys, fence, from: self.other(), loan }
    }

    fn clear_loan(&self, loan: Loan) -> ClearLoan<'a> {
        let (keys, fence) = (&self.shop.buckets[self.bucket], &self.shop.fence);
        ClearLoan { keys, fence, to: self.other(), no: loan.no }
    }

    fn turn(&self, phase: Phase, epoch: Epoch) -> SetPhase<'a> {
        let (keys, fence) = (&self.shop.buckets[self.bucket], &self.shop.fence);
        SetPhase { keys, fence, epoch, phase }
    }
}
