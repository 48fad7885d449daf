//! Floodgate: a flash-sale order engine.
//!
//! It sells a limited stock to a crowd that arrives all at once, and keeps three promises whatever
//! crashes: it never oversells, one request is never two orders, and each accepted request ends as
//! exactly one of order, recorded failure or dead letter. The promises are named in
//! [`domain::invariants`]; [`services::audit`] proves them.
//!
//! # The way of one purchase
//!
//! ```text
//!  1 http/buyers/buy                                        authenticate, parse, refuse locally
//!  2 actors/stock_gate                                      one gate per bucket
//!  3 stock/ -> redis/scripts/ -> lua/reserve.lua            request, limit and units in one step
//!  4 outbox/                                                accepted intents wait for the broker
//!  5 actors/outbox_relay                                    claim, publish, acknowledge
//!  6 broker/                                                exchanges, queues, dead letters
//!  7 actors/order_consumer -> actors/ledger_writer          the one writer of orders
//!  8 db/                                                    one transaction per batch
//!  9 actors/payment_timer (later)                           unpaid orders end, units come back
//! 10 actors/orphan_rescuer -> actors/dead_letter_collector  abandoned claims, dead letters
//! 11 actors/reconciler -> services/audit/                   Redis, broker, ledger are compared
//! 12 actors/supervisor                                      replaces any of them
//! ```
//!
//! [`tier`] chooses which steps exist. Where there is no broker, a gate hands its intents to the
//! ledger writer directly, which does not know the difference.

pub mod actors;
pub mod app;
pub mod broker;
pub mod cli;
pub mod config;
pub mod db;
pub mod domain;
pub mod http;
pub mod lease;
pub mod messages;
pub mod observe;
pub mod outbox;
pub mod redis;
pub mod runtime;
pub mod services;
pub mod stock;
pub mod tier;
pub mod watermark;
