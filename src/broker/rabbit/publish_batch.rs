//! Splits the messages of a publish call into batches. Pure.
//!
//! While every queue confirms, a batch holds messages of all queues, up to the window. A missing
//! confirmation does not name its queue: each queue of that batch then gets batches of its own,
//! with half the window. A queue that confirms doubles its window until it rejoins the others.

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

#[cfg(test)]
#[path = "publish_batch_tests.rs"]
mod tests;
