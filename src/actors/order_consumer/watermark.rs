//! How far this consumer has come in its order queue, announced to the reconciler once a second.

use std::collections::BTreeMap;

use actix::{AsyncContext, Context};

use super::{Arc, OrderConsumer};
use crate::actors::supervisor::supervised::{spawn_step, step};
use crate::broker::Delivery;
use crate::watermark::ANNOUNCED_EVERY;

/// When the deliveries of one subscription were published.
#[derive(Debug, Default)]
pub(super) struct PublishTimes {
    /// By tag, epoch milliseconds: what is in hand, and what was acknowledged since the last
    /// announcement.
    by_tag: BTreeMap<u64, i64>,
    /// Of the delivery that was taken last.
    last_ms: Option<i64>,
}

impl PublishTimes {
    /// A delivery came. Another party's message says nothing of ours.
    pub(super) fn took(&mut self, delivery: &Delivery) {
        if let Some(sent_at_ms) = delivery.headers.sent_at_ms {
            self.by_tag.insert(delivery.tag, sent_at_ms);
            self.last_ms = Some(sent_at_ms);
        }
    }

    /// The oldest delivery in hand, or the last one taken.
    fn watermark(&mut self, is_in_hand: impl Fn(u64) -> bool) -> Option<i64> {
        self.by_tag.retain(|tag, _| is_in_hand(*tag));
        self.by_tag.values().copied().min().or(self.last_ms)
    }
}

impl OrderConsumer {
    /// Begins to announce the watermark, until the actor ends.
    pub(super) fn announce_watermark(ctx: &mut Context<Self>) {
        ctx.run_interval(ANNOUNCED_EVERY, |intake, ctx| step(intake, ctx, Self::announce));
    }

    /// With nothing in hand and an empty queue it is the present time, taken before the queue was
    /// looked at. Without a subscription there is none: this consumer consumes nothing.
    fn announce(&mut self, ctx: &mut Context<Self>) {
        if self.hand.acks.is_none() || self.under_way.announcing {
            return;
        }
        self.under_way.announcing = true;
        let now_ms = self.deps.clock.wall_ms();
        let is_idle = self.hand.window.is_empty();
        let subscription = self.hand.subscription;
        let (subscriber, queue) = (Arc::clone(&self.deps.subscriber), self.deps.queue);
        let looking = async move {
            let own = format!("orders.{queue}");
            // A broker that cannot be asked does not say that the queue is empty.
            let depths = if is_idle { subscriber.depths().await } else { Ok(Vec::new()) };
            let depths = depths.unwrap_or_default();
            depths.iter().any(|depth| depth.queue == own && depth.is_surely_empty())
        };
        spawn_step(self, ctx, looking, move |intake, ctx, is_empty| {
            intake.under_way.announcing = false;
            if subscription != intake.hand.subscription {
                return;
            }
            let window = &intake.hand.window;
            let behind = intake.hand.published.watermark(|tag| window.contains(tag));
            let is_idle = is_empty && window.is_empty();
            if let Some(watermark_ms) = if is_idle { Some(now_ms) } else { behind } {
                intake.write_watermark(ctx, watermark_ms);
            }
        });
    }

    /// What could not be written is written a second later; until then the former one holds.
    fn write_watermark(&mut self, ctx: &mut Context<Self>, watermark_ms: i64) {
        let (watermarks, queue) = (Arc::clone(&self.deps.watermarks), self.deps.queue);
        let consumer = Arc::clone(&self.consumer);
        let writing = async move { watermarks.announce(queue, &consumer, watermark_ms).await };
        spawn_step(self, ctx, writing, |intake, _, written| {
            let failed = written.is_err();
            if let Err(error) = written.as_ref()
                && !intake.under_way.unannounced
            {
                tracing::warn!(%error, "watermark not announced, retrying");
            }
            intake.under_way.unannounced = failed;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Headers;

    fn delivery(tag: u64, sent_at_ms: Option<i64>) -> Delivery {
        Delivery {
            tag,
            headers: Headers { sent_at_ms, ..Headers::default() },
            routing_key: String::new(),
            num_before: 0,
            body: bytes::Bytes::new(),
        }
    }

    #[test]
    fn the_watermark_is_the_oldest_in_hand_then_the_last_taken() {
        let mut published = PublishTimes::default();
        assert_eq!(published.watermark(|_| true), None, "nothing is known yet");
        for (tag, sent_at_ms) in [(1, Some(30)), (2, Some(10)), (3, None), (4, Some(40))] {
            published.took(&delivery(tag, sent_at_ms));
        }
        assert_eq!(published.watermark(|_| true), Some(10), "a redelivery came behind a newer one");
        assert_eq!(published.watermark(|tag| tag != 2), Some(30));
        assert_eq!(published.watermark(|tag| tag == 4), Some(40));
        assert_eq!(published.watermark(|_| false), Some(40), "nothing in hand, but messages wait");
        assert!(published.by_tag.is_empty());
    }
}
