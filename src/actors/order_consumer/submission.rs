//! From the intake to the ledger and back: submissions, and what each intent came to.

use std::time::Duration;

use actix::{AsyncContext, Context};
use bytes::Bytes;

use super::evidence::{FailedAttempt, NoOutcome, RetryDecision, next};
use super::{Arc, ConsumerDeps, Delivery, OrderConsumer};
use crate::actors::order_consumer::ack_window::Ack;
use crate::actors::supervisor::supervised::{spawn_step, spawn_wait};
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::messages::{WriteResult, WriterExited};

/// The token that is counted up to find out whether the ledger commits.
const CANARY: &str = "canary";

/// Single orders that were taken off submissions without evidence: one that the ledger takes is
/// enough, and each is a transaction of its own when the ledger is back.
const PROBES_MAX: usize = 64;

/// One intent in hand.
#[derive(Debug, Clone)]
pub(super) struct InFlightIntent {
    pub(super) delivery: Arc<Delivery>,
    pub(super) bytes: Bytes,
    pub(super) intent: OrderIntent,
    /// Failures that were its own.
    pub(super) attempts: u32,
}

impl InFlightIntent {
    /// An intent that was not tried yet.
    pub(super) fn new(delivery: Arc<Delivery>, bytes: Bytes, intent: OrderIntent) -> Self {
        Self { delivery, bytes, intent, attempts: 0 }
    }
}

/// One submission.
#[derive(Debug)]
pub(super) struct Submission {
    /// The subscription that its deliveries belong to.
    subscription: u64,
    items: Vec<InFlightIntent>,
    /// Whether it must have its transactions to itself: it failed, or was delivered often.
    is_exclusive: bool,
    /// Commits of the ledger when it last failed in transactions of its own.
    failed_at: Option<u64>,
    /// Whether it comes from the retry queue.
    is_retry: bool,
}

impl Submission {
    /// A submission that shares its transactions with others.
    pub(super) fn batched(subscription: u64, items: Vec<InFlightIntent>) -> Self {
        Self { subscription, items, is_exclusive: false, failed_at: None, is_retry: false }
    }

    /// A submission that must have its transactions to itself.
    pub(super) fn exclusive(subscription: u64, items: Vec<InFlightIntent>) -> Self {
        Self { is_exclusive: true, ..Self::batched(subscription, items) }
    }

    /// Whether one order failed alone, and the ledger has committed nothing since that would tell
    /// whether the order or the ledger is at fault.
    fn lacks_evidence(&self, num_commits: u64) -> bool {
        self.is_exclusive && self.items.len() == 1 && self.failed_at == Some(num_commits)
    }
}

impl OrderConsumer {
    /// Submits what came together, in pieces that fit one transaction; while the ledger fails it
    /// waits behind what failed before.
    pub(super) fn submit_together(&mut self, ctx: &mut Context<Self>, items: Vec<InFlightIntent>) {
        let waits = self.deps.breaker.is_open() && !self.hand.retries.is_empty();
        for items in items.chunks(self.deps.limits.batch_max.max(1)) {
            let submission = Submission::batched(self.hand.subscription, items.to_vec());
            if waits {
                self.hold(submission);
            } else {
                self.submit(ctx, submission);
            }
        }
        self.retry_later(ctx);
    }

    pub(super) fn submit(&mut self, ctx: &mut Context<Self>, submission: Submission) {
        if submission.items.is_empty() {
            return;
        }
        // Crash here [delivered_not_submitted]: nothing is written and nothing acknowledged; the
        // broker delivers again.
        self.under_way.inside += 1;
        let deps = self.deps.clone();
        let known = self.known;
        let intents: Vec<OrderIntent> = submission.items.iter().map(|item| item.intent).collect();
        let is_exclusive = submission.is_exclusive;
        let lacks_evidence = submission.lacks_evidence(deps.breaker.num_commits());
        let mut held = self.hand.held.subscribe();
        let work = async move {
            let trying = async {
                let written = deps.orders.land(intents, is_exclusive).await;
                let failed = written.as_ref().map_or(true, |all| all.iter().any(Result::is_err));
                if failed && lacks_evidence {
                    commit_canary(&deps, known).await;
                }
                written
            };
            tokio::select! {
                tried = trying => Some(tried),
                // Fails once the hand is forgotten, and never ends otherwise.
                _forgotten = held.changed() => None,
            }
        };
        spawn_wait(self, ctx, work, move |intake, ctx, tried| {
            intake.under_way.inside -= 1;
            // Numbers of an older subscription name other deliveries now.
            if let Some(written) = tried
                && submission.subscription == intake.hand.subscription
            {
                intake.tried(ctx, submission, written);
            }
            intake.report_if_idle();
        });
    }

    /// The ledger has answered for a submission, or failed over it.
    fn tried(
        &mut self,
        ctx: &mut Context<Self>,
        submission: Submission,
        written: Result<Vec<WriteResult>, WriterExited>,
    ) {
        let Submission { subscription, items, is_exclusive, failed_at, is_retry } = submission;
        let num_submitted = items.len();
        let (mut failed, mut text) = (Vec::new(), None);
        let (results, mut trouble) = match written {
            Ok(results) => (results, NoOutcome::NotTried),
            Err(WriterExited::Before) => (Vec::new(), NoOutcome::NotTried),
            Err(WriterExited::OverIt) => (Vec::new(), NoOutcome::Crashed),
        };
        let mut results = results.into_iter();
        for item in items {
            match results.next() {
                Some(Ok(outcome)) => self.done(&item, &outcome),
                Some(Err(fault)) => {
                    trouble = trouble.or_worse(fault.class);
                    text = Some(fault.text);
                    failed.push(item);
                }
                None => failed.push(item),
            }
        }
        let num_commits = self.deps.breaker.num_commits();
        let step = next(&FailedAttempt {
            trouble,
            num_submitted,
            was_exclusive: is_exclusive,
            failed_at,
            num_commits,
            attempts: failed.first().map_or(0, |item| item.attempts),
            attempts_max: self.deps.limits.attempts_max,
        });
        let is_held =
            !failed.is_empty() && matches!(step, RetryDecision::Hold | RetryDecision::Probe);
        if !failed.is_empty() {
            let text = text.unwrap_or_else(|| "the consumer crashed over it".into());
            let is_own = is_exclusive && trouble.may_be_its_own();
            // The first failure stands until the ledger commits something else.
            let failed_at = failed_at.or(is_own.then_some(num_commits));
            let failed = Submission { failed_at, ..Submission::exclusive(subscription, failed) };
            self.follow(ctx, step, failed, &text);
        }
        if is_retry {
            self.hand.retries.back(!is_held);
        }
        self.retry_later(ctx);
        self.publish(ctx);
        self.acknowledge(ctx);
    }

    /// Does with what has no outcome what was decided.
    fn follow(
        &mut self,
        ctx: &mut Context<Self>,
        step: RetryDecision,
        failed: Submission,
        text: &str,
    ) {
        let again = |items| Submission::exclusive(failed.subscription, items);
        match step {
            RetryDecision::Probe if failed.items.len() > 1 && self.num_single() < PROBES_MAX => {
                let mut first = failed.items;
                let rest = first.split_off(1);
                self.hold(Submission { failed_at: failed.failed_at, ..again(rest) });
                self.hold(again(first));
            }
            RetryDecision::Hold | RetryDecision::Probe => self.hold(failed),
            RetryDecision::Split(parts) => {
                let size = failed.items.len().div_ceil(parts.max(1)).max(1);
                for part in failed.items.chunks(size) {
                    self.hold(again(part.to_vec()));
                }
            }
            RetryDecision::Count => self.count(ctx, failed.items, text),
            RetryDecision::DeadLetter => {
                for item in failed.items {
                    self.dead_letter_failed(&item, text);
                }
            }
        }
    }

    /// One intent is in the ledger, as an order or as a refusal.
    fn done(&mut self, item: &InFlightIntent, outcome: &PlaceOutcome) {
        let InFlightIntent { delivery, intent, .. } = item;
        if outcome.order().is_some() {
            self.known = Some(*intent);
        }
        if matches!(outcome, PlaceOutcome::Placed(_)) {
            let took_ms = self.deps.clock.wall_ms().saturating_sub(intent.placed_at_ms);
            self.deps.metrics.landing(took_ms);
        }
        tracing::debug!(
            request = %intent.request,
            trace_id = %intent.trace,
            queue = self.deps.queue,
            ?outcome,
            "committed"
        );
        self.hand.window.end_one(delivery.tag);
    }

    /// One order failed on its own account: it is tried again after a wait that doubles.
    fn count(&mut self, ctx: &mut Context<Self>, items: Vec<InFlightIntent>, text: &str) {
        let mut attempts = 0;
        let mut items = items;
        for item in &mut items {
            item.attempts = item.attempts.saturating_add(1);
            attempts = item.attempts;
            self.deps.metrics.intake_retry();
            self.hand.window.stick(item.delivery.tag);
            tracing::warn!(
                queue = self.deps.queue,
                request = %item.intent.request,
                trace_id = %item.intent.trace,
                attempts,
                error = text,
                "order failed while the ledger commits others, retrying"
            );
        }
        let num_commits = self.deps.breaker.num_commits();
        let again = Submission {
            failed_at: Some(num_commits),
            ..Submission::exclusive(self.hand.subscription, items)
        };
        let longest = Duration::from_millis(self.deps.limits.ask_again_ms.1);
        ctx.run_later(longest.saturating_mul(1 << attempts.min(16)), move |intake, ctx| {
            if again.subscription == intake.hand.subscription {
                intake.hold(again);
                intake.retry_later(ctx);
            }
        });
    }

    /// Single orders that wait.
    fn num_single(&self) -> usize {
        self.hand.retries.num(|waiting| waiting.items.len() == 1)
    }

    /// Keeps a submission until the ledger can be tried again.
    fn hold(&mut self, submission: Submission) {
        for item in &submission.items {
            self.hand.window.stick(item.delivery.tag);
        }
        let held = Submission { is_exclusive: true, is_retry: true, ..submission };
        self.hand.retries.push(held);
    }

    /// Tries what is held when its time has come.
    fn retry_later(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.retrying || self.is_quiet {
            return;
        }
        let Some(wait) = self.hand.retries.next_wait(fastrand::f64()) else { return };
        self.under_way.retrying = true;
        ctx.run_later(wait, |intake, ctx| {
            intake.under_way.retrying = false;
            if intake.is_quiet {
                return;
            }
            for submission in intake.hand.retries.take() {
                intake.submit(ctx, submission);
            }
            intake.retry_later(ctx);
        });
    }

    /// Acknowledges what is at its end; one call at a time, so that the broker hears of every
    /// delivery once and in order.
    pub(super) fn acknowledge(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.acknowledging {
            return;
        }
        let Some(acks) = self.hand.acks.clone() else { return };
        let due = self.hand.window.take_acks();
        if due.is_empty() {
            return;
        }
        self.note_in_hand();
        self.under_way.acknowledging = true;
        // Crash here [committed_not_acknowledged]: the ledger has the orders; what is delivered
        // again is a repeat, and acknowledged as a success.
        let work = async move {
            for ack in due {
                match ack {
                    Ack::UpTo(tag) => acks.up_to(tag).await,
                    Ack::One(tag) => acks.one(tag).await,
                }
            }
        };
        spawn_step(self, ctx, work, |intake, ctx, ()| {
            intake.under_way.acknowledging = false;
            intake.acknowledge(ctx);
            intake.report_if_idle();
        });
    }

    pub(super) fn note_in_hand(&self) {
        self.deps.metrics.intake_in_hand(self.deps.queue, self.hand.window.len());
    }
}

/// Makes evidence where no other order does: an order that the ledger has is placed again, which
/// its unique key must refuse, and a token is counted up, which must be committed. A ledger that
/// can be read and not written, or whose table of orders is gone, passes neither.
async fn commit_canary(deps: &ConsumerDeps, known: Option<OrderIntent>) {
    let Some(known) = known else { return };
    let repeated = deps.orders.land(vec![known], true).await;
    let is_there = repeated.is_ok_and(|all| all.iter().all(Result::is_ok));
    if is_there && deps.ledger.next_token(CANARY).await.is_ok() {
        deps.breaker.committed();
    }
}
