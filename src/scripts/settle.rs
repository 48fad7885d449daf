//! The doors of `settle.lua` and `release.lua`: what the ledger did with accepted requests.

use redis::Value;

use crate::domain::book::gives_back;
use crate::domain::{BuyerId, Order, Policy, Refusal, RequestId};

use super::column::{Column, push_plan};
use super::record::{Record, Stage};
use super::reply::{Reply, strange};
use super::reserve::{buyers, push_pages};
use super::{BucketKeys, Call, Error, Fence, Left, Script, begin, codes};

/// Records orders that the ledger has.
#[derive(Debug, Clone, Copy)]
pub struct Settle<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a Fence,
    /// How much a buyer may have.
    pub policy: Policy,
    /// The orders, all of this bucket, at most [`codes::ITEMS_MAX`].
    pub orders: &'a [Order],
}

/// Records refusals of the ledger.
#[derive(Debug, Clone, Copy)]
pub struct Release<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a Fence,
    /// How much a buyer may have.
    pub policy: Policy,
    /// The refusals, all of this bucket, at most [`codes::ITEMS_MAX`].
    pub refused: &'a [Refused],
}

/// A request that the ledger refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The request.
    pub request: RequestId,
    /// Who asked.
    pub buyer: BuyerId,
    /// Units.
    pub quantity: u32,
    /// Why.
    pub reason: Refusal,
    /// When, epoch milliseconds; where the request is known, the time of asking is kept.
    pub recorded_at_ms: i64,
}

/// What became of one order or refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// Recorded now.
    Now,
    /// An order that was never accepted here: recorded now, its units taken.
    Adopted,
    /// Recorded before; nothing was changed.
    Repeat,
    /// A refusal of a request that was never accepted here: recorded now, without any units.
    Unknown,
    /// The other answer was recorded before, and stays (`StatusMonotone`): somebody is wrong.
    Contradicts,
    /// The request was accepted for another buyer or other units; nothing was changed.
    Mismatch,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notes {
    /// One for each item, in order.
    pub items: Vec<Noted>,
    /// What the bucket has now.
    pub left: Left,
}

/// One item of either call: the request, its record from now on, and a number for the script.
type Item = (RequestId, Record, u32);

impl Settle<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let item = |order: &Order| (order.request, Record::ordered(order), order.quantity);
        let items: Vec<Item> = self.orders.iter().map(item).collect();
        call(Script::Settle, self.keys, self.fence, self.policy, &items)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<Notes, Error> {
        parse(Script::Settle, answer, self.orders.len())
    }
}

impl Release<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> Call {
        let items: Vec<Item> = self.refused.iter().map(Refused::item).collect();
        call(Script::Release, self.keys, self.fence, self.policy, &items)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<Notes, Error> {
        parse(Script::Release, answer, self.refused.len())
    }
}

impl Refused {
    fn item(&self) -> Item {
        let record = Record {
            buyer: self.buyer,
            quantity: self.quantity,
            placed_at_ms: self.recorded_at_ms,
            stage: Stage::Failed(self.reason),
        };
        (self.request, record, u32::from(gives_back(&self.reason)))
    }
}

fn call(script: Script, names: &BucketKeys, fence: &Fence, policy: Policy, items: &[Item]) -> Call {
    let requests = Column::new(names, items.iter().map(|(request, ..)| request.get()));
    let buyers = buyers(names, policy, items.iter().map(|(_, record, _)| record.buyer));
    let mut keys = vec![names.bucket(), names.unsettled()];
    push_pages(&mut keys, names, &requests, &buyers);
    let mut call = begin(script, &keys, fence);
    requests.push_counts(&mut call);
    buyers.push_counts(&mut call);
    push_plan(&mut call, &requests, &buyers, items.iter().map(|(.., number)| *number));
    requests.push_ids(&mut call);
    for (_, record, _) in items {
        call.push_packed(|bytes| record.pack_into(bytes));
    }
    buyers.push_ids(&mut call);
    call
}

fn parse(script: Script, answer: Value, size: usize) -> Result<Notes, Error> {
    let mut reply = Reply::open(script, answer)?;
    let left = Left::read(&mut reply)?;
    let items = reply.items(size)?.map(|item| noted(script, &item)).collect::<Result<_, _>>()?;
    Ok(Notes { items, left })
}

fn noted(script: Script, item: &Value) -> Result<Noted, Error> {
    Ok(match (script, item) {
        (Script::Settle, Value::Int(codes::SETTLED)) => Noted::Now,
        (Script::Settle, Value::Int(codes::ADOPTED)) => Noted::Adopted,
        (Script::Settle, Value::Int(codes::IS_FAILED)) => Noted::Contradicts,
        (Script::Release, Value::Int(codes::RELEASED)) => Noted::Now,
        (Script::Release, Value::Int(codes::UNKNOWN)) => Noted::Unknown,
        (Script::Release, Value::Int(codes::IS_ORDERED)) => Noted::Contradicts,
        (_, Value::Int(codes::REPEAT)) => Noted::Repeat,
        (_, Value::Int(codes::MISMATCH)) => Noted::Mismatch,
        _ => return Err(strange(script, item)),
    })
}
