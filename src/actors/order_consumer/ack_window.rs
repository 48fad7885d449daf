//! The deliveries of one subscription that are in hand: which of them can be acknowledged, and how.
//! Pure.
//!
//! What is at its end is acknowledged with everything before it, in one frame for many. Only where
//! the oldest delivery is stuck (it waits for the ledger, or for a copy of it to be confirmed) are
//! those behind it acknowledged one by one, so that one bad order holds up nobody.

use std::collections::BTreeMap;

/// One acknowledgement. They must reach the broker in the order in which they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// This delivery and all before it.
    UpTo(u64),
    /// This delivery alone.
    One(u64),
}

#[derive(Debug, Clone, Copy)]
struct UnackedDelivery {
    /// Parts that are not at their end.
    open: usize,
    is_stuck: bool,
}

/// The deliveries in hand, by tag.
#[derive(Debug, Default)]
pub struct AckWindow {
    deliveries: BTreeMap<u64, UnackedDelivery>,
}

impl AckWindow {
    /// A delivery came; it counts as one part until [`Self::split`].
    pub fn enter(&mut self, tag: u64) {
        self.deliveries.insert(tag, UnackedDelivery { open: 1, is_stuck: false });
    }

    /// The delivery has so many parts, each with an end of its own. None of them has ended yet.
    pub fn split(&mut self, tag: u64, parts: usize) {
        if let Some(delivery) = self.deliveries.get_mut(&tag) {
            delivery.open = parts;
        }
    }

    /// One part of the delivery is at its end.
    pub fn end_one(&mut self, tag: u64) {
        if let Some(delivery) = self.deliveries.get_mut(&tag) {
            delivery.open = delivery.open.saturating_sub(1);
        }
    }

    /// The delivery may stay for long.
    pub fn stick(&mut self, tag: u64) {
        if let Some(delivery) = self.deliveries.get_mut(&tag) {
            delivery.is_stuck = true;
        }
    }

    /// What can be acknowledged now, in this order; it is no longer in hand.
    pub fn take_acks(&mut self) -> Vec<Ack> {
        let mut acks = Vec::new();
        let mut up_to = None;
        while let Some(first) = self.deliveries.first_entry() {
            if first.get().open > 0 {
                break;
            }
            up_to = Some(first.remove_entry().0);
        }
        acks.extend(up_to.map(Ack::UpTo));
        if self.deliveries.first_key_value().is_some_and(|(_, oldest)| oldest.is_stuck) {
            self.deliveries.retain(|tag, delivery| {
                let is_open = delivery.open > 0;
                if !is_open {
                    acks.push(Ack::One(*tag));
                }
                is_open
            });
        }
        acks
    }

    /// Whether this delivery is in hand.
    #[must_use]
    pub fn contains(&self, tag: u64) -> bool {
        self.deliveries.contains_key(&tag)
    }

    /// How many are in hand.
    #[must_use]
    pub fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// Whether none is in hand.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What may happen to the window; tags and parts are taken modulo what there is.
    #[derive(Debug, Clone)]
    enum Event {
        Enter { parts: usize },
        End { pick: usize },
        Stick { pick: usize },
        Acknowledge,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            3 => (1_usize..4).prop_map(|parts| Event::Enter { parts }),
            6 => any::<usize>().prop_map(|pick| Event::End { pick }),
            1 => any::<usize>().prop_map(|pick| Event::Stick { pick }),
            2 => Just(Event::Acknowledge),
        ];
        prop::collection::vec(event, 1..200)
    }

    /// The broker's view: what it delivered, and what it heard.
    #[derive(Default)]
    struct Broker {
        open: Vec<(u64, usize)>,
        done: BTreeSet<u64>,
        unacknowledged: BTreeSet<u64>,
    }

    impl Broker {
        fn hear(&mut self, acks: Vec<Ack>) {
            for ack in acks {
                let covered: Vec<u64> = match ack {
                    Ack::UpTo(tag) => self.unacknowledged.range(..=tag).copied().collect(),
                    Ack::One(tag) => vec![tag],
                };
                // RabbitMQ closes the channel over a tag that it does not wait for.
                let (Ack::UpTo(tag) | Ack::One(tag)) = ack;
                assert!(self.unacknowledged.contains(&tag), "{ack:?} is nobody's");
                for tag in covered {
                    assert!(self.done.contains(&tag), "{ack:?} covers {tag}, which is open");
                    self.unacknowledged.remove(&tag);
                }
            }
        }

        fn end(&mut self, at: usize) -> u64 {
            let (tag, parts) = self.open[at];
            if parts == 1 {
                self.open.remove(at);
                self.done.insert(tag);
            } else {
                self.open[at].1 -= 1;
            }
            tag
        }
    }

    proptest! {
        #[test]
        fn what_is_open_is_never_acknowledged_and_what_is_done_is_once(events in events()) {
            let (mut window, mut broker) = (AckWindow::default(), Broker::default());
            let mut last = 0;
            for event in events {
                match event {
                    Event::Enter { parts } => {
                        last += 1;
                        window.enter(last);
                        window.split(last, parts);
                        broker.open.push((last, parts));
                        broker.unacknowledged.insert(last);
                    }
                    Event::End { pick } if !broker.open.is_empty() => {
                        let tag = broker.end(pick % broker.open.len());
                        window.end_one(tag);
                    }
                    Event::Stick { pick } if !broker.open.is_empty() => {
                        window.stick(broker.open[pick % broker.open.len()].0);
                    }
                    Event::Acknowledge => broker.hear(window.take_acks()),
                    _ => {}
                }
            }
            while !broker.open.is_empty() {
                let tag = broker.end(0);
                window.end_one(tag);
            }
            broker.hear(window.take_acks());
            prop_assert!(broker.unacknowledged.is_empty() && window.is_empty());
        }
    }

    #[test]
    fn a_prefix_is_one_acknowledgement() {
        let mut window = AckWindow::default();
        for tag in 1..=4 {
            window.enter(tag);
        }
        for tag in [1, 2, 4] {
            window.end_one(tag);
        }
        assert_eq!(window.take_acks(), [Ack::UpTo(2)]);
        assert_eq!((window.take_acks(), window.len()), (vec![], 2));
    }

    #[test]
    fn behind_a_stuck_delivery_each_is_acknowledged_alone() {
        let mut window = AckWindow::default();
        for tag in 1..=4 {
            window.enter(tag);
        }
        window.stick(1);
        for tag in [2, 4] {
            window.end_one(tag);
        }
        assert_eq!(window.take_acks(), [Ack::One(2), Ack::One(4)]);
        for tag in [1, 3] {
            window.end_one(tag);
        }
        assert_eq!(window.take_acks(), [Ack::UpTo(3)]);
    }
}
