//! The call of `reserve.lua`: decides a batch of reservations in order, as one atomic step.

use redis::Value;

use crate::domain::{Epoch, Policy, Refusal, Reservation, Sku, Verdict};

use super::column::{IdColumn, push_plan};
use super::reply::{Reply, record, unexpected};
use super::{
    BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin, codes, intent,
};

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
    pub keys: &'a BucketKeys,
    pub fence: &'a BucketFence,
    pub sku: &'a Sku,
    /// The epoch of all reservations.
    pub epoch: Epoch,
    pub outbox: OutboxArgs,
    /// Whether the script always writes something, so that `WAIT` also covers repeats.
    pub touch: bool,
    /// The reservations, at most [`codes::ITEMS_MAX`].
    pub batch: &'a [Reservation],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchDecision {
    /// One for each reservation, in order.
    pub verdicts: Vec<Verdict>,
    pub left: BucketLevel,
}

impl ReserveBatch<'_> {
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let requests = IdColumn::new(
            self.keys,
            self.batch.iter().map(|reservation| reservation.request.get()),
        );
        let buyers = buyers(
            self.keys,
            self.sku.policy,
            self.batch.iter().map(|reservation| reservation.buyer),
        );
        let (kind, outbox, entries) = match self.outbox {
            OutboxArgs::None => ("none", self.keys.unsettled(), EntryLimits::UNUSED),
            OutboxArgs::List(entries) => ("list", self.keys.outbox(), entries),
            OutboxArgs::Stream(entries) => ("stream", self.keys.outbox(), entries),
        };
        let mut keys = vec![self.keys.bucket(), outbox];
        push_pages(&mut keys, self.keys, &requests, &buyers);
        if kind != "none" {
            keys.push(self.keys.dead());
        }
        let mut call = begin(Script::Reserve, &keys, self.fence)
            .arg(self.epoch.0)
            .arg(self.sku.policy.quota().unwrap_or(0))
            .arg(kind)
            .arg(entries.envelope_max.max(1))
            .arg(entries.entries_max)
            .arg(u8::from(self.touch));
        requests.push_counts(&mut call);
        buyers.push_counts(&mut call);
        push_plan(
            &mut call,
            &requests,
            &buyers,
            self.batch.iter().map(|reservation| reservation.quantity),
        );
        requests.push_ids(&mut call);
        for reservation in self.batch {
            call.push_packed(|bytes| intent::pack_into(&reservation.intent(self.sku), bytes));
        }
        buyers.push_ids(&mut call);
        call
    }

    pub fn parse(&self, answer: Value) -> Result<BatchDecision, Error> {
        let mut reply = Reply::open(Script::Reserve, answer)?;
        let left = BucketLevel::read(&mut reply)?;
        let items = reply.items(self.batch.len())?;
        let verdicts = items.map(|item| self.verdict(&item)).collect::<Result<_, _>>()?;
        Ok(BatchDecision { verdicts, left })
    }

    fn verdict(&self, item: &Value) -> Result<Verdict, Error> {
        let verdict = match item {
            Value::Int(codes::RESERVED) => Some(Verdict::Reserved),
            Value::Int(codes::STALE) => Some(Verdict::StaleEpoch),
            Value::Int(codes::SHORT) => Some(Verdict::Short),
            Value::Int(codes::REUSED) => Some(Verdict::Refused(Refusal::RequestIdReused)),
            Value::Int(codes::NOT_STARTED) => Some(Verdict::Refused(Refusal::NotStarted)),
            Value::Int(codes::ENDED) => Some(Verdict::Refused(Refusal::Ended)),
            Value::Int(codes::FULL) => Some(Verdict::Full),
            Value::BulkString(bytes) => match bytes.split_first() {
                Some((b'R', stored)) => {
                    Some(Verdict::Repeat(record(Script::Reserve, stored)?.status()))
                }
                Some((b'L', units)) => {
                    number(units).zip(self.sku.policy.quota()).map(|(owned, limit)| {
                        Verdict::Refused(Refusal::QuotaExceeded { owned, limit })
                    })
                }
                _ => None,
            },
            _ => None,
        };
        verdict.ok_or_else(|| unexpected(Script::Reserve, item))
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The column of buyers; empty unless the policy has a quota.
pub(super) fn buyers(
    keys: &BucketKeys,
    policy: Policy,
    buyers: impl Iterator<Item = crate::domain::BuyerId>,
) -> IdColumn {
    match policy {
        Policy::Quota { .. } => IdColumn::new(keys, buyers.map(crate::domain::BuyerId::get)),
        Policy::OnePerBuyer { .. } | Policy::Unlimited { .. } => IdColumn::default(),
    }
}

/// Adds the keys of the pages that the two columns use.
pub(super) fn push_pages(
    keys: &mut Vec<String>,
    bucket_keys: &BucketKeys,
    requests: &IdColumn,
    buyers: &IdColumn,
) {
    keys.extend(requests.pages().map(|page| bucket_keys.requests(page)));
    keys.extend(buyers.pages().map(|page| bucket_keys.buyers(page)));
}
