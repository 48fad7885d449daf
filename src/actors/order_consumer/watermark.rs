//! Announces the watermark of this consumer in its order queue to the reconciler, once a second.

use std::collections::BTreeMap;

use actix::{AsyncContext, Context};

use super::{Arc, OrderConsumer, SubscriptionState};
use crate::actors::supervisor::supervised::{spawn_step, step};
use crate::broker::Delivery;
use crate::watermark::ANNOUNCED_EVERY;

/// Publish times of the deliveries of one subscription, epoch milliseconds.
#[derive(Debug, Default)]
pub(super) struct PublishTimes {
    /// By tag: unacknowledged deliveries, and those acknowledged since the last announcement.
    by_tag: BTreeMap<u64, i64>,
    /// Of the last delivery.
    last_ms: Option<i64>,
}

impl PublishTimes {
    /// Records a delivery. A foreign message has no publish time, and is skipped.
    pub(super) fn record(&mut self, delivery: &Delivery) {
        if let Some(sent_at_ms) = delivery.headers.sent_at_ms {
            self.by_tag.insert(delivery.tag, sent_at_ms);
            self.last_ms = Some(sent_at_ms);
        }
    }

    /// Publish time of the oldest unacknowledged delivery, or of the last delivery. Drops the
    /// acknowledged deliveries.
    fn watermark(&mut self, is_unacknowledged: impl Fn(u64) -> bool) -> Option<i64> {
        self.by_tag.retain(|tag, _| is_unacknowledged(*tag));
        self.by_tag.values().copied().min().or(self.last_ms)
    }
}

impl OrderConsumer {
    /// Starts the announcements; they end with the actor.
    pub(super) fn announce_watermark(ctx: &mut Context<Self>) {
        ctx.run_interval(ANNOUNCED_EVERY, |consumer, ctx| step(consumer, ctx, Self::announce));
    }

    /// Without an unacknowledged delivery and with an empty queue, the watermark is the present
    /// time, read before the queue depth. Without a subscription none is announced: this consumer
    /// consumes nothing.
    fn announce(&mut self, ctx: &mut Context<Self>) {
        if self.subscription.acks.is_none() || self.in_progress.announcing {
            return;
        }
        self.in_progress.announcing = true;
        let now_ms = self.deps.clock.wall_ms();
        let is_idle = self.subscription.window.is_empty();
        let subscription_no = self.subscription.number;
        let (subscriber, queue) = (Arc::clone(&self.deps.subscriber), self.deps.queue);
        let work = async move {
            let own_queue = format!("orders.{queue}");
            // A failed query does not prove that the queue is empty.
            let depths = if is_idle { subscriber.depths().await } else { Ok(Vec::new()) };
            let depths = depths.unwrap_or_default();
            depths.iter().any(|depth| depth.queue == own_queue && depth.is_certainly_empty())
        };
        spawn_step(self, ctx, work, move |consumer, ctx, is_queue_empty| {
            consumer.in_progress.announcing = false;
            let SubscriptionState { number, window, publish_times, .. } =
                &mut consumer.subscription;
            if subscription_no != *number {
                return;
            }
            let consumed_ms = publish_times.watermark(|tag| window.contains(tag));
            let is_idle = is_queue_empty && window.is_empty();
            if let Some(watermark_ms) = if is_idle { Some(now_ms) } else { consumed_ms } {
                consumer.write_watermark(ctx, watermark_ms);
            }
        });
    }

    /// Writes the watermark. After an error the next announcement retries; until then the previous
    /// watermark is valid.
    fn write_watermark(&mut self, ctx: &mut Context<Self>, watermark_ms: i64) {
        let (watermarks, queue) = (Arc::clone(&self.deps.watermarks), self.deps.queue);
        let name = Arc::clone(&self.name);
        let work = async move { watermarks.announce(queue, &name, watermark_ms).await };
        spawn_step(self, ctx, work, |consumer, _, written| {
            if let Err(error) = &written
                && !consumer.in_progress.watermark_failed
            {
                tracing::warn!(%error, "watermark not announced, retrying");
            }
            consumer.in_progress.watermark_failed = written.is_err();
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
            num_previous: 0,
            body: bytes::Bytes::new(),
        }
    }

    #[test]
    fn the_watermark_is_the_oldest_unacknowledged_delivery_then_the_last_one() {
        let mut times = PublishTimes::default();
        assert_eq!(times.watermark(|_| true), None, "no delivery yet");
        for (tag, sent_at_ms) in [(1, Some(30)), (2, Some(10)), (3, None), (4, Some(40))] {
            times.record(&delivery(tag, sent_at_ms));
        }
        assert_eq!(times.watermark(|_| true), Some(10), "a redelivery after a newer one");
        assert_eq!(times.watermark(|tag| tag != 2), Some(30));
        assert_eq!(times.watermark(|tag| tag == 4), Some(40));
        assert_eq!(times.watermark(|_| false), Some(40), "all acknowledged, queue not empty");
        assert!(times.by_tag.is_empty());
    }
}
