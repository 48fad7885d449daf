//! Once a second: announces the watermark of this consumer in its order queue to the reconciler.

use actix::Context;

use super::{Arc, Operation, OrderConsumer};
use crate::actors::supervisor::supervised::spawn_step;
use crate::broker::Route;

impl OrderConsumer {
    /// Without an unacknowledged delivery and with an empty queue, the watermark is the present
    /// time, read before the queue depth. Without a subscription none is announced: this consumer
    /// consumes nothing.
    pub(super) fn announce_watermark(&mut self, ctx: &mut Context<Self>) {
        let subscription = &self.subscription;
        if subscription.acknowledger.is_none() || subscription.is_running(Operation::Announce) {
            return;
        }
        let now_ms = self.deps.clock.wall_ms();
        let is_idle = subscription.unacked.is_empty();
        let (subscriber, queue) = (Arc::clone(&self.deps.subscriber), self.deps.queue);
        let work = async move {
            // A failed query proves nothing about the queue and this subscription.
            if is_idle { subscriber.depth(Route::Orders(queue)).await.ok() } else { None }
        };
        self.spawn(ctx, Operation::Announce, work, move |consumer, ctx, depth| {
            let subscription = &consumer.subscription;
            let is_drained = subscription.unacked.is_empty()
                && depth.is_some_and(|depth| depth.is_certainly_empty());
            let consumed_ms = subscription.unacked.watermark();
            if let Some(watermark_ms) = if is_drained { Some(now_ms) } else { consumed_ms } {
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
                && !consumer.watermark_failed
            {
                let queue = consumer.deps.queue;
                tracing::warn!(queue, %error, "watermark not announced, retrying");
            }
            consumer.watermark_failed = written.is_err();
        });
    }
}
