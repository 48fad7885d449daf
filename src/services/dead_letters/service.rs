//! Operations on dead letters: show, replay, park, discard.
//!
//! Replay publishes, waits for the confirm, then marks, in this order. Repeats are harmless: a
//! request becomes at most one order. Discard ends each request without an order (`requests`).
//!
//! On crash: a dead letter that was published and not marked is still open; the next replay
//! publishes it again, or finds that its requests have ended.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Mutex;

use super::replay;
use crate::broker::{Message, PublishChannel, PublishOutcome, Route};
use crate::db::{self, Ledger};
use crate::domain::dead_letter::TEXT_CHARS_MAX;
use crate::domain::text::clip;
use crate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterNo, DeadLetterState, DeadLetterTransition,
    OrderIntent, Refusal, RequestId,
};
use crate::messages::envelope;
use crate::messages::envelope::EnvelopeReader;
use crate::runtime::clock::SharedClock;
use crate::services::request_ending::RequestService;
use crate::tier::Pipeline;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    #[error("no dead letter has the number {0}")]
    Unknown(DeadLetterNo),
    /// Truncated, foreign or malformed.
    #[error("the dead letter cannot be replayed: {why}")]
    NotReplayable { why: String },
    /// Replayed already: it cannot be parked or discarded.
    #[error("the dead letter was replayed: its requests are on their way, or have ended")]
    Replayed,
    /// Discarded already: it cannot be replayed or parked.
    #[error("the dead letter was discarded: its requests are recorded failures, or orders")]
    Discarded,
    /// Changed concurrently, by another operator or by a new arrival.
    #[error("the dead letter changed meanwhile: show it, then try again")]
    Changed,
    #[error("this process has no broker: dead letters are replayed in tier pipeline only")]
    NoBroker,
    /// Nothing was published; the dead letter is unchanged.
    #[error("the broker did not accept the message: {reason}")]
    PublishRefused { reason: String },
    /// The publish outcome is unknown; the dead letter is unchanged and may be replayed again.
    #[error("the broker did not confirm the message: {reason}")]
    NotConfirmed { reason: String },
    /// Discard: every request is an order.
    #[error("every request of the dead letter is an order; replay closes it")]
    Ordered,
    /// Discard: its requests cannot be read.
    #[error("the dead letter cannot be discarded: its requests cannot be read")]
    Unreadable,
    /// Of this dead letter, or of one of its requests.
    #[error(transparent)]
    UnreadableRow(db::Error),
    #[error("the ledger is not available")]
    Ledger(#[source] db::Error),
}

impl From<db::Error> for DeadLetterError {
    fn from(error: db::Error) -> Self {
        match error {
            db::Error::Unreadable { .. } => Self::UnreadableRow(error),
            error => Self::Ledger(error),
        }
    }
}

/// Outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterOutcome {
    /// Replayed: confirmed by the broker, durable in an order queue.
    Published,
    /// Marked as replayed without a publish: all its requests are orders or recorded failures.
    Resolved,
    Parked,
    /// Its requests are recorded failures, except those that are orders.
    Discarded,
    /// Unchanged: it was in this state already.
    Already,
}

/// Outcome of an operation, and the dead letter afterwards.
pub type DeadLetterResult = Result<(DeadLetterOutcome, DeadLetter), DeadLetterError>;

struct Broker {
    reader: EnvelopeReader,
    queues: u16,
    /// Replays are serialized on one channel.
    channel: Mutex<Box<dyn PublishChannel>>,
}

/// Operations on dead letters. Cheap to clone.
#[derive(Clone)]
pub struct DeadLetterService {
    ledger: Arc<dyn Ledger>,
    requests: RequestService,
    clock: SharedClock,
    broker: Option<Arc<Broker>>,
}

impl DeadLetterService {
    /// Without a pipeline, replay fails with [`DeadLetterError::NoBroker`]. `queues` is the number
    /// of order queues.
    pub fn new(
        ledger: Arc<dyn Ledger>,
        requests: RequestService,
        clock: SharedClock,
        pipeline: Option<&Pipeline>,
        queues: u16,
    ) -> Self {
        let broker = pipeline.map(|pipeline| {
            Arc::new(Broker {
                reader: pipeline.reader.clone(),
                queues,
                channel: Mutex::new(pipeline.publisher.open_channel(1)),
            })
        });
        Self { ledger, requests, clock, broker }
    }

    /// A dead letter with its body.
    pub async fn show(&self, no: DeadLetterNo) -> Result<DeadLetterContent, DeadLetterError> {
        self.ledger.dead_letter(no).await?.ok_or(DeadLetterError::Unknown(no))
    }

    /// Why a dead letter cannot be replayed; `None` if it can.
    pub async fn why_not_replayable(&self, content: &DeadLetterContent) -> Option<String> {
        match self.prepare(content).await {
            Ok(_) => None,
            Err(DeadLetterError::NotReplayable { why }) => Some(why),
            Err(error) => Some(error.to_string()),
        }
    }

    /// The message of a replay; `None` if all requests have ended.
    async fn prepare(
        &self,
        content: &DeadLetterContent,
    ) -> Result<Option<(&Broker, Message)>, DeadLetterError> {
        if content.dead_letter.state == DeadLetterState::Discarded {
            return Err(DeadLetterError::Discarded);
        }
        let intents = stored_intents(content).unwrap_or_default();
        let examined = self.ledger.examine(intents.clone()).await?;
        let has_ended = |intent: &OrderIntent| examined.has_ended(intent.request);
        if !intents.is_empty() && intents.iter().all(has_ended) {
            return Ok(None);
        }
        let broker = self.broker.as_ref().ok_or(DeadLetterError::NoBroker)?;
        replay::prepare(content, &broker.reader, broker.queues, self.clock.wall_ms())
            .map(|message| Some((&**broker, message)))
            .map_err(|malformed| DeadLetterError::NotReplayable { why: malformed.what })
    }

    /// Replays a dead letter. Idempotent.
    ///
    /// # Errors
    /// The dead letter is unchanged, unless the ledger failed after the publish.
    pub async fn replay(&self, no: DeadLetterNo) -> DeadLetterResult {
        let content = self.show(no).await?;
        if content.dead_letter.state == DeadLetterState::Replayed {
            return Ok((DeadLetterOutcome::Already, content.dead_letter));
        }
        let outcome = match self.prepare(&content).await? {
            None => DeadLetterOutcome::Resolved,
            Some((broker, message)) => {
                publish(broker, message).await?;
                DeadLetterOutcome::Published
            }
        };
        // Crash here [replayed_not_marked]: the message is in an order queue and the dead letter
        // still open; the next replay publishes it again or finds that its requests have ended.
        if !self.transition(&content.dead_letter, DeadLetterState::Replayed, None).await? {
            // A new arrival or another operator changed it. The answer has the state in the ledger.
            tracing::info!(dead_letter = no.0, "dead letter: changed during the replay");
        }
        Ok((outcome, self.show(no).await?.dead_letter))
    }

    /// Parks a dead letter: its requests stay in it. It can still be replayed or discarded.
    ///
    /// # Errors
    /// The dead letter is unchanged, unless the ledger failed: it may be parked then.
    pub async fn park(&self, no: DeadLetterNo, note: Option<&str>) -> DeadLetterResult {
        let current = self.show(no).await?.dead_letter;
        let note = note.map(|note| clip(note, TEXT_CHARS_MAX));
        match current.state {
            DeadLetterState::Replayed => return Err(DeadLetterError::Replayed),
            DeadLetterState::Discarded => return Err(DeadLetterError::Discarded),
            DeadLetterState::Parked if note.is_none() || note == current.note => {
                return Ok((DeadLetterOutcome::Already, current));
            }
            DeadLetterState::Parked | DeadLetterState::Open => {}
        }
        if !self.transition(&current, DeadLetterState::Parked, note).await? {
            return Err(DeadLetterError::Changed);
        }
        Ok((DeadLetterOutcome::Parked, self.show(no).await?.dead_letter))
    }

    /// Discards a dead letter: each of its requests without an order becomes a recorded failure,
    /// its units are released exactly once, and its buyer reads `failed`. A repeat writes the
    /// failures to the stock again, if the stock did not take them.
    ///
    /// # Errors
    /// After `Changed` and `Ledger` the failures may be recorded; a repeat continues.
    pub async fn discard(&self, no: DeadLetterNo, reason: Option<&str>) -> DeadLetterResult {
        let content = self.show(no).await?;
        if content.dead_letter.state == DeadLetterState::Replayed {
            return Err(DeadLetterError::Replayed);
        }
        let intents = stored_intents(&content)?;
        let ended = self.requests.end(&intents, Refusal::Discarded).await?;
        let is_failed = |intent: &&OrderIntent| ended.failures.contains_key(&intent.request);
        let requests = intents.iter().filter(is_failed).count();
        if requests == 0 && !intents.is_empty() {
            return Err(DeadLetterError::Ordered);
        }
        // Crash here [failed_not_discarded]: the failures are recorded and the dead letter is still
        // open; its requests are refused when submitted, and a repeat of the discard continues
        // here.
        if content.dead_letter.state == DeadLetterState::Discarded {
            return Ok((DeadLetterOutcome::Already, content.dead_letter));
        }
        let note = reason.map(|reason| clip(reason, TEXT_CHARS_MAX));
        if !self.transition(&content.dead_letter, DeadLetterState::Discarded, note).await? {
            return Err(DeadLetterError::Changed);
        }
        tracing::info!(dead_letter = no.0, requests, "dead letter: discarded");
        Ok((DeadLetterOutcome::Discarded, self.show(no).await?.dead_letter))
    }

    /// Changes the state if the dead letter is still as in `seen`. Returns whether it was.
    async fn transition(
        &self,
        seen: &DeadLetter,
        to: DeadLetterState,
        note: Option<String>,
    ) -> Result<bool, DeadLetterError> {
        let (no, from, arrivals) = (seen.no, seen.state, seen.arrivals);
        let at_ms = self.clock.wall_ms();
        let transition = DeadLetterTransition { no, from, arrivals, to, note, at_ms };
        Ok(self.ledger.transition_dead_letter(transition).await?)
    }
}

/// The intents of the requests that this dead letter holds; they were verified when it was stored.
fn stored_intents(content: &DeadLetterContent) -> Result<Vec<OrderIntent>, DeadLetterError> {
    let mut intents = envelope::intents_in(&content.body);
    intents.retain(|intent| content.requests.contains(&intent.request));
    let is_readable = |request: &RequestId| intents.iter().any(|intent| intent.request == *request);
    if content.requests.iter().all(is_readable) {
        Ok(intents)
    } else {
        Err(DeadLetterError::Unreadable)
    }
}

async fn publish(broker: &Broker, message: Message) -> Result<(), DeadLetterError> {
    let is_payment = message.route == Route::Payments;
    let outcomes = broker.channel.lock().await.publish(vec![message]).await;
    match outcomes.into_iter().next() {
        Some(PublishOutcome::Confirmed) => Ok(()),
        // Of a webhook, for example, in an installation whose events come by webhooks alone.
        Some(PublishOutcome::Refused { reason }) if is_payment => {
            let why = format!("{reason}; set payment.queue and restart, or park it");
            Err(DeadLetterError::NotReplayable { why })
        }
        Some(PublishOutcome::Refused { reason } | PublishOutcome::NotSent { reason }) => {
            Err(DeadLetterError::PublishRefused { reason })
        }
        Some(PublishOutcome::Unknown { reason }) => Err(DeadLetterError::NotConfirmed { reason }),
        None => Err(DeadLetterError::NotConfirmed { reason: "no answer".to_owned() }),
    }
}
