//! What operators do with dead letters: look, replay, set aside.
//!
//! Replay is publish, confirm, then mark, never the other way round. What is done twice is
//! harmless: a request becomes at most one order.
//!
//! On death: a letter that was published and not marked is still open; the next replay publishes it
//! again, or finds that its requests have ended.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::replay::{self, Ready};
use crate::broker::{Message, Outgoing, Sent};
use crate::clock::SharedClock;
use crate::db::{self, Ledger};
use crate::domain::dead_letter::{TEXT_CHARS_MAX, clip};
use crate::domain::{
    DeadLetter, LetterCounts, LetterFilter, LetterNo, LetterState, LetterTurn, OrderIntent,
    WholeLetter,
};
use crate::tier::Pipeline;

/// Why a verb was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// No letter has this number.
    #[error("no dead letter has the number {0}")]
    Unknown(LetterNo),
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
    /// The ledger did not answer.
    #[error("the ledger is not available")]
    Ledger(#[from] db::Error),
}

/// What a replay came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// It is in an order queue, on disk.
    Published,
    /// Nothing was published: all its requests had become orders or recorded failures meanwhile.
    Resolved,
    /// Nothing was published: it had been replayed before, and has not died since.
    Already,
}

/// What setting aside came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// It is set aside now.
    Now,
    /// It was already.
    Already,
}

struct Broker {
    installation: Arc<str>,
    queues: u16,
    /// One replay after the other, on one channel.
    outgoing: Mutex<Box<dyn Outgoing>>,
}

/// The operators' verbs on dead letters. Cheap to clone.
#[derive(Clone)]
pub struct DeadLetterDesk {
    ledger: Arc<dyn Ledger>,
    clock: SharedClock,
    broker: Option<Arc<Broker>>,
}

impl DeadLetterDesk {
    /// The desk of a process; without a pipeline nothing can be replayed. `queues` is the number
    /// of order queues.
    #[must_use]
    pub fn new(
        ledger: Arc<dyn Ledger>,
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
        Self { ledger, clock, broker }
    }

    /// Letters, newest first.
    ///
    /// # Errors
    /// The ledger's.
    pub async fn list(&self, of: LetterFilter, limit: u32) -> Result<Vec<DeadLetter>, DeskError> {
        Ok(self.ledger.dead_letters(of, limit).await?)
    }

    /// How many letters there are.
    ///
    /// # Errors
    /// The ledger's.
    pub async fn counts(&self) -> Result<LetterCounts, DeskError> {
        Ok(self.ledger.count_dead_letters().await?)
    }

    /// One letter with everything that is kept of it.
    ///
    /// # Errors
    /// [`DeskError::Unknown`], and the ledger's.
    pub async fn show(&self, no: LetterNo) -> Result<WholeLetter, DeskError> {
        self.ledger.dead_letter(no).await?.ok_or(DeskError::Unknown(no))
    }

    /// What is in a letter, and whether it can be replayed; `None` without a broker.
    #[must_use]
    pub fn open(&self, letter: &WholeLetter) -> Option<Result<Ready, String>> {
        let broker = self.broker.as_ref()?;
        let now_ms = self.clock.wall_ms();
        let ready = replay::ready(letter, &broker.installation, broker.queues, now_ms);
        Some(ready.map_err(|why| why.what))
    }

    /// Puts a letter on its way again. The letter as it is afterwards, and what was done.
    ///
    /// # Errors
    /// [`DeskError`]; unless it says otherwise, the letter is as it was.
    pub async fn replay(&self, no: LetterNo) -> Result<(Replayed, DeadLetter), DeskError> {
        let whole = self.show(no).await?;
        if whole.letter.state == LetterState::Replayed {
            return Ok((Replayed::Already, whole.letter));
        }
        let broker = self.broker.as_ref().ok_or(DeskError::NoBroker)?;
        let now_ms = self.clock.wall_ms();
        let ready = replay::ready(&whole, &broker.installation, broker.queues, now_ms)
            .map_err(|why| DeskError::NotReplayable { why: why.what })?;
        let done = if self.have_ended(&ready.intents).await? {
            Replayed::Resolved
        } else {
            publish(broker, ready.message).await?;
            Replayed::Published
        };
        // Crash here [replayed_not_marked]: the letter is in an order queue and still open; the
        // next replay publishes it again or finds that its requests have ended.
        if !self.turn(&whole.letter, LetterState::Replayed, None).await? {
            // It died again already, or another operator was here: the ledger says which.
            tracing::info!(letter = no.0, "a dead letter changed while it was replayed");
        }
        Ok((done, self.show(no).await?.letter))
    }

    /// Sets a letter aside for good; its requests count as ended. It can still be replayed.
    ///
    /// # Errors
    /// [`DeskError`]; the letter is as it was.
    pub async fn park(
        &self,
        no: LetterNo,
        note: Option<&str>,
    ) -> Result<(Parked, DeadLetter), DeskError> {
        let seen = self.show(no).await?.letter;
        let note = note.map(|note| clip(note, TEXT_CHARS_MAX));
        match seen.state {
            LetterState::Replayed => return Err(DeskError::Replayed),
            LetterState::Parked if note.is_none() || note == seen.note => {
                return Ok((Parked::Already, seen));
            }
            LetterState::Parked | LetterState::Open => {}
        }
        if !self.turn(&seen, LetterState::Parked, note).await? {
            return Err(DeskError::Changed);
        }
        Ok((Parked::Now, self.show(no).await?.letter))
    }

    async fn turn(
        &self,
        seen: &DeadLetter,
        to: LetterState,
        note: Option<String>,
    ) -> Result<bool, DeskError> {
        let (no, from, arrivals) = (seen.no, seen.state, seen.arrivals);
        let at_ms = self.clock.wall_ms();
        let turn = LetterTurn { no, from, arrivals, to, note, at_ms };
        Ok(self.ledger.turn_dead_letter(turn).await?)
    }

    /// Whether each of these requests is an order or a recorded failure.
    async fn have_ended(&self, intents: &[OrderIntent]) -> Result<bool, DeskError> {
        let seen = self.ledger.examine(intents.to_vec()).await?;
        Ok(intents.iter().all(|intent| {
            let request = &intent.request;
            seen.orders.contains_key(request) || seen.failures.contains_key(request)
        }))
    }
}

async fn publish(broker: &Broker, message: Message) -> Result<(), DeskError> {
    let sent = broker.outgoing.lock().await.publish(vec![message]).await;
    match sent.into_iter().next() {
        Some(Sent::Confirmed) => Ok(()),
        Some(Sent::Refused { reason } | Sent::NotSent { reason }) => {
            Err(DeskError::NotTaken { reason })
        }
        Some(Sent::Unknown { reason }) => Err(DeskError::NotConfirmed { reason }),
        None => Err(DeskError::NotConfirmed { reason: "no answer".to_owned() }),
    }
}
