//! The looks of the rescuer: at hands whose owner is gone, and at requests that nobody holds.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use futures_util::StreamExt;

use super::RescuerParts;
use super::strays::{self, Packing};
use crate::actors::outbox_relay::node::lease_of;
use crate::broker::{self, Message, Sent};
use crate::db;
use crate::domain::RequestId;
use crate::lease;
use crate::messages::wire::Malformed;
use crate::outbox::{self, Standing, Worker};
use crate::stock::{self, BucketKey};

/// The lease of which there is one over all processes.
pub(super) const RESCUER: &str = "rescuer";

/// Buckets that are looked at at the same time.
const LOOKS_AT_ONCE: usize = 32;

/// Requests that the ledger is asked about at once.
const ASKED_AT_ONCE: usize = 500;

/// Why a look was not finished.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Lease(#[from] lease::Error),
    #[error(transparent)]
    Outbox(#[from] outbox::Error),
    #[error(transparent)]
    Broker(#[from] broker::Error),
    #[error(transparent)]
    Stock(#[from] stock::Error),
    #[error(transparent)]
    Ledger(#[from] db::Error),
    #[error(transparent)]
    Packing(#[from] Malformed),
    #[error("{num} of the requests that were sent again were not confirmed: {reason}")]
    NotConfirmed { num: usize, reason: String },
}

/// What all outboxes hold.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Entries in line or in hand.
    pub num_waiting: u64,
    /// When the oldest of them was accepted.
    pub oldest_ms: Option<i64>,
    /// Dead letters that nobody has collected.
    pub num_dead: u64,
    /// The first error, after everything else was looked at.
    pub failure: Option<Failure>,
}

impl Survey {
    /// Whether no outbox holds anything, as far as could be seen.
    pub(super) fn is_empty(&self) -> bool {
        self.failure.is_none() && self.num_waiting == 0 && self.num_dead == 0
    }

    fn add(&mut self, standing: &Standing) {
        let in_hand: u64 = standing.in_hand.iter().map(|(_, num)| num).sum();
        self.num_waiting += standing.num_waiting + in_hand;
        self.num_dead += standing.num_dead;
        let oldest = [self.oldest_ms, standing.oldest_waiting_ms, standing.oldest_in_hand_ms];
        self.oldest_ms = oldest.into_iter().flatten().min();
    }
}

/// Gives back the hands of dead nodes in these buckets. `None`: another process does that.
pub(super) async fn rescue(
    parts: &RescuerParts,
    buckets: &[BucketKey],
) -> Result<Option<Survey>, Failure> {
    let RescuerParts { lease, clock, holder, limits, .. } = parts;
    let hold = lease.hold(RESCUER, holder, limits.lease_ttl).await?;
    if !hold.is_held(clock.now()) {
        return Ok(None);
    }
    let mut survey = Survey::default();
    let mut nodes: BTreeMap<String, Vec<(BucketKey, String)>> = BTreeMap::new();
    let looks =
        buckets.iter().map(|bucket| async move { (*bucket, parts.outbox.standing(*bucket).await) });
    let looks = futures_util::stream::iter(looks.collect::<Vec<_>>());
    for (bucket, standing) in looks.buffered(LOOKS_AT_ONCE).collect::<Vec<_>>().await {
        match standing {
            Ok(standing) => {
                survey.add(&standing);
                for (worker, _) in standing.in_hand {
                    let node = Worker::node(&worker).to_owned();
                    nodes.entry(node).or_default().push((bucket, worker));
                }
            }
            Err(error) => {
                survey.failure.get_or_insert(error.into());
            }
        }
    }
    let own = parts.node.name(clock.now());
    for (node, hands) in nodes.iter().filter(|(node, _)| Some(node.as_str()) != own.as_deref()) {
        if let Err(failure) = rescue_node(parts, node, hands).await {
            survey.failure.get_or_insert(failure);
        }
    }
    Ok(Some(survey))
}

/// Gives back everything that is in the hands of a node, if it is dead: if its lease can be had.
/// Then it stays had until it ends by itself, so that the node does not come back meanwhile; should
/// it do so later, the marks of its hands are not those that it knows.
async fn rescue_node(
    parts: &RescuerParts,
    node: &str,
    hands: &[(BucketKey, String)],
) -> Result<(), Failure> {
    let ttl = parts.limits.node_ttl;
    let hold = parts.lease.hold(&lease_of(node), &parts.holder, ttl).await?;
    if !hold.is_held(parts.clock.now()) {
        return Ok(());
    }
    // Crash here [node_taken_not_given_back]: the hands are as they were; the next rescuer has the
    // node's lease when this one's hold of it has ended.
    let mut worst = Ok(());
    let (mut num_entries, mut num_hands) = (0, 0_usize);
    let back = hands.iter().map(|(bucket, worker)| parts.outbox.give_back(*bucket, worker));
    let back = futures_util::stream::iter(back.collect::<Vec<_>>());
    for given in back.buffer_unordered(LOOKS_AT_ONCE).collect::<Vec<_>>().await {
        match given {
            Ok(given) => (num_entries, num_hands) = (num_entries + given, num_hands + 1),
            Err(error) => worst = worst.and(Err(error.into())),
        }
    }
    parts.metrics.rescued(num_entries);
    if num_hands > 0 {
        let workers: BTreeSet<&str> = hands.iter().map(|(_, worker)| worker.as_str()).collect();
        tracing::warn!(node, num_entries, ?workers, "gave back what a dead node had in hand");
    }
    worst
}

/// Sends accepted requests again that nothing holds, and returns their number. To be called when
/// nothing has been under way for a while.
pub(super) async fn send_strays(
    parts: &RescuerParts,
    buckets: &[BucketKey],
) -> Result<usize, Failure> {
    let wall_ms = parts.clock.wall_ms();
    let after_ms = i64::try_from(parts.limits.stray_after.as_millis()).unwrap_or(i64::MAX);
    let packing = Packing {
        envelope_max: parts.limits.envelope_max,
        queues: parts.limits.queues,
        installation: &parts.installation,
        sent_at_ms: wall_ms,
    };
    let (mut messages, mut worst) = (Vec::new(), Ok(()));
    for bucket in buckets.iter().copied() {
        let queued = match parts.stock.unsettled(bucket, wall_ms.saturating_sub(after_ms)).await {
            Ok(queued) => queued,
            // Nobody sells there: there is nothing to find.
            Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => continue,
            // One bucket that cannot be read keeps nobody's order from being sent.
            Err(error) => {
                worst = worst.and(Err(error.into()));
                continue;
            }
        };
        let requests: Vec<RequestId> = queued.iter().map(|intent| intent.request).collect();
        let mut dead = HashSet::new();
        for asked in requests.chunks(ASKED_AT_ONCE) {
            dead.extend(parts.ledger.dead_among(asked.to_vec()).await?);
        }
        messages.extend(strays::messages(bucket, &queued, |id| dead.contains(id), packing)?);
    }
    let num_sent = publish(parts, messages).await?;
    worst.map(|()| num_sent)
}

/// Publishes and returns the number of requests; all of them confirmed.
async fn publish(parts: &RescuerParts, messages: Vec<Message>) -> Result<usize, Failure> {
    if messages.is_empty() {
        return Ok(0);
    }
    let count = |message: &Message| message.body.len() / crate::scripts::intent::INTENT_BYTES;
    let counts: Vec<usize> = messages.iter().map(count).collect();
    let sent = parts.publisher.outgoing(parts.limits.window).publish(messages).await;
    let (mut num_sent, mut num_lost, mut reason) = (0, 0, None);
    for (sent, num) in sent.into_iter().zip(counts) {
        match sent {
            Sent::Confirmed => num_sent += num,
            Sent::Refused { reason: why }
            | Sent::NotSent { reason: why }
            | Sent::Unknown { reason: why } => {
                num_lost += num;
                reason.get_or_insert(why);
            }
        }
    }
    parts.metrics.strays(num_sent);
    if num_sent > 0 {
        tracing::warn!(num_sent, "accepted requests that nothing held were sent again");
    }
    reason.map_or(Ok(num_sent), |reason| Err(Failure::NotConfirmed { num: num_lost, reason }))
}

/// How old something of that time is.
pub(super) fn age(oldest_ms: Option<i64>, wall_ms: i64) -> Duration {
    let ms = oldest_ms.map_or(0, |oldest| wall_ms.saturating_sub(oldest));
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
