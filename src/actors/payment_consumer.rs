//! Consumes payment events of the provider from the queue `payments`: the bodies of webhooks, with
//! the headers that sign them. Each has the effect that its webhook would have.
//!
//! An event is acknowledged after its COMMIT; one without a valid signature or that cannot be read,
//! when its dead letter is confirmed. Limits: unacknowledged events, and events at once. On error:
//! what the ledger or the broker did not take stays unacknowledged and is tried again, so that the
//! prefetch stops the broker; an event that the ledger refuses although it commits others becomes a
//! dead letter after some tries. Where refused events take up the prefetch, the oldest one goes to
//! the end of the queue, so that others come. On crash: the broker delivers again what was not
//! acknowledged. May repeat: every event, which the ledger knows by its id.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};

use super::periodic::{RunResult, Task};
use crate::broker::{self, Delivery, Inbox, Message, PublishOutcome, Publisher, Route, Subscriber};
use crate::db::{self, ErrorClass};
use crate::domain::PaymentRecorded;
use crate::messages::envelope;
use crate::observe::metrics::{Metrics, OutcomeLabel};
use crate::payment::WebhookReader;
use crate::runtime::clock::SharedClock;
use crate::services::dead_letters::new_dead_letter::PAYMENTS;
use crate::services::order_life::OrderService;

/// Most unacknowledged events.
const PREFETCH: u16 = 64;

/// Most events that are recorded at once.
const AT_ONCE: usize = 8;

/// Longest wait of a run for an event.
const WAIT: Duration = Duration::from_secs(1);

/// Times that the ledger refuses an event, each time while it commits others.
const REFUSALS_MAX: u32 = 3;

/// Consumes payment events.
pub struct PaymentConsumer {
    pub subscriber: Arc<dyn Subscriber>,
    /// Publishes dead letters.
    pub publisher: Arc<dyn Publisher>,
    pub webhooks: Arc<WebhookReader>,
    pub orders: OrderService,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

/// The subscription of one incarnation.
pub type Events = Cell<Option<OpenEvents>>;

/// An open subscription.
pub struct OpenEvents {
    inbox: Inbox,
    /// Unacknowledged events, oldest first.
    waiting: Vec<WaitingEvent>,
}

struct WaitingEvent {
    delivery: Delivery,
    /// See [`REFUSALS_MAX`].
    num_refused: u32,
}

/// What becomes of an event.
enum Decision {
    /// Recorded now.
    Recorded(&'static str),
    /// Recorded before, or without a meaning here: nothing was written.
    Skipped(&'static str),
    /// Never to be recorded, for this reason.
    Poison(String),
    Failed(db::Error),
}

impl Decision {
    fn is_refused(&self) -> bool {
        matches!(self, Self::Failed(error) if error.class() == ErrorClass::Bug)
    }
}

impl Task for PaymentConsumer {
    type State = Events;

    const FAILURE: &'static str = "payment events not consumed, retrying";

    async fn run(&self, events: &Events) -> RunResult {
        let mut open = match events.take() {
            Some(open) => open,
            None => self.subscribe().await?,
        };
        let num_waiting = open.waiting.len();
        let wait = if num_waiting == 0 { WAIT } else { Duration::ZERO };
        // Without a subscription the broker delivers all unacknowledged events again.
        let received = open.inbox.next_batch(wait, num_waiting).await?.into_iter();
        open.waiting.extend(received.map(|delivery| WaitingEvent { delivery, num_refused: 0 }));
        let ended = self.decide(&mut open).await;
        events.set(Some(open));
        ended
    }
}

impl PaymentConsumer {
    async fn subscribe(&self) -> Result<OpenEvents, broker::Error> {
        let inbox = Inbox::open(&self.subscriber, Route::Payments, PREFETCH, &self.clock).await?;
        Ok(OpenEvents { inbox, waiting: Vec::new() })
    }

    /// Records the waiting events and acknowledges those that are decided; returns the first error
    /// of the others.
    async fn decide(&self, open: &mut OpenEvents) -> RunResult {
        let acks = open.inbox.acks();
        let deciding = std::mem::take(&mut open.waiting).into_iter().map(|event| async move {
            let decision = self.record(&event.delivery).await;
            (event, decision)
        });
        let decided: Vec<_> = stream::iter(deciding).buffered(AT_ONCE).collect().await;
        // The ledger commits: a refusal is of its event.
        let is_committing = decided.iter().any(|(_, it)| matches!(it, Decision::Recorded(_)));
        let has_no_room = decided.len() >= usize::from(PREFETCH);
        let is_stuck = has_no_room && decided.iter().all(|(_, it)| it.is_refused());
        let (mut first_error, mut undecided) = (None, Vec::new());
        for (mut event, decision) in decided {
            let tag = event.delivery.tag;
            event.num_refused += u32::from(is_committing && decision.is_refused());
            let poison = match decision {
                Decision::Recorded(outcome) | Decision::Skipped(outcome) => {
                    // Crash here [payment_event_not_acknowledged]: the event is in the ledger; the
                    // broker delivers it again, and the ledger knows its id.
                    acks.one(tag).await;
                    self.count(outcome);
                    continue;
                }
                Decision::Poison(reason) => reason,
                Decision::Failed(error) => {
                    let reason = format!("the ledger refuses it: {error}");
                    if event.num_refused < REFUSALS_MAX {
                        first_error.get_or_insert(error.into());
                        undecided.push(event);
                        continue;
                    }
                    reason
                }
            };
            match self.dead_letter(&event.delivery, poison).await {
                Ok(()) => {
                    acks.one(tag).await;
                    self.count("dead");
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                    undecided.push(event);
                }
            }
        }
        open.waiting = undecided;
        if is_stuck {
            self.move_to_end(open).await?;
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Moves the oldest waiting event to the end of the queue. A crash before its acknowledgement
    /// leaves it there twice, and the ledger knows its id.
    async fn move_to_end(&self, open: &mut OpenEvents) -> RunResult {
        let Some(oldest) = open.waiting.first() else { return Ok(()) };
        let Delivery { headers, body, tag, .. } = oldest.delivery.clone();
        self.publish(Message { route: Route::Payments, headers, body }).await?;
        open.waiting.remove(0);
        open.inbox.acks().one(tag).await;
        Ok(())
    }

    fn count(&self, outcome: &'static str) {
        self.metrics.payment_messages.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    async fn record(&self, delivery: &Delivery) -> Decision {
        let (headers, now_ms) = (&delivery.headers.signature, self.clock.wall_ms());
        let header = |wanted: &str| {
            headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
        };
        let event = match self.webhooks.read(header, &delivery.body, now_ms, true) {
            Ok(Some(event)) => event,
            Ok(None) => return Decision::Skipped("ignored"),
            Err(error) => return Decision::Poison(error.to_string()),
        };
        match self.orders.record(event).await {
            Ok(PaymentRecorded::Known) => Decision::Skipped("known"),
            Ok(PaymentRecorded::Recorded(outcome, _)) => Decision::Recorded(outcome.name()),
            Err(error) => Decision::Failed(error),
        }
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: String) -> RunResult {
        let message_id = &delivery.headers.message_id;
        tracing::error!(message_id, reason, "payment event dead-lettered");
        let headers = envelope::dead_letter_headers(delivery, PAYMENTS.to_owned(), &reason);
        self.publish(Message { route: Route::Dead, headers, body: delivery.body.clone() }).await
    }

    async fn publish(&self, message: Message) -> RunResult {
        let what = if message.route == Route::Dead { "a dead letter" } else { "a payment event" };
        let mut channel = self.publisher.open_channel(1);
        match channel.publish(vec![message]).await.pop() {
            Some(PublishOutcome::Confirmed) => Ok(()),
            other => Err(format!("{what} was not confirmed: {other:?}").into()),
        }
    }
}
