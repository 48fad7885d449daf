//! The door of `reserve.lua`: a batch of reservations, decided in order as one step.

use redis::Value;

use crate::domain::{Epoch, Policy, Refusal, Reservation, Sku, Verdict};

use super::column::{IdColumn, push_plan};
use super::reply::{Reply, record, strange};
use super::{
    BucketFence, BucketKeys, BucketLevel, Error, Script, ScriptCall, begin, codes, intent,
};

/// Where accepted intents wait until the ledger has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxArgs {
    /// Whoever accepted them hands them on; until they are settled they are kept by request id.
    None,
    /// Entries at the end of a list, for a relay: a byte with the number of attempts, which is 0,
    /// and the intents.
    List(EntryLimits),
    /// Entries of a stream, for a relay: the intents in the field `intents`.
    Stream(EntryLimits),
}

/// How accepted intents are cut into entries, and how many entries may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryLimits {
    /// Most intents of one entry, at least 1. The intents of a batch share entries, those of two
    /// batches never.
    pub envelope_max: usize,
    /// Entries that may wait in one bucket; beyond it nothing new is accepted.
    pub entries_max: u64,
}

impl EntryLimits {
    /// Where there is no outbox.
    const UNUSED: Self = Self { envelope_max: 1, entries_max: 0 };
}

/// Decides a batch.
#[derive(Debug, Clone, Copy)]
pub struct ReserveBatch<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Whose it must be.
    pub fence: &'a BucketFence,
    /// What is sold.
    pub sku: &'a Sku,
    /// The opening that the askers know, all the same one.
    pub epoch: Epoch,
    /// Where accepted intents wait.
    pub outbox: OutboxArgs,
    /// Whether something is written in any case, so that `WAIT` also vouches for repeats.
    pub touch: bool,
    /// The reservations, at most [`codes::ITEMS_MAX`].
    pub batch: &'a [Reservation],
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchDecision {
    /// One for each reservation, in order.
    pub verdicts: Vec<Verdict>,
    /// What the bucket has now.
    pub left: BucketLevel,
}

impl ReserveBatch<'_> {
    /// The call.
    #[must_use]
    pub fn call(&self) -> ScriptCall {
        let requests = IdColumn::new(self.keys, self.batch.iter().map(|ask| ask.request.get()));
        let buyers = buyers(self.keys, self.sku.policy, self.batch.iter().map(|ask| ask.buyer));
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
        push_plan(&mut call, &requests, &buyers, self.batch.iter().map(|ask| ask.quantity));
        requests.push_ids(&mut call);
        for ask in self.batch {
            call.push_packed(|bytes| intent::pack_into(&ask.intent(self.sku), bytes));
        }
        buyers.push_ids(&mut call);
        call
    }

    /// Reads the answer.
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
                Some((b'R', known)) => {
                    Some(Verdict::Repeat(record(Script::Reserve, known)?.standing()))
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
        verdict.ok_or_else(|| strange(Script::Reserve, item))
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The column of buyers, where the policy counts their units.
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

/// Adds the keys of the pages that two columns use.
pub(super) fn push_pages(
    keys: &mut Vec<String>,
    names: &BucketKeys,
    requests: &IdColumn,
    buyers: &IdColumn,
) {
    keys.extend(requests.pages().map(|page| names.requests(page)));
    keys.extend(buyers.pages().map(|page| names.buyers(page)));
}
