//! The call of `reserve.lua`: decides a batch of reservations in order, as one atomic step.

use redis::Value;

use crate::domain::{Epoch, Refusal, Reservation, Sku, Verdict};

use super::column::add_batch;
use super::reply::Reply;
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

/// Decides a batch of reservations of one bucket.
#[derive(Debug, Clone, Copy)]
pub struct ReserveBatch<'a> {
    pub sku: &'a Sku,
    /// The epoch of all reservations.
    pub epoch: Epoch,
    pub outbox: OutboxArgs,
    /// Whether the script always writes something, so that `WAIT` also covers repeats.
    pub touch: bool,
    /// The reservations, at most [`codes::ITEMS_MAX`].
    pub batch: &'a [Reservation],
}

impl ReserveBatch<'_> {
    /// Answers one verdict for each reservation, in order.
    pub fn call(&self, keys: &BucketKeys) -> ScriptCall<Leveled<Vec<Verdict>>> {
        let (kind, outbox, entries) = match self.outbox {
            OutboxArgs::None => ("none", keys.unsettled(), EntryLimits::UNUSED),
            OutboxArgs::List(entries) => ("list", keys.outbox(), entries),
            OutboxArgs::Stream(entries) => ("stream", keys.outbox(), entries),
        };
        let (size, quota) = (self.batch.len(), self.sku.policy.quota());
        let read = move |reply: &mut Reply| {
            let items = reply.items(size)?;
            items.map(|item| verdict(reply, &item, quota)).collect()
        };
        let call = ScriptCall::new(Script::Reserve, keys, leveled(read))
            .key(&outbox)
            .arg(self.epoch.0)
            .arg(quota.unwrap_or(0))
            .arg(kind)
            .arg(entries.envelope_max.max(1))
            .arg(entries.entries_max)
            .arg(u8::from(self.touch));
        let call = add_batch(
            call,
            keys,
            self.sku,
            self.batch,
            |item| (item.request, item.buyer, item.quantity),
            |item, bytes| intent::pack_into(&item.intent(self.sku), bytes),
        );
        if kind == "none" { call } else { call.key(&keys.dead()) }
    }
}

fn verdict(reply: &Reply, item: &Value, quota: Option<u32>) -> Result<Verdict, Error> {
    let verdict = match item {
        Value::Int(codes::RESERVED) => Some(Verdict::Reserved),
        Value::Int(codes::STALE) => Some(Verdict::StaleEpoch),
        Value::Int(codes::SHORT) => Some(Verdict::Short),
        Value::Int(codes::REUSED) => Some(Verdict::Refused(Refusal::RequestIdReused)),
        Value::Int(codes::NOT_STARTED) => Some(Verdict::Refused(Refusal::NotStarted)),
        Value::Int(codes::ENDED) => Some(Verdict::Refused(Refusal::Ended)),
        Value::Int(codes::FULL) => Some(Verdict::Full),
        Value::BulkString(bytes) => match bytes.split_first() {
            Some((b'R', stored)) => Some(Verdict::Repeat(reply.record(stored)?.status())),
            Some((b'L', units)) => {
                let owned = std::str::from_utf8(units).ok().and_then(|text| text.parse().ok());
                owned
                    .zip(quota)
                    .map(|(owned, limit)| Verdict::Refused(Refusal::QuotaExceeded { owned, limit }))
            }
            _ => None,
        },
        _ => None,
    };
    verdict.ok_or_else(|| reply.unexpected(item))
}
