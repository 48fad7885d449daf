//! The calls that decide requests, a batch at a time: `reserve.lua` by the bucket, `settle.lua` and
//! `release.lua` as the ledger has decided.

use redis::Value;

use crate::domain::book::gives_back;
use crate::domain::{
    Epoch, Failure, Order, OrderIntent, Refusal, RequestId, RequestRecord, Sku, Verdict,
};

use super::call::{Reply, number};
use super::intent::IntentKey;
use super::{BucketKeys, Error, Leveled, Script, ScriptCall, codes, intent, leveled};

/// Where accepted intents are stored until the ledger has decided them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxArgs {
    /// No outbox: the accepting process submits the intents; they are stored by request id until
    /// they are settled.
    None,
    /// Entries at the end of a list, for a relay: the intents.
    List(EntryLimits),
    /// Entries of a stream, for a relay: the intents in the field `intents`.
    Stream(EntryLimits),
}

/// Limits of an outbox's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryLimits {
    /// Most intents of one entry, at least 1. Intents of one batch share entries; intents of two
    /// batches never do.
    pub envelope_max: usize,
    /// Most entries of one bucket; beyond it new requests are refused.
    pub entries_max: u64,
}

impl EntryLimits {
    const UNUSED: Self = Self { envelope_max: 1, entries_max: 0 };
}

/// Decides a batch of intents of one bucket and one epoch, at most [`codes::ITEMS_MAX`], in
/// order and as one atomic step. With `touch` the script always writes something, so that `WAIT`
/// also covers repeats. `key` signs the accepted intents. Answers one verdict for each intent,
/// in order.
pub fn reserve(
    keys: &BucketKeys,
    sku: &Sku,
    outbox: OutboxArgs,
    touch: bool,
    batch: &[OrderIntent],
    key: &IntentKey,
) -> ScriptCall<Leveled<Vec<Verdict>>> {
    let (kind, entries_key, entries) = match outbox {
        OutboxArgs::None => ("none", keys.unsettled(), EntryLimits::UNUSED),
        OutboxArgs::List(entries) => ("list", keys.outbox(), entries),
        OutboxArgs::Stream(entries) => ("stream", keys.outbox(), entries),
    };
    let (size, quota) = (batch.len(), batch.first().and_then(|first| first.quota));
    let reader = key.clone();
    let read = move |reply: &mut Reply| {
        let items = reply.items(size)?;
        items.map(|item| verdict(reply, &item, quota, &reader)).collect()
    };
    let epoch = batch.first().map_or(Epoch(0), |first| first.epoch);
    ScriptCall::new(Script::Reserve, keys, leveled(read))
        .key(&entries_key)
        .arg(epoch.0)
        .arg(quota.unwrap_or(0))
        .arg(kind)
        .arg(entries.envelope_max.max(1))
        .arg(entries.entries_max)
        .arg(u8::from(touch))
        .batch(
            sku,
            batch,
            |item| (item.request, item.buyer, item.quantity),
            |item, bytes| intent::pack_into(item, key, bytes),
        )
}

fn verdict(
    reply: &Reply,
    item: &Value,
    quota: Option<u32>,
    key: &IntentKey,
) -> Result<Verdict, Error> {
    let verdict = match item {
        Value::Int(codes::RESERVED) => Some(Verdict::Reserved),
        Value::Int(codes::STALE) => Some(Verdict::StaleEpoch),
        Value::Int(codes::SHORT) => Some(Verdict::Short),
        Value::Int(codes::REUSED) => Some(Verdict::Refused(Refusal::RequestIdReused)),
        Value::Int(codes::NOT_STARTED) => Some(Verdict::Refused(Refusal::NotStarted)),
        Value::Int(codes::ENDED) => Some(Verdict::Refused(Refusal::Ended)),
        Value::Int(codes::FULL) => Some(Verdict::Full),
        Value::BulkString(bytes) => match bytes.split_first() {
            Some((b'R', stored)) => Some(reply.record(stored)?.verdict(None)),
            Some((b'Q', kept)) => {
                let intent = intent::unpack(kept).ok().filter(|_| key.has_signed(kept));
                Some(Verdict::Queued { intent })
            }
            Some((b'L', units)) => number(units)
                .zip(quota)
                .map(|(owned, limit)| Verdict::Refused(Refusal::QuotaExceeded { owned, limit })),
            _ => None,
        },
        _ => None,
    };
    verdict.ok_or_else(|| reply.unexpected(item))
}

/// The result of recording one order or refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleOutcome {
    /// Recorded by this call.
    Now,
    /// An order of a request that the bucket never accepted: recorded now, its units taken.
    Adopted,
    /// A later change of the order: it replaces the record, and returns the units that the order
    /// no longer holds.
    Advanced,
    /// Recorded before; nothing was changed.
    Repeat,
    /// A refusal of a request that the bucket never accepted: recorded now, without moving units.
    Unknown,
    /// The opposite decision was recorded before, and stays (`StatusMonotone`).
    Contradicts,
    /// The request was accepted for another buyer or other units; nothing was changed.
    Mismatch,
}

/// Records committed orders of one bucket and later changes of them, at most [`codes::ITEMS_MAX`].
/// Answers one outcome for each, in order.
pub fn settle(
    keys: &BucketKeys,
    sku: &Sku,
    orders: &[Order],
) -> ScriptCall<Leveled<Vec<SettleOutcome>>> {
    let item = |order: &Order| {
        let counted = if order.counts_for_limit { order.quantity } else { 0 };
        (order.request, RequestRecord::ordered(order), counted)
    };
    record(Script::Settle, keys, sku, orders.iter().map(item).collect())
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
    record(Script::Release, keys, sku, refused.iter().map(item).collect())
}

/// An item is a request, its new record, and the number in the plan.
fn record(
    script: Script,
    keys: &BucketKeys,
    sku: &Sku,
    items: Vec<(RequestId, RequestRecord, u32)>,
) -> ScriptCall<Leveled<Vec<SettleOutcome>>> {
    let size = items.len();
    let read = move |reply: &mut Reply| {
        let outcomes = reply.items(size)?.map(|item| {
            Ok(match item {
                Value::Int(codes::SETTLED | codes::RELEASED) => SettleOutcome::Now,
                Value::Int(codes::ADOPTED) => SettleOutcome::Adopted,
                Value::Int(codes::ADVANCED) => SettleOutcome::Advanced,
                Value::Int(codes::REPEAT) => SettleOutcome::Repeat,
                Value::Int(codes::UNKNOWN) => SettleOutcome::Unknown,
                Value::Int(codes::IS_FAILED | codes::IS_ORDERED) => SettleOutcome::Contradicts,
                Value::Int(codes::MISMATCH) => SettleOutcome::Mismatch,
                _ => return Err(reply.unexpected(&item)),
            })
        });
        outcomes.collect()
    };
    ScriptCall::new(script, keys, leveled(read)).key(&keys.unsettled()).batch(
        sku,
        &items,
        |(request, record, number)| (*request, record.buyer, *number),
        |(_, record, _), bytes| record.pack_into(bytes),
    )
}
