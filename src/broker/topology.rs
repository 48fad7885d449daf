//! Flow step 6/12: relay -> consumer.
//!
//! What must be there in the broker: every name, every argument, every binding, in one place. Data
//! only; `rabbit/declare.rs` brings it about and verifies it.
//!
//! ```text
//!  intents (direct) --"<i>"--> orders.<i>    --delivered too often--> dead (fanout) --> dead
//!  dead --delivered too often--> unreadable (fanout) --> unreadable
//! ```
//!
//! Everything is published `mandatory`: what no queue takes is returned, and stays where it was.
//! What is in `unreadable` ended the connection of whoever was to bring it into the ledger, again
//! and again. Nobody consumes it: people look at it in the broker.
//!
//! Every queue is a quorum queue: replicated where there are several nodes, on disk before anything
//! is confirmed, and able to hand dead letters on at least once. That asks for an overflow of
//! `reject-publish`, although no queue has a length at which it would overflow.

use super::{Route, Source};

/// Deliveries after which a dead letter is set aside: a message that
/// cannot be read breaks a connection with each of them, and orders on that connection are
/// delivered again. So these are fewer than an order is allowed, and more than any letter needs
/// that can be read.
const LETTER_DELIVERIES_MAX: i64 = 50;

/// Where order intents are published.
const INTENTS: &str = "intents";

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
}

/// How an exchange chooses queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
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
    pub kind: ExchangeKind,
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
pub struct PublishAddress {
    /// The exchange's full name.
    pub exchange: String,
    /// The routing key.
    pub key: String,
}

impl Topology {
    /// The layout for a namespace: so many order queues, which give a message up after so many
    /// deliveries.
    #[must_use]
    pub fn new(namespace: &str, num_queues: u16, deliveries_max: u32) -> Self {
        Self { namespace: namespace.to_owned(), num_queues, deliveries_max }
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

    /// Where to publish; `None` for an order queue that there is not.
    #[must_use]
    pub fn address(&self, route: Route) -> Option<PublishAddress> {
        let (exchange, key) = match route {
            Route::Orders(queue) if queue < self.num_queues => (INTENTS, queue.to_string()),
            Route::Orders(_) => return None,
            Route::Dead => ("dead", String::new()),
        };
        Some(PublishAddress { exchange: self.name(exchange), key })
    }

    /// The queue to consume; `None` for an order queue that there is not.
    #[must_use]
    pub fn queue(&self, source: Source) -> Option<String> {
        match source {
            Source::Orders(queue) => {
                (queue < self.num_queues).then(|| self.name(&format!("orders.{queue}")))
            }
            Source::Dead => Some(self.name("dead")),
        }
    }

    /// Every exchange.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        let exchange = |short: &str, kind| Exchange { name: self.name(short), kind };
        vec![
            exchange(UNREADABLE, ExchangeKind::Fanout),
            exchange("dead", ExchangeKind::Fanout),
            exchange(INTENTS, ExchangeKind::Direct),
        ]
    }

    /// Every queue: where dead letters end first, so that nothing is accepted before they can be.
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
        let letters = dead_lettering(self.name(UNREADABLE));
        let mut queues = vec![
            end(UNREADABLE, DELIVERIES_UNLIMITED, Vec::new()),
            end("dead", LETTER_DELIVERIES_MAX, letters),
        ];
        for number in 0..self.num_queues {
            let limit = Argument::Number(self.deliveries_max.into());
            let mut arguments = dead_lettering(self.name("dead"));
            arguments.push(("x-delivery-limit", limit));
            queues.push(Queue {
                name: self.name(&format!("orders.{number}")),
                arguments: quorum(arguments),
                exchange: self.name(INTENTS),
                key: number.to_string(),
            });
        }
        queues
    }

    /// Whether nobody consumes a queue: nothing comes back from there by itself.
    #[must_use]
    pub fn is_end(&self, queue: &Queue) -> bool {
        self.short(&queue.name) == UNREADABLE
    }

    /// Deliveries after which an order queue gives a message up.
    #[must_use]
    pub fn deliveries_max(&self) -> u32 {
        self.deliveries_max
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
        Topology::new("shop", 2, 100)
    }

    #[test]
    fn every_name_has_the_namespace_and_every_queue_an_exchange() {
        let exchanges: Vec<_> = topology().exchanges().into_iter().map(|one| one.name).collect();
        assert_eq!(
            exchanges,
            ["unreadable", "dead", "intents"].map(|short| format!("shop.{short}"))
        );
        for queue in topology().queues() {
            assert!(queue.name.starts_with("shop."), "{queue:?}");
            assert!(exchanges.contains(&queue.exchange), "{queue:?}");
            assert!(queue.arguments.contains(&("x-queue-type", Argument::Text("quorum".into()))));
        }
        assert_eq!(topology().queues().len(), 4);
    }

    #[test]
    fn what_there_is_not_has_no_address() {
        let topology = topology();
        assert_eq!(topology.address(Route::Orders(2)), None);
        assert_eq!(topology.queue(Source::Orders(2)), None);
        let last = topology.address(Route::Orders(1)).unwrap();
        assert_eq!((last.exchange.as_str(), last.key.as_str()), ("shop.intents", "1"));
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
        for queue in queues.iter().filter(|queue| queue.key.is_empty()) {
            let of = |name| queue.arguments.iter().find(|(argument, _)| *argument == name);
            let next = of("x-dead-letter-exchange").map(|(_, value)| value.clone());
            if topology.is_end(queue) {
                assert_eq!(next, None);
            } else {
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
