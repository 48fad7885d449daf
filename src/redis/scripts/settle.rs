//! The calls of `settle.lua` and `release.lua`: record the ledger's decisions of requests.

use redis::Value;

use crate::domain::book::gives_back;
use crate::domain::{BuyerId, Order, Policy, Refusal, RequestId};

use super::column::{IdColumn, push_plan};
use super::record::{RequestRecord, RequestStage};
use super::reply::{Reply, unexpected};
use super::reserve::{buyers, push_pages};
use super::{BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin, codes};

/// Records committed orders.
#[derive(Debug, Clone, Copy)]
pub struct Settle<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub policy: Policy,
    /// The orders, all of this bucket, at most [`codes::ITEMS_MAX`].
    pub orders: &'a [Order],
}

/// Records refusals of the ledger.
#[derive(Debug, Clone, Copy)]
pub struct Release<'a> {
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub policy: Policy,
    /// The refusals, all of this bucket, at most [`codes::ITEMS_MAX`].
    pub refused: &'a [RefusedRequest],
}

/// A request that the ledger refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedRequest {
    pub request: RequestId,
    pub buyer: BuyerId,
    pub quantity: u32,
    pub reason: Refusal,
    /// Epoch milliseconds. A request with a record keeps the time of the request instead.
    pub recorded_at_ms: i64,
}

/// The result of recording one order or refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleOutcome {
    Now,
    /// An order of a request that the bucket never accepted: recorded now, its units taken.
    Adopted,
    /// Recorded before; nothing was changed.
    Repeat,
    /// A refusal of a request that the bucket never accepted: recorded now, without moving units.
    Unknown,
    /// The opposite decision was recorded before, and stays (`StatusMonotone`).
    Contradicts,
    /// The request was accepted for another buyer or other units; nothing was changed.
    Mismatch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettleOutcomes {
    /// One for each item, in order.
    pub items: Vec<SettleOutcome>,
    pub left: BucketLevel,
}

/// One item of either call: the request, its new record, and the number in its plan.
type SettleItem = (RequestId, RequestRecord, u32);

impl Settle<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let item = |order: &Order| (order.request, RequestRecord::ordered(order), order.quantity);
        let items: Vec<SettleItem> = self.orders.iter().map(item).collect();
        call(Script::Settle, self.keys, self.fence, self.policy, &items)
    }

    pub fn parse(&self, answer: Value) -> Result<SettleOutcomes, Error> {
        parse(Script::Settle, answer, self.orders.len())
    }
}

impl Release<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let items: Vec<SettleItem> = self.refused.iter().map(RefusedRequest::item).collect();
        call(Script::Release, self.keys, self.fence, self.policy, &items)
    }

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
    bucket_keys: &BucketKeys,
    fence: &BucketFence,
    policy: Policy,
    items: &[SettleItem],
) -> ScriptCall {
    let requests = IdColumn::new(bucket_keys, items.iter().map(|(request, ..)| request.get()));
    let buyers = buyers(bucket_keys, policy, items.iter().map(|(_, record, _)| record.buyer));
    let mut keys = vec![bucket_keys.bucket(), bucket_keys.unsettled()];
    push_pages(&mut keys, bucket_keys, &requests, &buyers);
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
    let items = reply.items(size)?.map(|item| outcome(script, &item)).collect::<Result<_, _>>()?;
    Ok(SettleOutcomes { items, left })
}

fn outcome(script: Script, item: &Value) -> Result<SettleOutcome, Error> {
    Ok(match (script, item) {
        (Script::Settle, Value::Int(codes::SETTLED)) => SettleOutcome::Now,
        (Script::Settle, Value::Int(codes::ADOPTED)) => SettleOutcome::Adopted,
        (Script::Settle, Value::Int(codes::IS_FAILED)) => SettleOutcome::Contradicts,
        (Script::Release, Value::Int(codes::RELEASED)) => SettleOutcome::Now,
        (Script::Release, Value::Int(codes::UNKNOWN)) => SettleOutcome::Unknown,
        (Script::Release, Value::Int(codes::IS_ORDERED)) => SettleOutcome::Contradicts,
        (_, Value::Int(codes::REPEAT)) => SettleOutcome::Repeat,
        (_, Value::Int(codes::MISMATCH)) => SettleOutcome::Mismatch,
        _ => return Err(unexpected(script, item)),
    })
}
