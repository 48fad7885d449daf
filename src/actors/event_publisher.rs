//! Publishes the feed of order events to the broker's topic exchange, for other programs.
//!
//! Reads the feed after its cursor, publishes a page, and moves the cursor behind the events that
//! the broker confirmed. A lease selects one process of the installation. Limits: events per page,
//! unconfirmed messages. On error: the cursor stays before the first unconfirmed event, and the
//! next run publishes it again. On crash: the same, here or in another process. May repeat:
//! everything, with the same id. A repeat may come after later events of its order, and after one
//! message that the broker refused, so may a first delivery: readers that need every event in order
//! follow the feed.

use std::sync::Arc;

use super::periodic::{RunResult, Task};
use crate::broker::{Headers, Message, PublishChannel, PublishOutcome, Publisher, Route};
use crate::db::Ledger;
use crate::lease::TaskLease;
use crate::observe::metrics::Metrics;
use crate::services::order_feed::{BROKER_READER, CloudEvent, OrderFeed};

/// Most events between two moves of the cursor.
const EVENTS_PER_PAGE: u32 = 500;

/// The structured mode of CloudEvents over AMQP.
const CONTENT_TYPE: &str = "application/cloudevents+json; charset=utf-8";

/// Publishes order events.
pub struct EventPublisher {
    pub feed: OrderFeed,
    pub ledger: Arc<dyn Ledger>,
    pub publisher: Arc<dyn Publisher>,
    pub lease: TaskLease,
    /// Most unconfirmed messages.
    pub window: usize,
    pub metrics: Arc<Metrics>,
}

impl Task for EventPublisher {
    type State = ();

    const FAILURE: &'static str = "order events not published, retrying";

    /// Publishes every event after the cursor, if this process has the lease.
    async fn run(&self, (): &()) -> RunResult {
        if !self.lease.acquire().await? {
            self.metrics.events_waiting.set(0);
            return Ok(());
        }
        let last = self.feed.number().await?;
        let mut read_to = self.ledger.cursor(BROKER_READER).await?;
        self.metrics.events_waiting.set(last.saturating_sub(read_to));
        let mut channel = self.publisher.open_channel(self.window);
        while read_to < last && self.lease.acquire().await? {
            let events = self.feed.events(read_to, EVENTS_PER_PAGE).await?;
            if events.is_empty() {
                // The events up to there are of purged sales.
                self.ledger.move_cursor(BROKER_READER, last).await?;
                self.metrics.events_waiting.set(0);
                break;
            }
            let (confirmed, ended) = publish(channel.as_mut(), &events).await?;
            // Crash here [events_published]: the next run publishes the same events again.
            if let Some(last_confirmed) = confirmed.last() {
                read_to = last_confirmed.feed_no;
                self.ledger.move_cursor(BROKER_READER, read_to).await?;
                self.metrics.events_published.inc_by(confirmed.len() as u64);
                self.metrics.events_waiting.set(last.saturating_sub(read_to));
            }
            ended?;
        }
        Ok(())
    }

    async fn release(&self) {
        self.lease.release().await;
    }
}

/// Publishes events in order. Returns those before the first that was not confirmed, and why that
/// one was not.
async fn publish<'e>(
    channel: &mut dyn PublishChannel,
    events: &'e [CloudEvent],
) -> serde_json::Result<(&'e [CloudEvent], RunResult)> {
    let messages: Result<Vec<Message>, _> = events.iter().map(message).collect();
    let outcomes = channel.publish(messages?).await;
    let is_confirmed = |outcome: &&PublishOutcome| **outcome == PublishOutcome::Confirmed;
    let num_confirmed = outcomes.iter().take_while(is_confirmed).count();
    let (confirmed, rest) = events.split_at_checked(num_confirmed).unwrap_or((events, &[]));
    let ended = match (rest.first(), outcomes.into_iter().nth(num_confirmed)) {
        (
            Some(event),
            Some(
                PublishOutcome::Refused { reason }
                | PublishOutcome::NotSent { reason }
                | PublishOutcome::Unknown { reason },
            ),
        ) => Err(format!("order event {} was not confirmed: {reason}", event.id).into()),
        _ => Ok(()),
    };
    Ok((confirmed, ended))
}

fn message(event: &CloudEvent) -> serde_json::Result<Message> {
    let headers = Headers {
        message_id: event.id.clone(),
        content_type: Some(CONTENT_TYPE.to_owned()),
        topic: Some(event.topic.clone()),
        ..Headers::default()
    };
    Ok(Message { route: Route::Events, headers, body: serde_json::to_vec(event)?.into() })
}
