//! Flow step 6/12: relay -> consumer.
//!
//! The required topology of the broker: every name, argument and binding, as data.
//! `rabbit/declare.rs` declares and verifies it.
//!
//! ```text
//!  intents (direct) --"<i>"--> orders.<i>    --delivery limit--> dead (fanout) --> dead
//!  dead --delivery limit--> unreadable (fanout) --> unreadable
//! ```
//!
//! Every message is published `mandatory`: an unroutable message is returned and stays with its
//! publisher. A message in `unreadable` repeatedly closed the connection of its consumer. The queue
//! has no consumers: operators inspect it in the broker.
//!
//! Every queue is a quorum queue: replicated on clusters, written to disk before it confirms, and
//! able to dead-letter at least once. That requires the overflow setting `reject-publish`, although
//! no queue has a length limit.

use super::{Route, Source};

/// Deliveries after which a dead letter moves to `unreadable`. Each delivery of an unreadable
/// message breaks a connection, and the orders on it are delivered again. So the limit is lower
/// than that of an order, and higher than any readable dead letter requires.
const DEAD_LETTER_DELIVERIES_MAX: i64 = 50;

/// The exchange for order intents.
const INTENTS: &str = "intents";

/// Terminal queue for messages that can never become an order.
const UNREADABLE: &str = "unreadable";

/// Delivery limit of `unreadable`. Newer brokers default to 20, after which they drop a message of
/// a queue without dead letter exchange.
const DELIVERIES_UNLIMITED: i64 = i32::MAX as i64;

/// The exchanges and queues of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    namespace: String,
    num_queues: u16,
    deliveries_max: u32,
}

/// The AMQP exchange type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Routes by routing key.
    Direct,
    /// Routes to all bound queues.
    Fanout,
}

/// A durable exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// Full name.
    pub name: String,
    pub kind: ExchangeKind,
}

/// Value of a queue argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    Text(String),
    Number(i64),
}

/// A durable queue, bound to one exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Full name.
    pub name: String,
    pub arguments: Vec<(&'static str, Argument)>,
    /// The bound exchange.
    pub exchange: String,
    /// The binding key.
    pub key: String,
}

/// Exchange and routing key of a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishAddress {
    /// Full name of the exchange.
    pub exchange: String,
    /// The routing key.
    pub key: String,
}

impl Topology {
    /// The topology in a namespace, with `num_queues` order queues that dead-letter a message after
    /// `deliveries_max` deliveries.
    #[must_use]
    pub fn new(namespace: &str, num_queues: u16, deliveries_max: u32) -> Self {
        Self { namespace: namespace.to_owned(), num_queues, deliveries_max }
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}.{name}", self.namespace)
    }

    /// The name without the namespace; unchanged if it has another one.
    #[must_use]
    pub fn short<'a>(&self, name: &'a str) -> &'a str {
        let stripped = name.strip_prefix(&self.namespace);
        stripped.and_then(|stripped| stripped.strip_prefix('.')).unwrap_or(name)
    }

    /// The namespace with its dot.
    #[must_use]
    pub fn prefix(&self) -> String {
        self.full_name("")
    }

    /// The publish address of a route; `None` for an order queue outside the topology.
    #[must_use]
    pub fn address(&self, route: Route) -> Option<PublishAddress> {
        let (exchange, key) = match route {
            Route::Orders(queue) if queue < self.num_queues => (INTENTS, queue.to_string()),
            Route::Orders(_) => return None,
            Route::Dead => ("dead", String::new()),
        };
        Some(PublishAddress { exchange: self.full_name(exchange), key })
    }

    /// Full name of the queue; `None` for an order queue outside the topology.
    #[must_use]
    pub fn queue(&self, source: Source) -> Option<String> {
        match source {
            Source::Orders(queue) => {
                (queue < self.num_queues).then(|| self.full_name(&format!("orders.{queue}")))
            }
            Source::Dead => Some(self.full_name("dead")),
        }
    }

    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        let exchange = |name: &str, kind| Exchange { name: self.full_name(name), kind };
        vec![
            exchange(UNREADABLE, ExchangeKind::Fanout),
            exchange("dead", ExchangeKind::Fanout),
            exchange(INTENTS, ExchangeKind::Direct),
        ]
    }

    /// Every queue, dead letter targets first, so that no queue accepts a message before its target
    /// exists.
    #[must_use]
    pub fn queues(&self) -> Vec<Queue> {
        let fanout_queue = |name: &str, limit: i64, mut arguments: Vec<_>| {
            arguments.push(("x-delivery-limit", Argument::Number(limit)));
            Queue {
                name: self.full_name(name),
                arguments: quorum(arguments),
                exchange: self.full_name(name),
                key: String::new(),
            }
        };
        let dead_letter_arguments = dead_lettering(self.full_name(UNREADABLE));
        let mut queues = vec![
            fanout_queue(UNREADABLE, DELIVERIES_UNLIMITED, Vec::new()),
            fanout_queue("dead", DEAD_LETTER_DELIVERIES_MAX, dead_letter_arguments),
        ];
        for number in 0..self.num_queues {
            let limit = Argument::Number(self.deliveries_max.into());
            let mut arguments = dead_lettering(self.full_name("dead"));
            arguments.push(("x-delivery-limit", limit));
            queues.push(Queue {
                name: self.full_name(&format!("orders.{number}")),
                arguments: quorum(arguments),
                exchange: self.full_name(INTENTS),
                key: number.to_string(),
            });
        }
        queues
    }

    /// Whether the queue has no consumers, so that its messages stay there.
    #[must_use]
    pub fn is_end(&self, queue: &Queue) -> bool {
        self.short(&queue.name) == UNREADABLE
    }

    /// Deliveries after which an order queue dead-letters a message.
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

/// A dead letter leaves this queue only after its target has confirmed it.
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
        assert_eq!(exchanges, ["unreadable", "dead", "intents"].map(|name| format!("shop.{name}")));
        for queue in topology().queues() {
            assert!(queue.name.starts_with("shop."), "{queue:?}");
            assert!(exchanges.contains(&queue.exchange), "{queue:?}");
            assert!(queue.arguments.contains(&("x-queue-type", Argument::Text("quorum".into()))));
        }
        assert_eq!(topology().queues().len(), 4);
    }

    #[test]
    fn an_unknown_queue_has_no_address() {
        let topology = topology();
        assert_eq!(topology.address(Route::Orders(2)), None);
        assert_eq!(topology.queue(Source::Orders(2)), None);
        let last = topology.address(Route::Orders(1)).unwrap();
        assert_eq!((last.exchange.as_str(), last.key.as_str()), ("shop.intents", "1"));
    }

    #[test]
    fn short_names_have_no_namespace() {
        let topology = topology();
        assert_eq!(topology.short("shop.orders.1"), "orders.1");
        assert_eq!(topology.short("shopping.orders.1"), "shopping.orders.1");
    }

    #[test]
    fn every_queue_but_the_terminal_one_dead_letters_to_unreadable() {
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
    fn every_dead_letter_exchange_is_used_at_least_once_and_without_overflow() {
        for queue in topology().queues() {
            let has = |name| queue.arguments.iter().any(|(argument, _)| *argument == name);
            assert_eq!(has("x-dead-letter-exchange"), has("x-dead-letter-strategy"), "{queue:?}");
            assert_eq!(has("x-dead-letter-exchange"), has("x-overflow"), "{queue:?}");
        }
    }
}
