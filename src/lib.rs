//! Floodgate: a flash-sale order engine.
//!
//! It sells a limited stock to a crowd that arrives all at once, and keeps three promises whatever
//! dies: it never oversells, one request is never two orders, and each accepted request ends as
//! exactly one of order, recorded failure or dead letter. The promises are named in
//! [`domain::invariants`]; [`audit`] proves them.
//!
//! # The way of one purchase
//!
//! ```text
//!  1 http/buy                                        authenticate, parse, refuse locally
//!  2 actors/gate_handle -> actors/stock_gate         one gate per bucket: one batch in flight
//!  3 stock/ -> scripts/ -> lua/reserve.lua           request, limit and units in one step
//!  4 outbox/                                         accepted intents wait for the broker
//!  5 actors/outbox_relay                             claim, publish, acknowledge
//!  6 broker/                                         exchanges, queues, dead letters
//!  7 actors/order_intake -> actors/order_consumer    the one writer of orders
//!  8 db/                                             one transaction per batch
//!  9 actors/payment_timer (later)                    unpaid orders end, units come back
//! 10 actors/orphan_rescuer -> actors/dead_letter_keeper  work of the dead comes back, or is kept
//! 11 actors/reconciler -> audit/                      Redis, broker and ledger are compared
//! 12 actors/supervisor                               replaces any of them, panics included
//! ```
//!
//! [`tier`] chooses which steps exist. Where there is no broker, a gate hands its intents to the
//! order consumer directly, which does not know the difference.

pub mod actors;
pub mod app;
pub mod audit;
pub mod backoff;
pub mod broker;
pub mod catalog;
pub mod cli;
pub mod clock;
pub mod config;
pub mod db;
pub mod dead_letters;
pub mod domain;
mod flight;
pub mod http;
pub mod lease;
pub mod load;
pub mod messages;
pub mod metrics;
pub mod outbox;
pub mod process;
pub mod progress;
pub mod rebuild;
pub mod redis_link;
pub mod sales_desk;
pub mod scripts;
pub mod shutdown;
pub mod stock;
pub mod telemetry;
pub mod tier;
pub mod tokens;
pub mod watermark;
