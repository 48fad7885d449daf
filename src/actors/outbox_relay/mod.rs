//! Flow step 5/12: outbox -> broker.
//!
//! One worker of many: claims entries from every bucket, publishes them on a channel of its own,
//! waits for the confirmations, and reports the fate of each entry. It does one thing at a time;
//! speed comes from large rounds and from several workers. What to do next is decided in [`rounds`]
//! and [`fates`].
//!
//! Owns: a channel of the broker, and the entries in its hand. Limits: `relay.claim_max` entries of
//! a bucket in hand, `relay.confirm_window` messages unconfirmed. On error: a hand whose state is
//! not known is read again before anything else; while the broker is away, everything stays in
//! hand and nothing more is claimed. On death: the next life of the same place reads what was in
//! hand and publishes it; when none comes, the orphan rescuer gives it back. May repeat:
//! publishing; the ledger makes one order of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Context, Handler, SpawnHandle};
use futures_util::StreamExt;
use tokio::sync::oneshot;

use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use crate::broker::{Message, Outgoing, Publisher, Route};
use crate::catalog::Catalog;
use crate::clock::{SharedClock, now_monotonic};
use crate::config::RelaySettings;
use crate::domain::Phase;
use crate::messages::{Quiet, Stop, wire};
use crate::metrics::Metrics;
use crate::outbox::{self, Entry, Outbox, Worker};
use crate::stock::BucketKey;

mod counts;
pub mod crew;
pub mod door;
pub mod fates;
pub mod node;
pub mod node_lease;
mod reporting;
mod resting;
pub mod rounds;
#[cfg(test)]
mod rounds_model_tests;
#[cfg(test)]
mod rounds_tests;
mod trouble;

pub use crew::RelayCrew;
pub use door::RelayDoor;
pub use node::Node;
pub use node_lease::{NodeLease, NodeParts};

use counts::HandCount;
use rounds::{Interest, Limits, Rounds};

/// Hands that are read, or given back, at the same time.
const LOOKS_AT_ONCE: usize = 32;

/// How often new sales are looked for; a poke makes a bucket known at once.
const CATALOG_EVERY: Duration = Duration::from_millis(100);

/// What relays work with; the same for every worker of a process.
#[derive(Clone)]
pub struct RelayParts {
    /// Where entries wait.
    pub outbox: Arc<dyn Outbox>,
    /// Where messages go.
    pub publisher: Arc<dyn Publisher>,
    /// Which buckets there are.
    pub catalog: Arc<Catalog>,
    /// The name under which this process works.
    pub node: Arc<Node>,
    /// Who wakes the workers.
    pub door: RelayDoor,
    /// Whose orders these are, as messages say it.
    pub installation: Arc<str>,
    /// Order queues of the broker.
    pub queues: u16,
    /// First wait after something failed, and the longest.
    pub retry: (Duration, Duration),
    /// Limits and waits.
    pub settings: RelaySettings,
    /// The time of leases and messages; waits are slept, in real time.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

impl RelayParts {
    fn limits(&self) -> Limits {
        let settings = &self.settings;
        Limits {
            claim_max: settings.claim_max,
            window: settings.confirm_window,
            attempts_max: settings.attempts_max,
            workers: settings.workers,
            poll_min: Duration::from_millis(settings.poll_min_ms),
            poll_max: Duration::from_millis(settings.poll_max_ms),
            retry_min: self.retry.0,
            retry_max: self.retry.1,
        }
    }

    fn seal(&self, bucket: BucketKey, entry: &Entry, sent_at_ms: i64) -> Result<Message, String> {
        let headers = wire::headers(&entry.bytes, &self.installation, sent_at_ms);
        Ok(Message {
            route: Route::orders_of(bucket, self.queues),
            headers: headers.map_err(|malformed| malformed.to_string())?,
            body: entry.bytes.clone(),
        })
    }
}

/// One relay worker.
pub struct OutboxRelay {
    life: Life,
    parts: RelayParts,
    /// Which worker of the process.
    place: usize,
    /// Under which name it works, while it has one.
    worker: Option<Worker>,
    rounds: Rounds,
    /// With the round that publishes, while one does.
    outgoing: Option<Box<dyn Outgoing>>,
    /// When sales are looked for.
    watch_at: Instant,
    waiting: Option<SpawnHandle>,
    in_hand: HandCount,
    /// The last error of each bucket's outbox, until it answers again.
    trouble: HashMap<BucketKey, String>,
    /// Whether a queue answered for no message of the last round.
    is_in_silence: bool,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
    has_left: bool,
}

impl OutboxRelay {
    /// A worker that has looked at nothing.
    #[must_use]
    pub fn new(life: Life, parts: RelayParts, place: usize) -> Self {
        let outgoing = Some(parts.publisher.outgoing(parts.settings.confirm_window));
        Self {
            life,
            place,
            worker: None,
            rounds: Rounds::new(parts.limits()),
            outgoing,
            watch_at: now_monotonic(),
            waiting: None,
            in_hand: HandCount::new(&parts.metrics),
            trouble: HashMap::new(),
            is_in_silence: false,
            quiet: Vec::new(),
            is_quiet: false,
            has_left: false,
            parts,
        }
    }

    /// Begins the next round.
    fn go_on(&mut self, ctx: &mut Context<Self>) {
        let now = now_monotonic();
        if self.is_quiet {
            self.leave(ctx);
            return;
        }
        let Some(worker) = self.named(now) else {
            self.wait(ctx, now);
            return;
        };
        self.watch(now);
        let doubtful = self.rounds.to_look(now);
        if !doubtful.is_empty() {
            self.look(ctx, worker, doubtful);
            return;
        }
        let asked = if !self.rounds.is_broker_away() && self.is_broker_up() {
            self.rounds.to_claim(now)
        } else {
            Vec::new()
        };
        if asked.is_empty() {
            self.publish(ctx);
        } else {
            self.claim(ctx, worker, asked);
        }
    }

    /// Under which name to work. A new one begins with nothing: the hands of the old one are
    /// others'.
    fn named(&mut self, now: Instant) -> Option<Worker> {
        let name = self.parts.node.name(self.parts.clock.now());
        let is_same = |worker: &Worker| name.as_deref() == Some(Worker::node(&worker.name));
        if !self.worker.as_ref().is_some_and(is_same) {
            self.worker = name.map(|name| self.parts.node.worker(&name, self.place));
            self.rounds = Rounds::new(self.parts.limits());
            self.in_hand.set(0);
            self.watch_at = now;
        }
        self.worker.clone()
    }

    /// Serves every bucket of every sale; those of closed ones rarely, because only work that was
    /// given back can appear there.
    fn watch(&mut self, now: Instant) {
        if now >= self.watch_at {
            self.watch_at = now + CATALOG_EVERY;
            self.parts.metrics.outbox_vanished.set(self.parts.outbox.num_vanished());
            let wall_ms = self.parts.clock.wall_ms();
            for listed in self.parts.catalog.all() {
                let interest = match listed.sale.phase {
                    Phase::Open | Phase::Paused => Interest::Selling,
                    _ if listed.sale.is_forgotten(wall_ms) => Interest::Forgotten,
                    _ => Interest::Resting,
                };
                for sku in &listed.skus {
                    for key in BucketKey::all_of(sku) {
                        self.rounds.watch(key, interest, now);
                    }
                }
            }
        }
        for bucket in self.parts.door.take() {
            self.rounds.poke(bucket, now);
        }
    }

    /// Whether the hands are still this worker's.
    fn is_still_named(&self) -> bool {
        let name = self.parts.node.name(self.parts.clock.now());
        name.is_some() && name.as_deref() == self.worker.as_ref().map(|w| Worker::node(&w.name))
    }

    /// Reads hands: what an earlier life left, and what is in doubt.
    fn look(&mut self, ctx: &mut Context<Self>, worker: Worker, buckets: Vec<BucketKey>) {
        let outbox = Arc::clone(&self.parts.outbox);
        let work = async move {
            let looks = buckets.into_iter().map(|bucket| {
                let (outbox, worker) = (&outbox, &worker);
                async move { (bucket, outbox.in_hand(bucket, worker).await) }
            });
            let looks = futures_util::stream::iter(looks.collect::<Vec<_>>());
            looks.buffer_unordered(LOOKS_AT_ONCE).collect::<Vec<_>>().await
        };
        spawn_step(self, ctx, work, |relay, ctx, looked| {
            if relay.must_end(ctx, &looked) {
                return;
            }
            let now = now_monotonic();
            for (bucket, hand) in looked {
                match hand {
                    Ok(hand) => relay.rounds.looked(hand, now),
                    Err(_) => relay.rounds.failed(bucket, true, now),
                }
            }
            relay.go_on(ctx);
        });
    }

    fn claim(&mut self, ctx: &mut Context<Self>, worker: Worker, asked: Vec<(BucketKey, usize)>) {
        let outbox = Arc::clone(&self.parts.outbox);
        let work = async move {
            let claimed = outbox.claim(&worker, &asked).await;
            (asked, claimed)
        };
        spawn_step(self, ctx, work, |relay, ctx, (asked, claimed)| {
            // Crash here [claimed_not_published]: the entries are in this worker's hand; its next
            // life reads it, or the orphan rescuer gives it back.
            if relay.must_end(ctx, &claimed) {
                return;
            }
            let now = now_monotonic();
            let mut claimed: HashMap<_, _> = claimed.into_iter().collect();
            for (bucket, max) in asked {
                match claimed.remove(&bucket).unwrap_or(Ok(Vec::new())) {
                    Ok(entries) => {
                        if relay.rounds.claimed(bucket, max, entries, now) {
                            // There may be more: another worker can help.
                            relay.parts.door.poke(bucket);
                        }
                    }
                    Err(error) => {
                        let in_doubt = !matches!(error, outbox::Error::Unavailable { .. });
                        relay.rounds.failed(bucket, in_doubt, now);
                    }
                }
            }
            relay.publish(ctx);
        });
    }

    /// Publishes what is due; while the broker is away, also nothing, to hear how it is.
    fn publish(&mut self, ctx: &mut Context<Self>) {
        let now = now_monotonic();
        self.in_hand.set(self.rounds.num_in_hand());
        if self.is_quiet || !self.is_still_named() {
            self.go_on(ctx);
            return;
        }
        if !self.rounds.is_broker_due(now) {
            self.wait(ctx, now);
            return;
        }
        let sent_at_ms = self.parts.clock.wall_ms();
        let seal = |bucket, entry: &Entry| self.parts.seal(bucket, entry, sent_at_ms);
        let (messages, plans) = self.rounds.pack(now, seal);
        if plans.is_empty() && self.is_broker_up() && !self.rounds.is_broker_away() {
            self.wait(ctx, now);
            return;
        }
        let Some(mut outgoing) = self.outgoing.take() else {
            // One round at a time: whoever has it brings it back.
            end(self, ctx, ExitReason::Failed("a round began within another".to_owned()));
            return;
        };
        let work = async move {
            let sent = outgoing.publish(messages).await;
            (outgoing, sent)
        };
        spawn_step(self, ctx, work, move |relay, ctx, (outgoing, sent)| {
            relay.outgoing = Some(outgoing);
            let took = now_monotonic().duration_since(now);
            relay.published(ctx, plans, sent, took);
        });
    }
}

impl Living for OutboxRelay {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for OutboxRelay {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, Self::go_on);
    }
}

impl Handler<Quiet> for OutboxRelay {
    type Result = ();

    /// Finishes the round, gives back what is in hand, and says so.
    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |relay, ctx| {
            relay.quiet.push(quiet.done);
            relay.quiet(ctx);
        });
    }
}

impl Handler<Stop> for OutboxRelay {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
