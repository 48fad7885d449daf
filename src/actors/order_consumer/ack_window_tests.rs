use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A step of the property test; `pick` is taken modulo the number of open deliveries.
#[derive(Debug, Clone)]
enum Event {
    Deliver { parts: usize },
    Complete { pick: usize },
    MarkStuck { pick: usize },
    Acknowledge,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1_usize..4).prop_map(|parts| Event::Deliver { parts }),
        6 => any::<usize>().prop_map(|pick| Event::Complete { pick }),
        1 => any::<usize>().prop_map(|pick| Event::MarkStuck { pick }),
        2 => Just(Event::Acknowledge),
    ];
    prop::collection::vec(event, 1..200)
}

/// The broker's view: deliveries, and those that are not acknowledged.
#[derive(Default)]
struct Broker {
    open: Vec<(u64, usize)>,
    completed: BTreeSet<u64>,
    unacknowledged: BTreeSet<u64>,
}

impl Broker {
    fn receive(&mut self, (up_to, singly): (Option<u64>, Vec<u64>)) {
        let at_front = up_to.map(|tag| self.unacknowledged.range(..=tag).copied().collect());
        let singly = singly.into_iter().map(|tag| (tag, vec![tag]));
        for (tag, covered) in up_to.zip(at_front).into_iter().chain(singly) {
            // RabbitMQ closes the channel on an unknown delivery tag.
            assert!(self.unacknowledged.contains(&tag), "{tag} is unknown");
            for each in covered {
                assert!(self.completed.contains(&each), "{tag} covers {each}, which is open");
                self.unacknowledged.remove(&each);
            }
        }
    }

    fn complete(&mut self, at: usize) -> u64 {
        let (tag, parts) = self.open[at];
        if parts == 1 {
            self.open.remove(at);
            self.completed.insert(tag);
        } else {
            self.open[at].1 -= 1;
        }
        tag
    }
}

proptest! {
    #[test]
    fn open_deliveries_are_never_acknowledged_completed_ones_once(events in events()) {
        let (mut window, mut broker) = (AckWindow::default(), Broker::default());
        let mut last = 0;
        for event in events {
            match event {
                Event::Deliver { parts } => {
                    last += 1;
                    window.add(last, None);
                    window.split(last, parts);
                    broker.open.push((last, parts));
                    broker.unacknowledged.insert(last);
                }
                Event::Complete { pick } if !broker.open.is_empty() => {
                    let tag = broker.complete(pick % broker.open.len());
                    window.complete_part(tag);
                }
                Event::MarkStuck { pick } if !broker.open.is_empty() => {
                    window.mark_stuck(broker.open[pick % broker.open.len()].0);
                }
                Event::Acknowledge => broker.receive(window.take_acks()),
                _ => {}
            }
        }
        while !broker.open.is_empty() {
            let tag = broker.complete(0);
            window.complete_part(tag);
        }
        broker.receive(window.take_acks());
        prop_assert!(broker.unacknowledged.is_empty() && window.is_empty());
    }
}

#[test]
fn deliveries_behind_a_stuck_one_are_acknowledged_one_by_one() {
    let mut window = AckWindow::default();
    for tag in 1..=5 {
        window.add(tag, None);
    }
    for tag in [1, 3, 5] {
        window.complete_part(tag);
    }
    assert_eq!(window.take_acks(), (Some(1), vec![]), "the completed prefix");
    window.mark_stuck(2);
    assert_eq!(window.take_acks(), (None, vec![3, 5]));
    for tag in [2, 4] {
        window.complete_part(tag);
    }
    assert_eq!(window.take_acks(), (Some(4), vec![]));
}

#[test]
fn the_watermark_is_the_oldest_unacknowledged_delivery_then_the_last_one() {
    let mut window = AckWindow::default();
    assert_eq!(window.watermark(), None, "no delivery yet");
    for (tag, sent_at_ms) in [(1, Some(30)), (2, Some(10)), (3, Some(40)), (4, None)] {
        window.add(tag, sent_at_ms);
    }
    assert_eq!(window.watermark(), Some(10), "a redelivery after a newer one");
    (1..=4).for_each(|tag| window.complete_part(tag));
    assert_eq!(window.take_acks(), (Some(4), vec![]));
    assert_eq!(window.watermark(), Some(40), "all acknowledged");
}
