//! The doors of `settle.lua` and `release.lua`: what the ledger did with accepted requests.

use redis::Value;

use crate::domain::book::gives_back;
use crate::domain::{BuyerId, Order, Policy, Refusal, RequestId};

use super::column::{IdColumn, push_plan};
use super::record::{RequestRecord, RequestStage};
use super::reply::{Reply, strange};
use super::reserve::{buyers, push_pages};
use super::{BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin, codes};

/// Records orders that the ledger has.
#[derive(Debug, Clone, Copy)]
pub struct Settle<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
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
    pub fence: &'a BucketFence,
    /// How much a buyer may have.
    pub policy: Policy,
    /// The refusals, all of this bucket, at most [`codes::ITEMS_MAX`].
    pub refused: &'a [RefusedRequest],
}

/// A request that the ledger refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedRequest {
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
pub enum SettleOutcome {
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
pub struct SettleOutcomes {
    /// One for each item, in order.
    pub items: Vec<SettleOutcome>,
    /// What the bucket has now.
    pub left: BucketLevel,
}

/// One item of either call: the request, its record from now on, and a number for the script.
type SettleItem = (RequestId, RequestRecord, u32);

impl Settle<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let item = |order: &Order| (order.request, RequestRecord::ordered(order), order.quantity);
        let items: Vec<SettleItem> = self.orders.iter().map(item).collect();
        call(Script::Settle, self.keys, self.fence, self.policy, &items)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<SettleOutcomes, Error> {
        parse(Script::Settle, answer, self.orders.len())
    }
}

impl Release<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let items: Vec<SettleItem> = self.refused.iter().map(RefusedRequest::item).collect();
        call(Script::Release, self.keys, self.fence, self.policy, &items)
    }

    /// Reads the answer.
    pub fn parse(&self, answer: Value) -> Result<SettleOutcomes, Error> {
        parse(Script::Release, answer, self.refused.len())
    }
}

impl RefusedRequest {
    fn item(&self) -> SettleItem {
        let record = RequestRecord {
            buyer: self.buyer,
            quantity: self.quantity,
            placed_at_ms: self.recorded_at_ms,
            stage: RequestStage::Failed(self.reason),
        };
        (self.request, record, u32::from(gives_back(&self.reason)))
    }
}

fn call(
    script: Script,
    names: &BucketKeys,
    fence: &BucketFence,
    policy: Policy,
    items: &[SettleItem],
) -> ScriptCall {
    let requests = IdColumn::new(names, items.iter().map(|(request, ..)| request.get()));
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

fn parse(script: Script, answer: Value, size: usize) -> Result<SettleOutcomes, Error> {
    let mut reply = Reply::open(script, answer)?;
    let left = BucketLevel::read(&mut reply)?;
    let items = reply.items(size)?.map(|item| noted(script, &item)).collect::<Result<_, _>>()?;
    Ok(SettleOutcomes { items, left })
}

fn noted(script: Script, item: &Value) -> Result<SettleOutcome, Error> {
    Ok(match (script, item) {
        (Script::Settle, Value::Int(codes::SETTLED)) => SettleOutcome::Now,
        (Script::Settle, Value::Int(codes::ADOPTED)) => SettleOutcome::Adopted,
        (Script::Settle, Value::Int(codes::IS_FAILED)) => SettleOutcome::Contradicts,
        (Script::Release, Value::Int(codes::RELEASED)) => SettleOutcome::Now,
        (Script::Release, Value::Int(codes::UNKNOWN)) => SettleOutcome::Unknown,
        (Script::Release, Value::Int(codes::IS_ORDERED)) => SettleOutcome::Contradicts,
        (_, Value::Int(codes::REPEAT)) => SettleOutcome::Repeat,
        (_, Value::Int(codes::MISMATCH)) => SettleOutcome::Mismatch,
        _ => return Err(strange(script, item)),
    })
}
