//! The steps of a sequence: a script call, the answer of the books, and the script's own answer.

use floodgate::domain::{BucketNo, Epoch, Failure, Loan, Order, OrderIntent, Phase, Verdict};
use floodgate::redis::scripts::load::set_phase;
use floodgate::redis::scripts::loans::{borrow, change_stock, clear_loan, end_withdrawal, lend};
use floodgate::redis::scripts::reserve_settle::{SettleOutcome, release, reserve, settle};
use floodgate::redis::scripts::{BucketKeys, BucketLevel};
use redis::Value;

use crate::lua::fenced_call::FencedCall;
use crate::lua::harness::Fixture;
use crate::support::intents::key;
use crate::support::offers::without_intent;

/// A script call with the answer of the books.
#[derive(Debug)]
pub enum StepCall {
    Reserve(Vec<OrderIntent>, Vec<Verdict>),
    /// Orders, and for each whether its result is new.
    Settle(Vec<Order>, Vec<bool>),
    Release(Vec<Failure>, Vec<bool>),
    Lend(u32, Option<Loan>),
    Borrow(Loan, u32),
    ClearLoan(Loan),
    SetPhase(Phase, Epoch, bool),
    Withdraw(u32, Option<Loan>),
    /// A loan, and whether its units left the stock.
    EndWithdrawal(Loan, bool),
    /// Number of the change, its units, and whether the bucket has it afterwards.
    ChangeStock(i32, u32, bool),
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
    Changed(bool, BucketLevel),
}

impl Step {
    /// Loans go to and come from the other bucket.
    fn other(&self) -> BucketNo {
        BucketNo(u16::from(self.bucket == 0))
    }

    fn keys<'a>(&self, fixture: &'a Fixture) -> &'a BucketKeys {
        &fixture.buckets[self.bucket]
    }

    pub fn call(&self, fixture: &Fixture) -> FencedCall {
        let (keys, sku, other) = (self.keys(fixture), &fixture.sku, self.other());
        match &self.call {
            StepCall::Reserve(batch, _) => {
                fixture.fenced(reserve(keys, sku, fixture.outbox, false, batch, &key()))
            }
            StepCall::Settle(orders, _) => fixture.fenced(settle(keys, sku, orders)),
            StepCall::Release(refused, _) => fixture.fenced(release(keys, sku, refused)),
            StepCall::Lend(want, _) => fixture.fenced(lend(keys, other, *want)),
            StepCall::Borrow(loan, _) => fixture.fenced(borrow(keys, other, *loan)),
            StepCall::ClearLoan(loan) => fixture.fenced(clear_loan(keys, other, loan.no)),
            StepCall::SetPhase(phase, epoch, _) => fixture.fenced(set_phase(keys, *epoch, *phase)),
            StepCall::Withdraw(units, _) => fixture.fenced(lend(keys, BucketNo::LEDGER, *units)),
            StepCall::EndWithdrawal(loan, is_recorded) => {
                fixture.fenced(end_withdrawal(keys, loan.no, *is_recorded))
            }
            StepCall::ChangeStock(no, units, _) => fixture.fenced(change_stock(keys, *no, *units)),
        }
    }

    /// The answer of the books.
    pub fn expected(&self) -> Answer {
        match &self.call {
            StepCall::Reserve(_, verdicts) => {
                let verdicts = verdicts.iter().copied().map(without_intent).collect();
                Answer::Verdicts(verdicts, self.left)
            }
            StepCall::Settle(_, is_new) | StepCall::Release(_, is_new) => {
                Answer::New(is_new.clone(), self.left)
            }
            StepCall::Lend(_, loan) | StepCall::Withdraw(_, loan) => Answer::Loan(*loan, self.left),
            StepCall::Borrow(_, added) => Answer::Added(*added, self.left),
            StepCall::ClearLoan(_) | StepCall::EndWithdrawal(..) => Answer::BucketLevel(self.left),
            StepCall::ChangeStock(.., has_it) => Answer::Changed(*has_it, self.left),
            StepCall::SetPhase(.., is_set) => Answer::PhaseSet(*is_set),
        }
    }

    /// Parses the script's answer.
    pub fn parse(&self, fixture: &Fixture, answer: Value) -> Answer {
        let (keys, sku, other) = (self.keys(fixture), &fixture.sku, self.other());
        let is_new = |items: Vec<SettleOutcome>| -> Vec<bool> {
            items
                .iter()
                .map(|outcome| {
                    use SettleOutcome::{Adopted, Advanced, Now};
                    matches!(outcome, Now | Adopted | Advanced)
                })
                .collect()
        };
        match &self.call {
            StepCall::Reserve(batch, _) => {
                let call = reserve(keys, sku, fixture.outbox, false, batch, &key());
                let (verdicts, left) = call.parse(answer).unwrap();
                Answer::Verdicts(verdicts.into_iter().map(without_intent).collect(), left)
            }
            StepCall::Settle(orders, _) => {
                let (outcomes, left) = settle(keys, sku, orders).parse(answer).unwrap();
                Answer::New(is_new(outcomes), left)
            }
            StepCall::Release(refused, _) => {
                let (outcomes, left) = release(keys, sku, refused).parse(answer).unwrap();
                Answer::New(is_new(outcomes), left)
            }
            StepCall::Lend(want, _) => {
                let (loan, left) = lend(keys, other, *want).parse(answer).unwrap();
                Answer::Loan(loan, left)
            }
            StepCall::Borrow(loan, _) => {
                let (added, left) = borrow(keys, other, *loan).parse(answer).unwrap();
                Answer::Added(added, left)
            }
            StepCall::ClearLoan(loan) => {
                let clear = clear_loan(keys, other, loan.no);
                Answer::BucketLevel(clear.parse(answer).unwrap().1)
            }
            StepCall::SetPhase(phase, epoch, _) => {
                let set_phase = set_phase(keys, *epoch, *phase);
                Answer::PhaseSet(set_phase.parse(answer).unwrap())
            }
            StepCall::Withdraw(units, _) => {
                let (loan, left) = lend(keys, BucketNo::LEDGER, *units).parse(answer).unwrap();
                Answer::Loan(loan, left)
            }
            StepCall::EndWithdrawal(loan, is_recorded) => {
                let end = end_withdrawal(keys, loan.no, *is_recorded);
                Answer::BucketLevel(end.parse(answer).unwrap().1)
            }
            StepCall::ChangeStock(no, units, _) => {
                let (has_it, left) = change_stock(keys, *no, *units).parse(answer).unwrap();
                Answer::Changed(has_it, left)
            }
        }
    }
}
