//! When a pipeline is at rest, and what then is lost. Pure.
//!
//! A request that was accepted and is still queued while nothing is under way anywhere will never
//! be answered by itself: its message was deleted with a queue, or its result was lost. It is sent
//! to the consumers again; the ledger makes one order of it, or says again what it said.

use std::time::{Duration, Instant};

use crate::broker::{Depth, Message, Route};
use crate::domain::{OrderIntent, RequestId};
use crate::messages::wire::{self, Malformed};
use crate::scripts::intent;
use crate::stock::BucketKey;

/// The wait doubles so often, at most, while strays are found time after time. More is not needed:
/// what is sent again fills the hands of consumers, and what no hand takes is no rest.
const DOUBLINGS_MAX: u32 = 1;

/// Whether every queue is empty from which a request could still be answered. What no queue wanted
/// does not count: it may lie there until an operator comes.
#[must_use]
pub fn are_empty(depths: &[Depth]) -> bool {
    depths.iter().all(|depth| depth.queue == "unroutable" || depth.is_surely_empty())
}

/// How long the pipeline has been at rest.
#[derive(Debug)]
pub struct Stillness {
    first: Duration,
    since: Option<Instant>,
    /// Searches in a row that found something.
    finds: u32,
}

impl Stillness {
    /// Nothing is known yet; `first` is how long rest must last.
    #[must_use]
    pub fn new(first: Duration) -> Self {
        Self { first, since: None, finds: 0 }
    }

    /// Notes a look at outbox and queues. True: rest has lasted long enough to search.
    ///
    /// What consumers have in hand cannot be seen. So rest must last longer each time that strays
    /// were found: a consumer that waits for the ledger is not sent the same again and again.
    pub fn observe(&mut self, is_at_rest: bool, now: Instant) -> bool {
        if !is_at_rest {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        now.duration_since(since) >= self.first * (1 << self.finds.min(DOUBLINGS_MAX))
    }

    /// Notes what a search found.
    pub fn searched(&mut self, num_strays: usize) {
        self.since = None;
        self.finds = if num_strays == 0 { 0 } else { self.finds.saturating_add(1) };
    }
}

/// Messages for what is still queued and no dead letter, as the outbox would have made them.
///
/// # Errors
/// Never for intents that a stock returned.
pub fn messages(
    bucket: BucketKey,
    queued: &[OrderIntent],
    is_dead: impl Fn(&RequestId) -> bool,
    packing: Packing<'_>,
) -> Result<Vec<Message>, Malformed> {
    let strays: Vec<&OrderIntent> =
        queued.iter().filter(|intent| !is_dead(&intent.request)).collect();
    strays
        .chunks(packing.envelope_max.max(1))
        .map(|chunk| {
            let mut body = Vec::with_capacity(chunk.len() * intent::INTENT_BYTES);
            for stray in chunk {
                intent::pack_into(stray, &mut body);
            }
            Ok(Message {
                route: Route::orders_of(bucket, packing.queues),
                headers: wire::headers(&body, packing.installation, packing.sent_at_ms)?,
                body: body.into(),
            })
        })
        .collect()
}

/// How messages are made.
#[derive(Debug, Clone, Copy)]
pub struct Packing<'a> {
    /// Most orders in one message.
    pub envelope_max: usize,
    /// Order queues of the broker.
    pub queues: u16,
    /// Whose orders these are.
    pub installation: &'a str,
    /// When they are sent, epoch milliseconds.
    pub sent_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now_monotonic;
    use crate::domain::{BucketNo, SkuNo, samples};

    const FIRST: Duration = Duration::from_secs(10);

    fn depth(queue: &str, num_ready: u64) -> Depth {
        Depth { queue: queue.to_owned(), num_ready, num_consumers: 1 }
    }

    fn queued(request: u64) -> OrderIntent {
        OrderIntent { sku: SkuNo(3), bucket: BucketNo(1), ..samples::intent(request) }
    }

    #[test]
    fn one_message_anywhere_but_among_the_unroutable_is_no_rest() {
        let queues = ["orders.0", "retry.1000", "dead"];
        let at_rest: Vec<Depth> = queues.iter().map(|queue| depth(queue, 0)).collect();
        assert!(are_empty(&at_rest));
        for queue in queues {
            assert!(!are_empty(&[at_rest.clone(), vec![depth(queue, 1)]].concat()), "{queue}");
        }
        assert!(are_empty(&[at_rest.clone(), vec![depth("unroutable", 7)]].concat()));
        let unknown = Depth { num_consumers: 0, ..depth("orders.1", 0) };
        assert!(!are_empty(&[at_rest, vec![unknown]].concat()), "perhaps without majority");
    }

    #[test]
    fn rest_must_last_and_begins_anew_after_every_movement() {
        let (mut still, start) = (Stillness::new(FIRST), now_monotonic());
        assert!(!still.observe(true, start));
        assert!(!still.observe(false, start + FIRST), "something moved");
        assert!(!still.observe(true, start + FIRST));
        assert!(still.observe(true, start + FIRST * 2));
    }

    #[test]
    fn rest_must_last_longer_while_strays_are_found_again_and_again() {
        let (mut still, mut now) = (Stillness::new(FIRST), now_monotonic());
        for wait in [1, 2, 2, 2] {
            assert!(!still.observe(true, now));
            assert!(!still.observe(true, now + FIRST * wait / 2), "{wait}");
            now += FIRST * wait;
            assert!(still.observe(true, now), "{wait}");
            still.searched(5);
        }
        assert!(!still.observe(true, now));
        still.searched(0);
        assert!(!still.observe(true, now));
        assert!(still.observe(true, now + FIRST), "as in the beginning");
    }

    #[test]
    fn strays_are_sent_in_envelopes_to_their_queue_and_dead_letters_are_not() {
        let bucket = BucketKey { sku: SkuNo(3), bucket: BucketNo(1) };
        let all: Vec<OrderIntent> = (1..=6).map(queued).collect();
        let is_dead = |request: &RequestId| request.get() == 2;
        let packing =
            Packing { envelope_max: 2, queues: 4, installation: "0000000a", sent_at_ms: 9 };
        let messages = messages(bucket, &all, is_dead, packing).unwrap();
        let requests: Vec<Vec<u64>> = messages
            .iter()
            .map(|message| {
                let opened = wire::open(&message.headers, &message.body, "0000000a").unwrap();
                assert_eq!(message.route, Route::Orders(0));
                opened.iter().map(|part| part.read.as_ref().unwrap().request.get()).collect()
            })
            .collect();
        assert_eq!(requests, [vec![1, 3], vec![4, 5], vec![6]]);
    }
}
