//! The end of a round: what the broker said becomes what the outbox is told.

use std::sync::Arc;
use std::time::Duration;

use actix::Context;

use super::fates::{Plans, Report};
use super::{OutboxRelay, trouble};
use crate::actors::child::{ExitReason, end, spawn_step};
use crate::broker::Sent;
use crate::clock::now_monotonic;
use crate::outbox::{Fate, Hand};

impl OutboxRelay {
    pub(super) fn published(
        &mut self,
        ctx: &mut Context<Self>,
        plans: Plans,
        sent: Vec<Sent>,
        took: Duration,
    ) {
        // Crash here [confirmed_not_reported]: the broker has the messages and the outbox still
        // has the entries; whoever holds them next publishes them again.
        let now = now_monotonic();
        let Report { hands, tally, away, silence } = self.rounds.judge(plans, sent, now);
        self.parts.metrics.relayed(&tally, took);
        self.note_broker(away, silence, now);
        if hands.is_empty() || !self.is_still_named() {
            self.go_on(ctx);
            return;
        }
        self.report(ctx, hands);
    }

    fn report(&mut self, ctx: &mut Context<Self>, hands: Vec<(Hand, Vec<Fate>)>) {
        let Some(worker) = self.worker.clone() else {
            end(self, ctx, ExitReason::Failed("a report without a name".to_owned()));
            return;
        };
        let outbox = Arc::clone(&self.parts.outbox);
        let dead = trouble::dead_in(&hands);
        let work = async move { outbox.report(&worker, hands).await };
        spawn_step(self, ctx, work, move |relay, ctx, reported| {
            if relay.must_end(ctx, &reported) {
                return;
            }
            let now = now_monotonic();
            for (bucket, taken) in reported {
                match taken {
                    Ok(()) => {
                        let dead = dead.get(&bucket).map_or(&[][..], Vec::as_slice);
                        trouble::log_dead(bucket, dead);
                        relay.rounds.reported(bucket);
                    }
                    // Done or not: the hand itself tells.
                    Err(_) => relay.rounds.report_failed(bucket, now),
                }
            }
            relay.in_hand.set(relay.rounds.num_in_hand());
            relay.go_on(ctx);
        });
    }
}
