//! The required topology of the broker: every name, argument and binding, as data.
//! `rabbit/declare.rs` declares and verifies it.
//!
//! ```text
//!  intents (direct) --"<i>"--> orders.<i>    --delivery limit--> dead (fanout) --> dead
//!  relays, consumers ----------------------------------------> dead (fanout)
//!  dead --delivery limit--> unreadable (fanout) --> unreadable
//!  events (topic) --"<type>.<sale>.<sku>"--> queues of other programs
//!  payments (fanout) --> payments    --delivery limit--> dead
//!  delays (direct) --"<s>"--> due.<s> --after s seconds--> due (fanout) --> due
//! ```
//!
//! Every message except an order event is published `mandatory`: an unroutable message is returned
//! and stays with its publisher. The exchange `events` is declared where `events.exchange` is set,
//! and exchange and queue `payments` where `payment.queue` is. `delays` and `due` are declared
//! where `payment.delay_queues_s` lists windows: each has a queue of its own, because a quorum
//! queue looks for expired messages at its head only.
//!
//! A message in `unreadable` closed the connection of its consumer each time, or was delivered 50
//! times and not stored. The queue has no consumers: operators inspect it in the broker.
//!
//! Every queue is a quorum queue: replicated on clusters, written to disk before it confirms, and
//! able to dead-letter at least once. That requires the overflow setting `reject-publish`, although
//! no queue has a length limit.

use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};

use super::{Error, Route};

/// Deliveries after which a dead letter moves to `unreadable`. Each delivery of an unreadable
/// message breaks a connection, and the orders on it are delivered again. So the limit is lower
/// than that of an order, and higher than any readable dead letter requires.
const DEAD_LETTER_DELIVERIES_MAX: i64 = 50;

/// The exchange for order intents.
const INTENTS: &str = "intents";

/// Queue and exchange of the dead letters.
const DEAD: &str = "dead";

/// The exchange for order events.
const EVENTS: &str = "events";

/// Queue and exchange of payment events, which other programs publish.
const PAYMENTS: &str = "payments";

/// The exchange for messages that wait for the length of a window.
const DELAYS: &str = "delays";

/// Queue and exchange of messages that have waited.
const DUE: &str = "due";

/// Terminal queue for dead letters that could not be received or stored.
const UNREADABLE: &str = "unreadable";

/// Delivery limit of `unreadable`. Newer brokers default to 20, after which they drop a message of
/// a queue without dead letter exchange.
const DELIVERIES_UNLIMITED: i64 = i32::MAX as i64;

/// The exchanges and queues of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    pub namespace: String,
    /// Order queues.
    pub num_queues: u16,
    /// Deliveries of a message after which an order queue dead-letters it.
    pub deliveries_max: u32,
    /// Whether there is the exchange for order events.
    pub has_events: bool,
    /// Whether there is the queue for payment events.
    pub has_payments: bool,
    /// The lengths of the delay queues, seconds.
    pub delays_s: Vec<u32>,
}

/// A durable exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// Full name.
    pub name: String,
    pub kind: ExchangeKind,
}

/// A durable quorum queue, bound to one exchange. All names are full names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    pub name: String,
    /// The bound exchange and the binding key.
    pub binding: PublishAddress,
    /// The dead letter exchange; `None` for `unreadable` and `due`, whose messages go nowhere else.
    pub dead_letters_to: Option<String>,
    /// Deliveries of a message after which it is dead-lettered.
    pub deliveries_max: i64,
    /// Time after which a message is dead-lettered, milliseconds.
    pub ttl_ms: Option<i64>,
}

/// Exchange and routing key of a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishAddress {
    /// Full name of the exchange.
    pub exchange: String,
    pub key: String,
}

impl Route {
    /// The name of its queue without the namespace; `None` for events.
    pub fn queue(self) -> Option<String> {
        Some(match self {
            Self::Orders(number) => format!("orders.{number}"),
            Self::Dead => DEAD.to_owned(),
            Self::Payments => PAYMENTS.to_owned(),
            Self::Delay(s) => format!("{DUE}.{s}"),
            Self::Due => DUE.to_owned(),
            Self::Events => return None,
        })
    }
}

impl Topology {
    /// The topology of orders and their dead letters.
    pub fn new(namespace: &str, num_queues: u16, deliveries_max: u32) -> Self {
        Self {
            namespace: namespace.to_owned(),
            num_queues,
            deliveries_max,
            has_events: false,
            has_payments: false,
            delays_s: Vec::new(),
        }
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}.{name}", self.namespace)
    }

    /// The name without the namespace; unchanged if it has another one.
    pub fn short<'a>(&self, name: &'a str) -> &'a str {
        let stripped = name.strip_prefix(&self.namespace);
        stripped.and_then(|stripped| stripped.strip_prefix('.')).unwrap_or(name)
    }

    /// The namespace with its dot.
    pub fn prefix(&self) -> String {
        self.full_name("")
    }

    /// The publish address of a route; `None` for a route outside the topology. The key of an order
    /// event is its topic.
    pub fn address(&self, route: Route) -> Option<PublishAddress> {
        let (exchange, key) = match route {
            Route::Orders(number) if number < self.num_queues => (INTENTS, number.to_string()),
            Route::Orders(_) => return None,
            Route::Dead => (DEAD, String::new()),
            Route::Events if self.has_events => (EVENTS, String::new()),
            Route::Payments if self.has_payments => (PAYMENTS, String::new()),
            Route::Delay(s) if self.delays_s.contains(&s) => (DELAYS, s.to_string()),
            Route::Due if !self.delays_s.is_empty() => (DUE, String::new()),
            Route::Events | Route::Payments | Route::Delay(_) | Route::Due => return None,
        };
        Some(PublishAddress { exchange: self.full_name(exchange), key })
    }

    /// The queue of a route.
    ///
    /// # Errors
    /// [`Error::Topology`] for a queue outside the topology, and for events.
    pub fn queue(&self, route: Route) -> Result<Queue, Error> {
        let what = || format!("there is no queue for {route:?}; see amqp.queues");
        self.queue_of(route).ok_or_else(|| Error::Topology { what: what() })
    }

    /// Every queue with consumers, or whose messages go on by themselves: all but `unreadable`.
    pub fn live_queues(&self) -> Vec<Queue> {
        let mut queues = self.queues();
        queues.retain(|queue| self.short(&queue.name) != UNREADABLE);
        queues
    }

    fn queue_of(&self, route: Route) -> Option<Queue> {
        let binding = self.address(route)?;
        let ttl_ms = match route {
            Route::Delay(s) => Some(i64::from(s) * 1_000),
            _ => None,
        };
        let (target, deliveries_max) = match route {
            Route::Dead => (Some(UNREADABLE), DEAD_LETTER_DELIVERIES_MAX),
            Route::Orders(_) | Route::Payments => (Some(DEAD), i64::from(self.deliveries_max)),
            Route::Delay(_) => (Some(DUE), DELIVERIES_UNLIMITED),
            Route::Due | Route::Events => (None, DELIVERIES_UNLIMITED),
        };
        Some(Queue {
            name: self.full_name(&route.queue()?),
            binding,
            dead_letters_to: target.map(|target| self.full_name(target)),
            deliveries_max,
            ttl_ms,
        })
    }

    pub fn exchanges(&self) -> Vec<Exchange> {
        let table = [
            (UNREADABLE, ExchangeKind::Fanout),
            (DEAD, ExchangeKind::Fanout),
            (INTENTS, ExchangeKind::Direct),
        ];
        let events = self.has_events.then_some((EVENTS, ExchangeKind::Topic));
        let payments = self.has_payments.then_some((PAYMENTS, ExchangeKind::Fanout));
        let has_delays = !self.delays_s.is_empty();
        let delays = [(DUE, ExchangeKind::Fanout), (DELAYS, ExchangeKind::Direct)];
        let delays = delays.into_iter().filter(|_| has_delays);
        let table = table.into_iter().chain(events).chain(payments).chain(delays);
        table.map(|(name, kind)| Exchange { name: self.full_name(name), kind }).collect()
    }

    /// Every queue, dead letter targets first, so that no queue accepts a message before its target
    /// exists.
    pub fn queues(&self) -> Vec<Queue> {
        let name = self.full_name(UNREADABLE);
        let mut queues = vec![Queue {
            name: name.clone(),
            binding: PublishAddress { exchange: name, key: String::new() },
            dead_letters_to: None,
            deliveries_max: DELIVERIES_UNLIMITED,
            ttl_ms: None,
        }];
        let orders = (0..self.num_queues).map(Route::Orders);
        queues.extend(self.queue_of(Route::Dead));
        let delays = self.delays_s.iter().map(|s| Route::Delay(*s));
        let others = [Route::Payments, Route::Due].into_iter().chain(delays);
        queues.extend(orders.chain(others).filter_map(|route| self.queue_of(route)));
        queues
    }
}

impl Queue {
    pub fn arguments(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        let mut text = |name: &str, value: &str| {
            arguments.insert(name.into(), AMQPValue::LongString(value.into()));
        };
        text("x-queue-type", "quorum");
        if let Some(exchange) = &self.dead_letters_to {
            text("x-dead-letter-exchange", exchange);
            // A dead letter leaves this queue only after its target has confirmed it.
            text("x-dead-letter-strategy", "at-least-once");
            text("x-overflow", "reject-publish");
        }
        if let Some(ttl_ms) = self.ttl_ms {
            arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl_ms));
        }
        let limit = AMQPValue::LongLongInt(self.deliveries_max);
        arguments.insert("x-delivery-limit".into(), limit);
        arguments
    }
}
