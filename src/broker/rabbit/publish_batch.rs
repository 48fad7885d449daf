//! The batches of a publish call: which messages are sent together, and the outcome of each. Pure.
//!
//! While every queue confirms, a batch holds messages of all queues, up to the window. A missing
//! confirmation does not name its queue: each queue of that batch then gets batches of its own,
//! with half the window. A queue that confirms doubles its window until it rejoins the others.
//!
//! The client library delivers a returned message with the next confirmation on the channel, not
//! with its own. So returns may be missing until every confirmation of a batch has arrived, and
//! only then is an acknowledged message certainly in a queue. Each message carries a number that
//! identifies its return.

use std::collections::VecDeque;

use super::super::{Message, PublishOutcome, Route};

/// The windows of one publisher's queues.
#[derive(Debug)]
pub(super) struct QueueHistory {
    window_max: usize,
    /// Queues in doubt, with their windows, the one that waited longest first. They are published
    /// last, because a missing confirmation ends the call.
    doubtful: VecDeque<(Route, usize)>,
}

impl QueueHistory {
    pub(super) fn new(window: usize) -> Self {
        Self { window_max: window.max(1), doubtful: VecDeque::new() }
    }

    /// The messages of a call with their indices: those of all confirming queues, then those of
    /// each queue in doubt.
    pub(super) fn ordered(&self, messages: Vec<Message>) -> VecDeque<(usize, Message)> {
        let mut unsent: Vec<_> = messages.into_iter().enumerate().collect();
        unsent.sort_by_key(|(_, message)| self.position(message.route));
        unsent.into()
    }

    /// Takes the messages that are sent and confirmed together next, with their indices.
    pub(super) fn next_batch(
        &self,
        unsent: &mut VecDeque<(usize, Message)>,
    ) -> (Vec<usize>, Vec<Message>) {
        let Some((_, first)) = unsent.front() else { return (Vec::new(), Vec::new()) };
        let position = self.position(first.route);
        let is_same = |(_, message): &&(usize, Message)| self.position(message.route) == position;
        let num = unsent.iter().take(self.window(first.route)).take_while(is_same).count();
        unsent.drain(..num).unzip()
    }

    /// The position of the queue among those in doubt; `None` if it confirms.
    fn position(&self, route: Route) -> Option<usize> {
        self.doubtful.iter().position(|(doubtful, _)| *doubtful == route)
    }

    fn window(&self, route: Route) -> usize {
        let doubtful = self.position(route).and_then(|position| self.doubtful.get(position));
        doubtful.map_or(self.window_max, |(_, window)| *window)
    }

    /// Records the outcomes of a batch. Returns false if the call must end, so that it takes at
    /// most one confirmation time-out.
    pub(super) fn record(&mut self, routes: &[Route], outcomes: &[PublishOutcome]) -> bool {
        let any = |is: fn(&PublishOutcome) -> bool| outcomes.iter().any(is);
        let is_doubtful = any(|outcome| matches!(outcome, PublishOutcome::Unknown { .. }));
        if !is_doubtful && any(|outcome| matches!(outcome, PublishOutcome::NotSent { .. })) {
            return false;
        }
        for (index, route) in routes.iter().enumerate() {
            let is_same = |other: &&Route| *other == route;
            if !routes.iter().take(index).any(|other| other == route) {
                let num = routes.iter().filter(is_same).count();
                self.record_queue(*route, is_doubtful.then_some(num));
            }
        }
        !is_doubtful
    }

    /// Records one queue of a batch. `unconfirmed`: the number of its messages in a batch that was
    /// not confirmed; `None` if the batch was.
    fn record_queue(&mut self, route: Route, unconfirmed: Option<usize>) {
        let window = self.window(route);
        self.doubtful.retain(|(other, _)| *other != route);
        if let Some(num) = unconfirmed {
            self.doubtful.push_back((route, (window.min(num) / 2).max(1)));
        } else if window.saturating_mul(2) < self.window_max {
            self.doubtful.push_back((route, window * 2));
        }
    }
}

/// The messages of one batch, numbered consecutively.
#[derive(Debug)]
pub(super) struct Confirmations {
    first: u64,
    /// `Unknown` while in flight. `Confirmed` once the broker has acknowledged the message, which
    /// it may have returned.
    outcomes: Vec<PublishOutcome>,
    /// A return has no matching message.
    any_unmatched: bool,
}

impl Confirmations {
    /// `count` messages, numbered from `first`.
    pub(super) fn new(first: u64, count: usize) -> Self {
        let reason = "nothing was sent".to_owned();
        let outcomes = vec![PublishOutcome::NotSent { reason }; count];
        Self { first, outcomes, any_unmatched: false }
    }

    /// Sets why the remaining messages are not sent.
    pub(super) fn halt(&mut self, reason: &str) {
        for outcome in &mut self.outcomes {
            if let PublishOutcome::NotSent { reason: unsent } = outcome {
                reason.clone_into(unsent);
            }
        }
    }

    pub(super) fn acknowledged(&mut self, index: usize) {
        self.set(index, PublishOutcome::Confirmed);
    }

    pub(super) fn refused(&mut self, index: usize, reason: &str) {
        self.set(index, PublishOutcome::Refused { reason: reason.to_owned() });
    }

    /// Records a message that was sent and has no confirmation.
    pub(super) fn unknown(&mut self, index: usize, reason: &str) {
        self.set(index, PublishOutcome::Unknown { reason: reason.to_owned() });
    }

    /// Records a message that the broker returned.
    pub(super) fn returned(&mut self, number: Option<u64>, reason: &str) {
        let index = number.and_then(|number| number.checked_sub(self.first));
        let index = index.and_then(|index| usize::try_from(index).ok());
        match index.filter(|index| *index < self.outcomes.len()) {
            Some(index) => self.refused(index, reason),
            None => self.any_unmatched = true,
        }
    }

    /// A refusal is final: a return may arrive before the message's own confirmation.
    fn set(&mut self, index: usize, outcome: PublishOutcome) {
        let current = self.outcomes.get_mut(index);
        if let Some(current) = current.filter(|it| !matches!(it, PublishOutcome::Refused { .. })) {
            *current = outcome;
        }
    }

    /// The outcomes. Messages in flight count as unknown.
    pub(super) fn into_outcomes(self) -> Vec<PublishOutcome> {
        let is_unknown = |one: &PublishOutcome| matches!(one, PublishOutcome::Unknown { .. });
        let is_complete = !self.any_unmatched && !self.outcomes.iter().any(is_unknown);
        let outcome = |outcome| match outcome {
            PublishOutcome::Confirmed if !is_complete => PublishOutcome::Unknown {
                reason: "missing confirmations may carry a return".to_owned(),
            },
            certain => certain,
        };
        self.outcomes.into_iter().map(outcome).collect()
    }
}

#[cfg(test)]
#[path = "publish_batch_tests.rs"]
mod tests;
