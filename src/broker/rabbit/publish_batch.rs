//! Which messages are sent together, and in which order. Pure.
//!
//! As long as every queue confirms, all go together, a window at most. Where a confirmation does
//! not come, nobody can say whose fault it is: then each queue of that parcel has parcels of its
//! own, with half the window. Those that confirm them are soon back among the others.

use std::collections::VecDeque;

use super::super::{Message, PublishOutcome, Route};

/// Messages that are sent together.
#[derive(Debug, Default)]
pub(super) struct PublishBatch {
    /// Where each message stood in the call.
    pub(super) places: Vec<usize>,
    /// Where each message goes.
    pub(super) routes: Vec<Route>,
    pub(super) messages: Vec<Message>,
}

/// What is known of the queues of one publisher.
#[derive(Debug)]
pub(super) struct QueueHistory {
    window_max: usize,
    /// Queues in doubt, with their windows. They are served last, because a call ends where a
    /// confirmation does not come; among them the one first that has waited longest.
    doubtful: VecDeque<(Route, usize)>,
}

/// What is left of one call: what goes together, and what each queue in doubt gets.
#[derive(Debug)]
pub(super) struct Remainder(VecDeque<Part>);

/// The messages of one queue in doubt, or of all others, with their places.
type Part = (Option<Route>, VecDeque<(usize, Message)>);

impl QueueHistory {
    pub(super) fn new(window: usize) -> Self {
        Self { window_max: window.max(1), doubtful: VecDeque::new() }
    }

    /// Sorts the messages of a call.
    pub(super) fn make(&self, messages: Vec<Message>) -> Remainder {
        let queues = self.doubtful.iter().map(|(route, _)| (Some(*route), VecDeque::new()));
        let mut parts: VecDeque<_> =
            std::iter::once((None, VecDeque::new())).chain(queues).collect();
        for (place, message) in messages.into_iter().enumerate() {
            let is_its = |(route, _): &Part| *route == Some(message.route);
            let index = parts.iter().position(is_its).unwrap_or(0);
            if let Some((_, part)) = parts.get_mut(index) {
                part.push_back((place, message));
            }
        }
        parts.retain(|(_, part)| !part.is_empty());
        Remainder(parts)
    }

    fn window(&self, route: Option<Route>) -> usize {
        let doubtful = self.doubtful.iter().find(|(doubtful, _)| Some(*doubtful) == route);
        doubtful.map_or(self.window_max, |(_, window)| *window)
    }

    /// Notes what became of a parcel. False: nothing more of this call is to be sent, so that it
    /// takes the time of one confirmation and not of many.
    pub(super) fn note(&mut self, routes: &[Route], sent: &[PublishOutcome]) -> bool {
        let any = |is: fn(&PublishOutcome) -> bool| sent.iter().any(is);
        let is_doubtful = any(|sent| matches!(sent, PublishOutcome::Unknown { .. }));
        if !is_doubtful && any(|sent| matches!(sent, PublishOutcome::NotSent { .. })) {
            return false;
        }
        let mut nums: Vec<(Route, usize)> = Vec::new();
        for route in routes {
            match nums.iter_mut().find(|(known, _)| known == route) {
                Some((_, num)) => *num += 1,
                None => nums.push((*route, 1)),
            }
        }
        for (route, num) in nums {
            self.note_one(route, is_doubtful.then_some(num));
        }
        !is_doubtful
    }

    /// One queue of a parcel; `doubtful`: so many messages of it are.
    fn note_one(&mut self, route: Route, doubtful: Option<usize>) {
        let window = self.window(Some(route));
        self.doubtful.retain(|(known, _)| *known != route);
        if let Some(num) = doubtful {
            self.doubtful.push_back((route, (window.min(num) / 2).max(1)));
        } else if window.saturating_mul(2) < self.window_max {
            self.doubtful.push_back((route, window * 2));
        }
    }
}

impl Remainder {
    /// What goes next.
    pub(super) fn next(&mut self, parcels: &QueueHistory) -> Option<PublishBatch> {
        let (route, part) = self.0.front_mut()?;
        let num = parcels.window(*route).min(part.len());
        let mut parcel = PublishBatch::default();
        for (place, message) in part.drain(..num) {
            parcel.places.push(place);
            parcel.routes.push(message.route);
            parcel.messages.push(message);
        }
        if part.is_empty() {
            self.0.pop_front();
        }
        Some(parcel)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::broker::Headers;

    const ONE: Route = Route::Orders(1);
    const TWO: Route = Route::Orders(2);

    fn message(route: Route) -> Message {
        Message { route, headers: Headers::default(), body: Bytes::new() }
    }

    fn unknown() -> PublishOutcome {
        PublishOutcome::Unknown { reason: String::new() }
    }

    /// One call: the places of each parcel. `sick` confirms nothing.
    fn call(parcels: &mut QueueHistory, routes: &[Route], sick: Option<Route>) -> Vec<Vec<usize>> {
        let mut rest = parcels.make(routes.iter().copied().map(message).collect());
        let mut seen = Vec::new();
        while let Some(PublishBatch { places, routes, messages }) = rest.next(parcels) {
            assert_eq!((places.len(), routes.len()), (messages.len(), messages.len()));
            let is_sick = routes.iter().any(|route| Some(*route) == sick);
            let sent = if is_sick { unknown() } else { PublishOutcome::Confirmed };
            seen.push(places);
            if !parcels.note(&routes, &vec![sent; routes.len()]) {
                break;
            }
        }
        seen
    }

    #[test]
    fn all_go_together_a_window_at_most() {
        let mut parcels = QueueHistory::new(2);
        assert_eq!(call(&mut parcels, &[ONE, TWO, ONE], None), [vec![0, 1], vec![2]]);
        assert_eq!(call(&mut parcels, &[], None), [[0; 0]; 0]);
    }

    #[test]
    fn a_queue_that_confirms_nothing_is_soon_alone_and_last() {
        let mut parcels = QueueHistory::new(4);
        let routes = [ONE, TWO, ONE, TWO];
        assert_eq!(
            call(&mut parcels, &routes, Some(ONE)),
            [[0, 1, 2, 3]],
            "nobody knows whose fault"
        );
        // Each by itself from here on; the one in doubt stops its call and waits longest.
        assert_eq!(call(&mut parcels, &routes, Some(ONE)), [[0]]);
        assert_eq!(call(&mut parcels, &routes, Some(ONE)), [vec![1], vec![3], vec![0]]);
        assert_eq!(call(&mut parcels, &routes, Some(ONE)), [vec![1, 3], vec![0]]);
        // Until it confirms: its window grows back.
        assert_eq!(call(&mut parcels, &routes, None), [vec![1, 3], vec![0], vec![2]]);
        assert_eq!(call(&mut parcels, &routes, None), [[0, 1, 2, 3]]);
    }

    #[test]
    fn a_broker_that_is_slow_is_sent_less_at_once() {
        let mut parcels = QueueHistory::new(8);
        let mut sizes = Vec::new();
        for _ in 0..5 {
            let parts = call(&mut parcels, &[ONE; 8], Some(ONE));
            sizes.push(parts[0].len());
        }
        assert_eq!(sizes, [8, 4, 2, 1, 1], "never less than one");
    }

    #[test]
    fn what_cannot_be_sent_says_nothing_of_its_queue() {
        let mut parcels = QueueHistory::new(8);
        let away = PublishOutcome::NotSent { reason: String::new() };
        assert!(!parcels.note(&[ONE], &[away]));
        assert_eq!(parcels.window(Some(ONE)), 8);
    }
}
