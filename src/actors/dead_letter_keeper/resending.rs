//! Messages that no queue wanted: a binding or a queue was missing. The topology is declared again
//! and they are published again; what still finds no queue becomes a letter.

use bytes::Bytes;

use super::LetterKeeperParts;
use super::deciding::{AfterResend, RESENDS_MAX, Tries, after_resend};
use super::storing::InHand;
use crate::broker::{self, Delivery, Message, Outgoing};
use crate::dead_letters::{replay, seal};
use crate::domain::NewLetter;
use crate::domain::dead_letter::{TEXT_CHARS_MAX, clip};

struct Waiting {
    tag: u64,
    /// What it becomes when it is given up.
    letter: NewLetter,
    message: Message,
}

/// What a round came to.
#[derive(Default)]
pub(super) struct Resent {
    /// Deliveries whose messages are in order queues now.
    pub(super) arrived: Vec<u64>,
    /// Why some still wait.
    pub(super) trouble: Option<String>,
}

/// Messages that wait to be published again.
pub(super) struct Resending {
    waiting: Vec<Waiting>,
    tries: Tries,
    outgoing: Box<dyn Outgoing>,
}

impl Resending {
    pub(super) fn new(parts: &LetterKeeperParts) -> Self {
        let window = usize::from(parts.letters_max);
        let outgoing = parts.pipeline.publisher.outgoing(window);
        Self { waiting: Vec::new(), tries: Tries::default(), outgoing }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Takes a delivery: ours waits to be published again, unless it has been too often; anything
    /// else is a letter at once.
    pub(super) fn take(
        &mut self,
        parts: &LetterKeeperParts,
        delivery: &Delivery,
        hand: &mut Vec<InHand<u64>>,
        now_ms: i64,
    ) {
        let installation = &parts.pipeline.installation;
        let key = &delivery.routing_key;
        let unwanted = format!("no queue wanted it (routing key {key:?})");
        let letter = |why: &str| seal::of_unroutable(delivery, why, installation, now_ms);
        let body = Bytes::clone(&delivery.body);
        match replay::address(&delivery.headers, body, installation, parts.queues, now_ms) {
            Err(why) => {
                hand.push(InHand::new(letter(&format!("{unwanted}: {why}")), delivery.tag));
            }
            Ok(ready) => {
                // It goes on where it was, not from the start.
                let mut message = ready.message;
                message.headers.attempts = delivery.headers.attempts;
                let letter = letter(&unwanted);
                if self.tries.are_used_up(&letter.digest) {
                    self.give_up(letter, delivery.tag, "it came back each time", hand);
                } else {
                    self.waiting.push(Waiting { tag: delivery.tag, letter, message });
                }
            }
        }
    }

    /// Declares what must be there and publishes everything that waits.
    pub(super) async fn round(
        &mut self,
        parts: &LetterKeeperParts,
        hand: &mut Vec<InHand<u64>>,
    ) -> Resent {
        let mut resent = Resent::default();
        if self.waiting.is_empty() {
            return resent;
        }
        match parts.pipeline.publisher.declare().await {
            Ok(()) => {}
            Err(broker::Error::Topology { what }) => {
                for waiting in std::mem::take(&mut self.waiting) {
                    self.failed(waiting, &what, hand);
                }
                resent.trouble = Some(what);
                return resent;
            }
            Err(error) => {
                resent.trouble = Some(error.to_string());
                return resent;
            }
        }
        let messages = self.waiting.iter().map(|waiting| waiting.message.clone()).collect();
        let mut results = self.outgoing.publish(messages).await.into_iter();
        for waiting in std::mem::take(&mut self.waiting) {
            match after_resend(results.next()) {
                AfterResend::Arrived => {
                    self.tries.spend(waiting.letter.digest);
                    resent.arrived.push(waiting.tag);
                }
                AfterResend::Failed(said) => {
                    self.failed(waiting, &said, hand);
                    resent.trouble = Some(said);
                }
                AfterResend::Hold => {
                    resent.trouble = Some("the broker takes no messages".to_owned());
                    self.waiting.push(waiting);
                }
            }
        }
        if !resent.arrived.is_empty() {
            let count = resent.arrived.len();
            tracing::warn!(count, "messages that no queue wanted are in order queues now");
        }
        resent
    }

    fn failed(&mut self, waiting: Waiting, said: &str, hand: &mut Vec<InHand<u64>>) {
        self.tries.spend(waiting.letter.digest);
        if self.tries.are_used_up(&waiting.letter.digest) {
            self.give_up(waiting.letter, waiting.tag, said, hand);
        } else {
            self.waiting.push(waiting);
        }
    }

    fn give_up(&mut self, letter: NewLetter, tag: u64, said: &str, hand: &mut Vec<InHand<u64>>) {
        self.tries.forget(&letter.digest);
        let reason = format!("{}, {RESENDS_MAX} times: {said}", letter.reason);
        let letter = NewLetter { reason: clip(&reason, TEXT_CHARS_MAX), ..letter };
        hand.push(InHand::new(letter, tag));
    }
}
