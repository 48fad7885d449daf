//! The calls of `settle.lua` and `release.lua`: record the ledger's decisions of requests.

use redis::Value;

use crate::domain::book::gives_back;
use crate::domain::{Failure, Order, RequestId, Sku};

use super::column::add_batch;
use super::record::RequestRecord;
use super::reply::Reply;
use super::{BucketKeys, Leveled, Script, ScriptCall, codes, leveled};

/// The result of recording one order or refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleOutcome {
    /// Recorded by this call.
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

/// Records committed orders of one bucket, at most [`codes::ITEMS_MAX`]. Answers one outcome for
/// each, in order.
pub fn settle(
    keys: &BucketKeys,
    sku: &Sku,
    orders: &[Order],
) -> ScriptCall<Leveled<Vec<SettleOutcome>>> {
    let item = |order: &Order| (order.request, RequestRecord::ordered(order), order.quantity);
    call(Script::Settle, keys, sku, orders.iter().map(item).collect())
}

/// Records refusals of the ledger, all of one bucket, at most [`codes::ITEMS_MAX`]. A request with
/// a record keeps its time instead of the time of the refusal. Answers as [`settle`].
pub fn release(
    keys: &BucketKeys,
    sku: &Sku,
    refused: &[Failure],
) -> ScriptCall<Leveled<Vec<SettleOutcome>>> {
    let item = |failure: &Failure| {
        let is_returned = gives_back(&failure.reason);
        (failure.request, RequestRecord::failed(failure), u32::from(is_returned))
    };
    call(Script::Release, keys, sku, refused.iter().map(item).collect())
}

/// An item is a request, its new record, and the number in the plan.
fn call(
    script: Script,
    keys: &BucketKeys,
    sku: &Sku,
    items: Vec<(RequestId, RequestRecord, u32)>,
) -> ScriptCall<Leveled<Vec<SettleOutcome>>> {
    let size = items.len();
    let read = move |reply: &mut Reply| {
        let outcomes = reply.items(size)?.map(|item| {
            Ok(match (script, &item) {
                (Script::Settle, Value::Int(codes::SETTLED)) => SettleOutcome::Now,
                (Script::Settle, Value::Int(codes::ADOPTED)) => SettleOutcome::Adopted,
                (Script::Settle, Value::Int(codes::IS_FAILED)) => SettleOutcome::Contradicts,
                (Script::Release, Value::Int(codes::RELEASED)) => SettleOutcome::Now,
                (Script::Release, Value::Int(codes::UNKNOWN)) => SettleOutcome::Unknown,
                (Script::Release, Value::Int(codes::IS_ORDERED)) => SettleOutcome::Contradicts,
                (_, Value::Int(codes::REPEAT)) => SettleOutcome::Repeat,
                (_, Value::Int(codes::MISMATCH)) => SettleOutcome::Mismatch,
                _ => return Err(reply.unexpected(&item)),
            })
        });
        outcomes.collect()
    };
    add_batch(
        ScriptCall::new(script, keys, leveled(read)).key(&keys.unsettled()),
        keys,
        sku,
        &items,
        |(request, record, number)| (*request, record.buyer, *number),
        |(_, record, _), bytes| record.pack_into(bytes),
    )
}
