//! The steps of a sequence: a script call, the answer of the books, and the script's own answer.

use floodgate::domain::{BucketNo, Epoch, Loan, Order, Phase, Reservation, Verdict};
use floodgate::redis::scripts::settle::{RefusedRequest, SettleOutcome};
use floodgate::redis::scripts::{
    Borrow, BucketLevel, ClearLoan, Lend, Release, ReserveBatch, ScriptCall, SetPhase, Settle,
};
use redis::Value;

use crate::lua::harness::Fixture;

/// A script call with the answer of the books.
#[derive(Debug)]
pub enum StepCall {
    ReserveBatch(Vec<Reservation>, Vec<Verdict>),
    /// Orders, and for each whether its result is new.
    Settle(Vec<Order>, Vec<bool>),
    Release(Vec<RefusedRequest>, Vec<bool>),
    Lend(u32, Option<Loan>),
    Borrow(Loan, u32),
    ClearLoan(Loan),
    SetPhase(Phase, Epoch, bool),
}

#[derive(Debug)]
pub struct Step {
    pub bucket: usize,
    pub call: StepCall,
    /// The bucket's level after the step.
    pub left: BucketLevel,
}

/// An answer of the books or of a script.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Verdicts(Vec<Verdict>, BucketLevel),
    New(Vec<bool>, BucketLevel),
    Loan(Option<Loan>, BucketLevel),
    Added(u32, BucketLevel),
    BucketLevel(BucketLevel),
    PhaseSet(bool),
}

impl Step {
    fn calls<'a>(&'a self, fixture: &'a Fixture) -> Calls<'a> {
        Calls { fixture, bucket: self.bucket }
    }

    pub fn call(&self, fixture: &Fixture) -> ScriptCall {
        let calls = self.calls(fixture);
        match &self.call {
            StepCall::ReserveBatch(batch, _) => calls.reserve(batch).call(),
            StepCall::Settle(orders, _) => calls.settle(orders).call(),
            StepCall::Release(refused, _) => calls.release(refused).call(),
            StepCall::Lend(want, _) => calls.lend(*want).call(),
            StepCall::Borrow(loan, _) => calls.borrow(*loan).call(),
            StepCall::ClearLoan(loan) => calls.clear_loan(*loan).call(),
            StepCall::SetPhase(phase, epoch, _) => calls.set_phase(*phase, *epoch).call(),
        }
    }

    /// The answer of the books.
    pub fn expected(&self) -> Answer {
        match &self.call {
            StepCall::ReserveBatch(_, verdicts) => Answer::Verdicts(verdicts.clone(), self.left),
            StepCall::Settle(_, is_new) | StepCall::Release(_, is_new) => {
                Answer::New(is_new.clone(), self.left)
            }
            StepCall::Lend(_, loan) => Answer::Loan(*loan, self.left),
            StepCall::Borrow(_, added) => Answer::Added(*added, self.left),
            StepCall::ClearLoan(_) => Answer::BucketLevel(self.left),
            StepCall::SetPhase(.., is_set) => Answer::PhaseSet(*is_set),
        }
    }

    /// Parses the script's answer.
    pub fn parse(&self, fixture: &Fixture, answer: Value) -> Answer {
        let calls = self.calls(fixture);
        let is_new = |items: Vec<SettleOutcome>| -> Vec<bool> {
            items
                .iter()
                .map(|outcome| matches!(outcome, SettleOutcome::Now | SettleOutcome::Adopted))
                .collect()
        };
        match &self.call {
            StepCall::ReserveBatch(batch, _) => {
                let decided = calls.reserve(batch).parse(answer).unwrap();
                Answer::Verdicts(decided.verdicts, decided.left)
            }
            StepCall::Settle(orders, _) => {
                let outcomes = calls.settle(orders).parse(answer).unwrap();
                Answer::New(is_new(outcomes.items), outcomes.left)
            }
            StepCall::Release(refused, _) => {
                let outcomes = calls.release(refused).parse(answer).unwrap();
                Answer::New(is_new(outcomes.items), outcomes.left)
            }
            StepCall::Lend(want, _) => {
                let (loan, left) = calls.lend(*want).parse(answer).unwrap();
                Answer::Loan(loan, left)
            }
            StepCall::Borrow(loan, _) => {
                let (added, left) = calls.borrow(*loan).parse(answer).unwrap();
                Answer::Added(added, left)
            }
            StepCall::ClearLoan(loan) => {
                Answer::BucketLevel(calls.clear_loan(*loan).parse(answer).unwrap().1)
            }
            StepCall::SetPhase(phase, epoch, _) => {
                Answer::PhaseSet(calls.set_phase(*phase, *epoch).parse(answer).unwrap())
            }
        }
    }
}

/// The script calls of one bucket; loans go to and come from the other bucket.
struct Calls<'a> {
    fixture: &'a Fixture,
    bucket: usize,
}

impl<'a> Calls<'a> {
    fn other(&self) -> BucketNo {
        BucketNo(u16::from(self.bucket == 0))
    }

    fn reserve(&self, batch: &'a [Reservation]) -> ReserveBatch<'a> {
        self.fixture.reserving(self.bucket, batch)
    }

    fn settle(&self, orders: &'a [Order]) -> Settle<'a> {
        let (keys, fence) = (&self.fixture.buckets[self.bucket], &self.fixture.fence);
        Settle { keys, fence, policy: self.fixture.sku.policy, orders }
    }

    fn release(&self, refused: &'a [RefusedRequest]) -> Release<'a> {
        let (keys, fence) = (&self.fixture.buckets[self.bucket], &self.fixture.fence);
        Release { keys, fence, policy: self.fixture.sku.policy, refused }
    }

    fn lend(&self, want: u32) -> Lend<'a> {
        let (keys, fence) = (&self.fixture.buckets[self.bucket], &self.fixture.fence);
        Lend { keys, fence, to: self.other(), want }
    }

    fn borrow(&self, loan: Loan) -> Borrow<'a> {
        let (keys, fence) = (&self.fixture.buckets[self.bucket], &self.fixture.fence);
        Borrow { keys, fence, from: self.other(), loan }
    }

    fn clear_loan(&self, loan: Loan) -> ClearLoan<'a> {
        let (keys, fence) = (&self.fixture.buckets[self.bucket], &self.fixture.fence);
        ClearLoan { keys, fence, to: self.other(), no: loan.no }
    }

    fn set_phase(&self, phase: Phase, epoch: Epoch) -> SetPhase<'a> {
        let (keys, fence) = (&self.fixture.buckets[self.bucket], &self.fixture.fence);
        SetPhase { keys, fence, epoch, phase }
    }
}
