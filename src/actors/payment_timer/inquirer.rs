//! Asks the provider about payments whose webhook may be lost: once half of the time to pay has
//! passed, and at the deadline, when it must stop the payment before the order can end.
//!
//! A stopped payment leaves its order to the payment timer. Where the provider does not answer, the
//! order keeps its units until `payment.extension_max_s` has passed, and ends then; money that
//! arrives later buys again or is paid back. Limits: orders per pass, half of `payment.calls_max`
//! calls at once. On error: asked again after a wait. On crash: the waits are forgotten. May
//! repeat: everything.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::{TimerDeps, doubts, is_due};
use crate::actors::periodic::{RunResult, Task};
use crate::db;
use crate::domain::{AttemptKey, DueOrder, OrderKey, OrderState, Payment};
use crate::runtime::clock_guard::SteadyTime;
use crate::services::order_life::OrderError;

/// Wait until the provider is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Most batches of orders that wait for their next question and are read again.
const BATCHES_WAITING_MAX: u32 = 10;

/// Asks about open payments.
pub struct PaymentInquirer(pub Arc<TimerDeps>);

/// The answers of earlier passes, of orders that are still `paying`.
#[derive(Debug, Default)]
pub struct Asked(RefCell<HashMap<AttemptKey, Ask>>, doubts::Doubts);

#[derive(Debug, Clone, Copy)]
struct Ask {
    /// When to ask again.
    next: Instant,
    /// Whether the provider was asked to stop the payment.
    to_stop: bool,
}

/// One open payment to ask about.
struct Question<'a> {
    due: &'a DueOrder,
    payment: &'a Payment,
    to_stop: bool,
}

impl Task for PaymentInquirer {
    type State = Asked;

    const FAILURE: &'static str = "open payments not looked at, retrying";

    async fn run(&self, asked: &Asked) -> RunResult {
        while let Some(now) = self.0.time.now().await? {
            if !self.pass(asked, &now).await? {
                break;
            }
        }
        Ok(doubts::follow_up(&self.0, &asked.1).await?)
    }
}

impl PaymentInquirer {
    /// Asks about one batch; returns whether there may be more.
    async fn pass(&self, asked: &Asked, now: &SteadyTime) -> Result<bool, db::Error> {
        let settings = &self.0.settings;
        let half_window_ms = i64::from(settings.paying_window_s) * 500;
        // Those that wait for their next question hide no others.
        let num_waiting = u32::try_from(asked.0.borrow().len()).unwrap_or(u32::MAX);
        let waiting_max = settings.batch.saturating_mul(BATCHES_WAITING_MAX);
        let limit = settings.batch.saturating_add(num_waiting.min(waiting_max));
        let until_ms = now.wall_ms().saturating_add(half_window_ms);
        let paying = self.0.ledger.due_orders(OrderState::Paying, until_ms, limit).await?;
        let mut questions = self.questions(asked, &paying, now);
        let batch = usize::try_from(settings.batch).unwrap_or(usize::MAX);
        let is_full = questions.len() >= batch;
        questions.truncate(batch);
        let (any_answered, first_error) = self.ask(asked, &questions).await;
        self.end_late(asked, &paying, now).await?;
        match first_error {
            Some(error) => Err(error),
            None => Ok(is_full && any_answered),
        }
    }

    /// What to ask now, those to be stopped first: the orders are sorted by their deadline.
    fn questions<'a>(
        &self,
        asked: &Asked,
        paying: &'a [DueOrder],
        time: &SteadyTime,
    ) -> Vec<Question<'a>> {
        let mut asked = asked.0.borrow_mut();
        let open: HashSet<AttemptKey> =
            paying.iter().filter_map(|due| Some(due.open.as_ref()?.key)).collect();
        asked.retain(|attempt, _| open.contains(attempt));
        let now = self.0.clock.now();
        let question = |due: &'a DueOrder| {
            let payment = due.open.as_ref()?;
            let to_stop = is_due(&due.order, time);
            let waits = asked
                .get(&payment.key)
                .is_some_and(|ask| ask.next > now && (ask.to_stop || !to_stop));
            (!waits).then_some(Question { due, payment, to_stop })
        };
        paying.iter().filter_map(question).collect()
    }

    /// Asks the provider. Returns whether it answered at all, and the ledger's first error.
    async fn ask(&self, asked: &Asked, questions: &[Question<'_>]) -> (bool, Option<db::Error>) {
        let (mut any_answered, mut first_error) = (false, None);
        let mut is_away = false;
        for chunk in questions.chunks(self.0.calls_at_once()) {
            if is_away {
                self.wait(asked, chunk);
                continue;
            }
            let answers = join_all(chunk.iter().map(|question| self.ask_one(question))).await;
            // A provider that answers none of so many is away: the others would wait for nothing.
            is_away = answers.iter().all(Result::is_err);
            any_answered |= !is_away;
            self.wait(asked, chunk);
            for (question, answer) in chunk.iter().zip(answers) {
                match answer {
                    // The order is no longer `paying`.
                    Ok(()) if question.to_stop => {
                        asked.0.borrow_mut().remove(&question.payment.key);
                    }
                    Err(OrderError::Ledger(error)) => {
                        first_error.get_or_insert(error);
                    }
                    _ => {}
                }
            }
        }
        (any_answered, first_error)
    }

    async fn ask_one(&self, question: &Question<'_>) -> Result<(), OrderError> {
        let Question { due, payment, to_stop } = question;
        if *to_stop {
            self.0.orders.stop(&due.order, payment).await
        } else {
            self.0.orders.inquire(payment).await
        }
    }

    fn wait(&self, asked: &Asked, questions: &[Question<'_>]) {
        let next = self.0.clock.now() + ASK_AGAIN;
        let asks = questions
            .iter()
            .map(|question| (question.payment.key, Ask { next, to_stop: question.to_stop }));
        asked.0.borrow_mut().extend(asks);
    }

    /// Ends the orders whose payment could not be stopped and whose last extension has passed.
    async fn end_late(
        &self,
        asked: &Asked,
        paying: &[DueOrder],
        now: &SteadyTime,
    ) -> Result<(), db::Error> {
        let extension_max_ms = i64::from(self.0.settings.extension_max_s) * 1_000;
        let mut late: Vec<OrderKey> = Vec::new();
        let mut num_in_doubt = 0;
        for due in paying.iter().filter(|due| is_due(&due.order, now)) {
            let open = due.open.as_ref().map(|payment| payment.key);
            let is_in_doubt = open.is_none_or(|attempt| {
                asked.0.borrow().get(&attempt).is_some_and(|ask| ask.to_stop)
            });
            num_in_doubt += i64::from(is_in_doubt);
            let limit_ms = due.order.pay_by_ms.map(|at| at.saturating_add(extension_max_ms));
            let passed_ms = now.since(due.order.placed_at_ms);
            if is_in_doubt && limit_ms.is_some_and(|limit_ms| limit_ms <= passed_ms) {
                late.push(due.order.key());
            }
        }
        let num_ended = self.0.orders.end_due(late).await?;
        self.0.metrics.orders_timed_out.inc_by(num_ended as u64);
        let num_ended = i64::try_from(num_ended).unwrap_or(i64::MAX);
        self.0.metrics.payments_in_doubt.set(num_in_doubt - num_ended);
        Ok(())
    }
}
