//! Follows up payments that no deadline brings up again soon: the provider did not answer before
//! their order ended, another attempt paid the order, or the order has no deadline in the next
//! hour. And reports that came before their payment was known.
//!
//! Limits: calls per pass, one round through all of them an hour. On error: the round goes on after
//! a wait. On crash: the round begins again. May repeat: everything.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::TimerDeps;
use crate::db;
use crate::domain::{AttemptKey, Order, Payment};
use crate::services::order_life::OrderError;

/// Time between two rounds through the payments in doubt.
const ROUND_EVERY: Duration = Duration::from_secs(3_600);

/// Wait until the provider is asked again after it did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Time between two looks for reports whose payment is known by now.
const MATCH_EVERY: Duration = Duration::from_secs(10);

/// How long a report is matched again.
const MATCHED_FOR_MS: i64 = 86_400_000;

/// How far the round has come.
#[derive(Debug, Default)]
pub struct Doubts {
    after: Cell<Option<AttemptKey>>,
    next_page: Cell<Option<Instant>>,
    next_match: Cell<Option<Instant>>,
}

/// Does what has become due.
pub(super) async fn follow_up(deps: &TimerDeps, doubts: &Doubts) -> Result<(), db::Error> {
    let now = deps.clock.now();
    let is_due = |at: &Cell<Option<Instant>>| at.get().is_none_or(|at| at <= now);
    if is_due(&doubts.next_match) {
        doubts.next_match.set(Some(now + MATCH_EVERY));
        match_events(deps).await?;
    }
    if is_due(&doubts.next_page) {
        ask_page(deps, doubts).await?;
    }
    Ok(())
}

/// Records unmatched reports again whose payment is known by now.
async fn match_events(deps: &TimerDeps) -> Result<(), db::Error> {
    let since_ms = deps.clock.wall_ms().saturating_sub(MATCHED_FOR_MS);
    for unmatched in deps.ledger.matchable_events(since_ms, deps.settings.batch).await? {
        let (provider, event_id) = (unmatched.event.provider, unmatched.event.event_id);
        if let Err(error) = deps.orders.match_event(provider, event_id).await {
            if error.class() != db::ErrorClass::Bug {
                return Err(error);
            }
            tracing::error!(%error, "payment event: not matched");
        }
    }
    Ok(())
}

/// Asks about the next payments of the round.
async fn ask_page(deps: &TimerDeps, doubts: &Doubts) -> Result<(), db::Error> {
    let at_once = deps.calls_at_once();
    let limit = u32::try_from(at_once).unwrap_or(u32::MAX);
    let round_ms = i64::try_from(ROUND_EVERY.as_millis()).unwrap_or(i64::MAX);
    let due_by_ms = deps.clock.wall_ms().saturating_add(round_ms);
    let page = deps.ledger.payments_in_doubt(due_by_ms, doubts.after.get(), limit).await?;
    let now = deps.clock.now();
    let answers = join_all(page.iter().map(|(order, payment)| ask(deps, order, payment))).await;
    let mut is_away = !page.is_empty();
    for answer in answers {
        match answer {
            Err(OrderError::Ledger(error)) if error.class() != db::ErrorClass::Bug => {
                return Err(error);
            }
            Err(OrderError::ProviderAway) => {}
            _ => is_away = false,
        }
    }
    // Goes on after the page in any case: payments of a provider that is gone hide no others.
    let is_last = page.len() < at_once;
    doubts.after.set(page.last().filter(|_| !is_last).map(|(_, payment)| payment.key));
    if is_away {
        doubts.next_page.set(Some(now + ASK_AGAIN));
    } else if is_last {
        doubts.next_page.set(Some(now + ROUND_EVERY));
    }
    Ok(())
}

async fn ask(deps: &TimerDeps, order: &Order, payment: &Payment) -> Result<(), OrderError> {
    let answer = deps.orders.follow_up(order, payment).await;
    if let Err(OrderError::Ledger(error)) = &answer {
        tracing::error!(attempt = %payment.key, %error, "payment in doubt: answer not recorded");
    }
    answer
}
