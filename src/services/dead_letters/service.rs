//! What operators do with dead letters: look, replay, set aside, discard.
//!
//! Replay is publish, confirm, then mark, never the other way round. What is done twice is
//! harmless: a request becomes at most one order. Discard is the other end: a recorded failure for
//! each request without an order, and the ledger's keys see to it that there is one of the two.
//!
//! On death: a letter that was published and not marked is still open; the next replay publishes it
//! again, or finds that its requests have ended.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Mutex;

use super::replay::{self, ReplayableLetter};
use crate::broker::{Message, PublishChannel, PublishOutcome};
use crate::db::{self, Ledger};
use crate::domain::dead_letter::{TEXT_CHARS_MAX, clip};
use crate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterNo, DeadLetterState, DeadLetterTransition, Failure,
    OrderIntent, Refusal, RequestId,
};
use crate::messages::envelope;
use crate::runtime::clock::SharedClock;
use crate::stock::{BucketKey, Stock};
use crate::tier::Pipeline;

/// Why a verb was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// No letter has this number.
    #[error("no dead letter has the number {0}")]
    Unknown(DeadLetterNo),
    /// It will never be an order by itself.
    #[error("it cannot be replayed: {why}")]
    NotReplayable {
        /// Why.
        why: String,
    },
    /// It is on its way again: there is nothing to set aside.
    #[error("it was replayed: it is on its way, or has ended")]
    Replayed,
    /// Somebody else changed it, or it died again, while this was done.
    #[error("it changed meanwhile: look at it, then try again")]
    Changed,
    /// This process has no broker.
    #[error("this process has no broker: letters are replayed in tier pipeline only")]
    NoBroker,
    /// The broker did not take it; it is as it was.
    #[error("the broker did not take it: {reason}")]
    NotTaken {
        /// What it said.
        reason: String,
    },
    /// The broker did not say whether it took it; it is as it was, and replaying it again is
    /// harmless.
    #[error("the broker did not confirm it: {reason}")]
    NotConfirmed {
        /// What went wrong.
        reason: String,
    },
    /// There is nothing to give up.
    #[error("every request in it is an order; replay marks it as resolved")]
    Ordered,
    /// Its requests are not to be read.
    #[error("it cannot be discarded: its requests cannot be read")]
    Unreadable,
    /// The ledger did not answer.
    #[error("the ledger is not available")]
    Ledger(#[from] db::Error),
}

/// What a verb came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VerbOutcome {
    /// Replayed: it is in an order queue, on disk.
    Published,
    /// Replayed, and nothing was published: all its requests had become orders or recorded failures
    /// meanwhile.
    Resolved,
    /// It is set aside now.
    Parked,
    /// Its requests are failures now, except those that are orders.
    Discarded,
    /// Nothing: it was so already, and has not died since.
    Already,
}

/// What a verb came to, and the letter afterwards.
pub type VerbResult = Result<(VerbOutcome, DeadLetter), DeadLetterError>;

struct Broker {
    installation: Arc<str>,
    queues: u16,
    /// One replay after the other, on one channel.
    outgoing: Mutex<Box<dyn PublishChannel>>,
}

/// The operators' verbs on dead letters. Cheap to clone.
#[derive(Clone)]
pub struct DeadLetterService {
    ledger: Arc<dyn Ledger>,
    stock: Arc<dyn Stock>,
    clock: SharedClock,
    broker: Option<Arc<Broker>>,
}

impl DeadLetterService {
    /// The desk of a process; without a pipeline nothing can be replayed. `queues` is the number
    /// of order queues.
    #[must_use]
    pub fn new(
        ledger: Arc<dyn Ledger>,
        stock: Arc<dyn Stock>,
        clock: SharedClock,
        pipeline: Option<&Pipeline>,
        queues: u16,
    ) -> Self {
        let broker = pipeline.map(|pipeline| {
            Arc::new(Broker {
                installation: Arc::clone(&pipeline.installation),
                queues,
                outgoing: Mutex::new(pipeline.publisher.outgoing(1)),
            })
        });
        Self { ledger, stock, clock, broker }
    }

    /// One letter with everything that is kept of it.
    pub async fn show(&self, no: DeadLetterNo) -> Result<DeadLetterContent, DeadLetterError> {
        self.ledger.dead_letter(no).await?.ok_or(DeadLetterError::Unknown(no))
    }

    /// What is in a letter, and whether it can be replayed; `None` without a broker.
    #[must_use]
    pub fn open(&self, letter: &DeadLetterContent) -> Option<Result<ReplayableLetter, String>> {
        let broker = self.broker.as_ref()?;
        let now_ms = self.clock.wall_ms();
        let ready = replay::ready(letter, &broker.installation, broker.queues, now_ms);
        Some(ready.map_err(|why| why.what))
    }

    /// Puts a letter on its way again. The letter as it is afterwards, and what was done.
    ///
    /// # Errors
    /// [`DeadLetterError`]; unless it says otherwise, the letter is as it was.
    pub async fn replay(&self, no: DeadLetterNo) -> VerbResult {
        let whole = self.show(no).await?;
        match whole.letter.state {
            DeadLetterState::Replayed => return Ok((VerbOutcome::Already, whole.letter)),
            DeadLetterState::Discarded => return Err(DeadLetterError::Changed),
            DeadLetterState::Open | DeadLetterState::Parked => {}
        }
        let broker = self.broker.as_ref().ok_or(DeadLetterError::NoBroker)?;
        let now_ms = self.clock.wall_ms();
        let ready = replay::ready(&whole, &broker.installation, broker.queues, now_ms)
            .map_err(|why| DeadLetterError::NotReplayable { why: why.what })?;
        let done = if self.have_ended(&ready.intents).await? {
            VerbOutcome::Resolved
        } else {
            publish(broker, ready.message).await?;
            VerbOutcome::Published
        };
        // Crash here [replayed_not_marked]: the letter is in an order queue and still open; the
        // next replay publishes it again or finds that its requests have ended.
        if !self.turn(&whole.letter, DeadLetterState::Replayed, None).await? {
            // It died again already, or another operator was here: the ledger says which.
            tracing::info!(letter = no.0, "a dead letter changed while it was replayed");
        }
        Ok((done, self.show(no).await?.letter))
    }

    /// Sets a letter aside for good; its requests count as ended. It can still be replayed.
    ///
    /// # Errors
    /// [`DeadLetterError`]; the letter is as it was.
    pub async fn park(&self, no: DeadLetterNo, note: Option<&str>) -> VerbResult {
        let seen = self.show(no).await?.letter;
        let note = note.map(|note| clip(note, TEXT_CHARS_MAX));
        match seen.state {
            DeadLetterState::Replayed => return Err(DeadLetterError::Replayed),
            DeadLetterState::Discarded => return Err(DeadLetterError::Changed),
            DeadLetterState::Parked if note.is_none() || note == seen.note => {
                return Ok((VerbOutcome::Already, seen));
            }
            DeadLetterState::Parked | DeadLetterState::Open => {}
        }
        if !self.turn(&seen, DeadLetterState::Parked, note).await? {
            return Err(DeadLetterError::Changed);
        }
        Ok((VerbOutcome::Parked, self.show(no).await?.letter))
    }

    /// Gives a letter up for good: each of its requests that is no order becomes a recorded
    /// failure, its units come back, once, and its buyer reads `failed`. A repeat enters the
    /// failures in the stock again, where that did not take them.
    ///
    /// # Errors
    /// [`DeadLetterError`]; after `Changed` the failures may be on record, and a repeat goes on.
    pub async fn discard(&self, no: DeadLetterNo, reason: Option<&str>) -> VerbResult {
        let whole = self.show(no).await?;
        if whole.letter.state == DeadLetterState::Replayed {
            return Err(DeadLetterError::Replayed);
        }
        let failed = self.fail(&requests_of(&whole)?).await?;
        // Crash here [failed_not_discarded]: the failures are on record and the letter is still
        // open; whoever submits one of its requests is refused, and a repeat goes on here.
        self.release(&failed).await;
        if whole.letter.state == DeadLetterState::Discarded {
            return Ok((VerbOutcome::Already, whole.letter));
        }
        let note = reason.map(|reason| clip(reason, TEXT_CHARS_MAX));
        if !self.turn(&whole.letter, DeadLetterState::Discarded, note).await? {
            return Err(DeadLetterError::Changed);
        }
        tracing::info!(letter = no.0, requests = failed.len(), reason, "dead letter: discarded");
        Ok((VerbOutcome::Discarded, self.show(no).await?.letter))
    }

    /// Records failures, and returns those that stand.
    async fn fail(
        &self,
        intents: &[OrderIntent],
    ) -> Result<Vec<(BucketKey, Failure)>, DeadLetterError> {
        let recorded_at_ms = self.clock.wall_ms();
        let failure_of = |intent: &OrderIntent| Failure {
            request: intent.request,
            sku: intent.sku,
            buyer: intent.buyer,
            quantity: intent.quantity,
            reason: Refusal::Discarded,
            recorded_at_ms,
        };
        self.ledger.record_failures(intents.iter().map(failure_of).collect()).await?;
        // What became an order before has no failure, and an earlier failure keeps its reason.
        let seen = self.ledger.examine(intents.to_vec()).await?;
        let standing = |intent: &OrderIntent| {
            let reason = *seen.failures.get(&intent.request)?;
            let key = BucketKey { sku: intent.sku, bucket: intent.bucket };
            Some((key, Failure { reason, ..failure_of(intent) }))
        };
        let failed: Vec<_> = intents.iter().filter_map(standing).collect();
        if failed.is_empty() && !intents.is_empty() {
            return Err(DeadLetterError::Ordered);
        }
        Ok(failed)
    }

    /// Enters failures in the stock, once: a bucket that does not take them now is brought in line
    /// with the ledger later, as after any refusal.
    async fn release(&self, failed: &[(BucketKey, Failure)]) {
        for (key, failure) in failed {
            if let Err(error) = self.stock.release(*key, vec![*failure]).await {
                let (request, error) = (failure.request.get(), &error as &dyn std::error::Error);
                tracing::warn!(request, error, "failure recorded, result not written to the stock");
            }
        }
    }

    async fn turn(
        &self,
        seen: &DeadLetter,
        to: DeadLetterState,
        note: Option<String>,
    ) -> Result<bool, DeadLetterError> {
        let (no, from, arrivals) = (seen.no, seen.state, seen.arrivals);
        let at_ms = self.clock.wall_ms();
        let turn = DeadLetterTransition { no, from, arrivals, to, note, at_ms };
        Ok(self.ledger.turn_dead_letter(turn).await?)
    }

    /// Whether each of these requests is an order or a recorded failure.
    async fn have_ended(&self, intents: &[OrderIntent]) -> Result<bool, DeadLetterError> {
        let seen = self.ledger.examine(intents.to_vec()).await?;
        Ok(intents.iter().all(|intent| {
            let request = &intent.request;
            seen.orders.contains_key(request) || seen.failures.contains_key(request)
        }))
    }
}

/// The requests that end in a letter.
fn requests_of(whole: &DeadLetterContent) -> Result<Vec<OrderIntent>, DeadLetterError> {
    let mut intents = envelope::intents_in(&whole.body);
    intents.retain(|intent| whole.requests.contains(&intent.request));
    let is_known = |request: &RequestId| intents.iter().any(|intent| intent.request == *request);
    if whole.requests.iter().all(is_known) { Ok(intents) } else { Err(DeadLetterError::Unreadable) }
}

async fn publish(broker: &Broker, message: Message) -> Result<(), DeadLetterError> {
    let sent = broker.outgoing.lock().await.publish(vec![message]).await;
    match sent.into_iter().next() {
        Some(PublishOutcome::Confirmed) => Ok(()),
        Some(PublishOutcome::Refused { reason } | PublishOutcome::NotSent { reason }) => {
            Err(DeadLetterError::NotTaken { reason })
        }
        Some(PublishOutcome::Unknown { reason }) => Err(DeadLetterError::NotConfirmed { reason }),
        None => Err(DeadLetterError::NotConfirmed { reason: "no answer".to_owned() }),
    }
}
