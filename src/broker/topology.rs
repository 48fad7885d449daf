//! Flow step 6/12: relay -> consumer.
//!
//! What must be there in the broker: every name, every argument, every binding, in one place. Data
//! only; `rabbit/declare.rs` brings it about and verifies it.
//!
//! ```text
//!  orders (direct) --"<i>"--> orders.<i>    --delivered too often--> dead (fanout) --> dead
//!     | no such queue
//!     +---> unroutable (fanout) --> unroutable
//!  retry.<ms> (fanout) --> retry.<ms> --after <ms>--> orders (direct), same key
//!  dead, unroutable --delivered too often--> unreadable (fanout) --> unreadable
//! ```
//!
//! What is in `unreadable` ended the connection of whoever was to bring it into the ledger, again
//! and again. Nobody consumes it: people look at it in the broker.
//!
//! Every queue is a quorum queue: replicated where there are several nodes, on disk before anything
//! is confirmed, and able to hand dead letters on at least once. That asks for an overflow of
//! `reject-publish`, although no queue has a length at which it would overflow.

use super::{Route, Source};

/// Deliveries after which a dead letter or an unroutable message is set aside: a message that
/// cannot be read breaks a connection with each of them, and orders on that connection are
/// delivered again. So these are fewer than an order is allowed, and more than any letter needs
/// that can be read.
const LETTER_DELIVERIES_MAX: i64 = 50;

/// Where that ends which nobody can bring into the ledger.
const UNREADABLE: &str = "unreadable";

/// Deliveries in the queue that nobody consumes. Newer brokers have a limit of 20 where none is
/// given, after which they drop a message that has no place to go.
const DELIVERIES_UNLIMITED: i64 = i32::MAX as i64;

/// How the broker is laid out for one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    namespace: String,
    num_queues: u16,
    deliveries_max: u32,
    delays_ms: Vec<u64>,
}

/// How an exchange chooses queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By routing key.
    Direct,
    /// All that are bound.
    Fanout,
}

/// An exchange, durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// Its full name.
    pub name: String,
    /// How it chooses queues.
    pub kind: Kind,
    /// The exchange that gets what no queue of this one wants.
    pub alternate: Option<String>,
}

/// An argument's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// A queue, durable, bound to one exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its full name.
    pub name: String,
    /// What it is declared with.
    pub arguments: Vec<(&'static str, Argument)>,
    /// The exchange that it is bound to.
    pub exchange: String,
    /// The key that it is bound with.
    pub key: String,
}

/// Where to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The exchange's full name.
    pub exchange: String,
    /// The routing key.
    pub key: String,
}

impl Topology {
    /// The layout for a namespace: so many order queues, which give a message up after so many
    /// deliveries, and one queue for each wait.
    #[must_use]
    pub fn new(namespace: &str, num_queues: u16, deliveries_max: u32, delays_ms: Vec<u64>) -> Self {
        Self { namespace: namespace.to_owned(), num_queues, deliveries_max, delays_ms }
    }

    fn name(&self, short: &str) -> String {
        format!("{}.{short}", self.namespace)
    }

    /// A full name without the namespace.
    #[must_use]
    pub fn short<'a>(&self, name: &'a str) -> &'a str {
        let rest = name.strip_prefix(&self.namespace);
        rest.and_then(|rest| rest.strip_prefix('.')).unwrap_or(name)
    }

    /// What names of this installation begin with.
    #[must_use]
    pub fn prefix(&self) -> String {
        self.name("")
    }

    /// Where to publish; `None` for an order queue or a delay step that there is not.
    #[must_use]
    pub fn address(&self, route: Route) -> Option<Address> {
        let (exchange, queue) = match route {
            Route::Orders(queue) => (self.name("orders"), queue),
            Route::Retry { queue, step } => {
                (self.name(&format!("retry.{}", self.delays_ms.get(step)?)), queue)
            }
            Route::Dead => {
                return Some(Address { exchange: self.name("dead"), key: String::new() });
            }
        };
        (queue < self.num_queues).then(|| Address { exchange, key: queue.to_string() })
    }

    /// The queue to consume; `None` for an order queue that there is not.
    #[must_use]
    pub fn queue(&self, source: Source) -> Option<String> {
        match source {
            Source::Orders(queue) => {
                (queue < self.num_queues).then(|| self.name(&format!("orders.{queue}")))
            }
            Source::Dead => Some(self.name("dead")),
            Source::Unroutable => Some(self.name("unroutable")),
        }
    }

    /// The waits, each once, in the order of the steps.
    fn waits_ms(&self) -> Vec<u64> {
        let mut waits = Vec::new();
        for wait in &self.delays_ms {
            if !waits.contains(wait) {
                waits.push(*wait);
            }
        }
        waits
    }

    /// Every exchange; one that another one names comes before it.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        let fanout =
            |short: &str| Exchange { name: self.name(short), kind: Kind::Fanout, alternate: None };
        let mut exchanges = vec![fanout(UNREADABLE), fanout("unroutable"), fanout("dead")];
        exchanges.push(Exchange {
            name: self.name("orders"),
            kind: Kind::Direct,
            alternate: Some(self.name("unroutable")),
        });
        let waits = self.waits_ms();
        exchanges.extend(waits.iter().map(|wait| fanout(&format!("retry.{wait}"))));
        exchanges
    }

    /// Every queue: where dead letters and unroutable messages end first, so that nothing is
    /// accepted before they can be.
    #[must_use]
    pub fn queues(&self) -> Vec<Queue> {
        let end = |short: &str, limit: i64, mut arguments: Vec<_>| {
            arguments.push(("x-delivery-limit", Argument::Number(limit)));
            Queue {
                name: self.name(short),
                arguments: quorum(arguments),
                exchange: self.name(short),
                key: String::new(),
            }
        };
        let letters =
            |short: &str| end(short, LETTER_DELIVERIES_MAX, dead_lettering(self.name(UNREADABLE)));
        let mut queues = vec![end(UNREADABLE, DELIVERIES_UNLIMITED, Vec::new())];
        queues.extend([letters("unroutable"), letters("dead")]);
        for number in 0..self.num_queues {
            let limit = Argument::Number(self.deliveries_max.into());
            let mut arguments = dead_lettering(self.name("dead"));
            arguments.push(("x-delivery-limit", limit));
            queues.push(Queue {
                name: self.name(&format!("orders.{number}")),
                arguments: quorum(arguments),
                exchange: self.name("orders"),
                key: number.to_string(),
            });
        }
        for wait in self.waits_ms() {
            let mut arguments = dead_lettering(self.name("orders"));
            let ms = Argument::Number(i64::try_from(wait).unwrap_or(i64::MAX));
            arguments.push(("x-message-ttl", ms));
            let name = self.name(&format!("retry.{wait}"));
            let arguments = quorum(arguments);
            queues.push(Queue { exchange: name.clone(), name, arguments, key: String::new() });
        }
        queues
    }

    /// Whether nobody consumes a queue: nothing comes back from there by itself.
    #[must_use]
    pub fn is_end(&self, queue: &Queue) -> bool {
        self.short(&queue.name) == UNREADABLE
    }

    /// Where a message comes back to after a delay step, as its routing key says.
    #[must_use]
    pub fn source_of_key(&self, key: &str) -> Option<Source> {
        let number = key.parse().ok().filter(|number| *number < self.num_queues);
        number.map(Source::Orders)
    }

    /// Deliveries after which an order queue gives a message up.
    #[must_use]
    pub fn deliveries_max(&self) -> u32 {
        self.deliveries_max
    }

    /// How long a delay step is.
    #[must_use]
    pub fn delay_ms(&self, step: usize) -> Option<u64> {
        self.delays_ms.get(step).copied()
    }
}

fn quorum(arguments: Vec<(&'static str, Argument)>) -> Vec<(&'static str, Argument)> {
    let mut all = vec![("x-queue-type", Argument::Text("quorum".to_owned()))];
    all.extend(arguments);
    all
}

/// Dead letters reach a queue before they leave this one, or stay.
fn dead_lettering(exchange: String) -> Vec<(&'static str, Argument)> {
    vec![
        ("x-dead-letter-exchange", Argument::Text(exchange)),
        ("x-dead-letter-strategy", Argument::Text("at-least-once".to_owned())),
        ("x-overflow", Argument::Text("reject-publish".to_owned())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        Topology::new("shop", 2, 100, vec![1_000, 5_000, 1_000])
    }

    #[test]
    fn every_name_has_the_namespace_and_every_queue_an_exchange() {
        let exchanges: Vec<_> = topology().exchanges().into_iter().map(|one| one.name).collect();
        let expected = ["unreadable", "unroutable", "dead", "orders", "retry.1000", "retry.5000"];
        assert_eq!(exchanges, expected.map(|short| format!("shop.{short}")));
        for queue in topology().queues() {
            assert!(queue.name.starts_with("shop."), "{queue:?}");
            assert!(exchanges.contains(&queue.exchange), "{queue:?}");
            assert!(queue.arguments.contains(&("x-queue-type", Argument::Text("quorum".into()))));
        }
        assert_eq!(topology().queues().len(), 7);
    }

    #[test]
    fn what_there_is_not_has_no_address() {
        let topology = topology();
        assert_eq!(topology.address(Route::Orders(2)), None);
        assert_eq!(topology.address(Route::Retry { queue: 0, step: 3 }), None);
        assert_eq!(topology.address(Route::Retry { queue: 2, step: 0 }), None);
        assert_eq!(topology.queue(Source::Orders(2)), None);
        let retry = topology.address(Route::Retry { queue: 1, step: 2 }).unwrap();
        assert_eq!((retry.exchange.as_str(), retry.key.as_str()), ("shop.retry.1000", "1"));
    }

    #[test]
    fn short_names_are_without_the_namespace() {
        let topology = topology();
        assert_eq!(topology.short("shop.orders.1"), "orders.1");
        assert_eq!(topology.short("shopping.orders.1"), "shopping.orders.1");
    }

    #[test]
    fn what_is_delivered_too_often_goes_on_until_nobody_is_there_to_deliver_it_to() {
        let topology = topology();
        let queues = topology.queues();
        for queue in queues.iter().filter(|queue| topology.source_of_key(&queue.key).is_none()) {
            let of = |name| queue.arguments.iter().find(|(argument, _)| *argument == name);
            let next = of("x-dead-letter-exchange").map(|(_, value)| value.clone());
            let is_delay = topology.short(&queue.name).starts_with("retry.");
            if topology.is_end(queue) {
                assert_eq!(next, None);
            } else if !is_delay {
                assert_eq!(next, Some(Argument::Text("shop.unreadable".to_owned())), "{queue:?}");
                assert!(of("x-delivery-limit").is_some(), "{queue:?}");
            }
        }
    }

    #[test]
    fn every_queue_with_dead_letters_hands_them_on_at_least_once() {
        for queue in topology().queues() {
            let has = |name| queue.arguments.iter().any(|(argument, _)| *argument == name);
            assert_eq!(has("x-dead-letter-exchange"), has("x-dead-letter-strategy"), "{queue:?}");
            assert_eq!(has("x-dead-letter-exchange"), has("x-overflow"), "{queue:?}");
        }
    }
}
