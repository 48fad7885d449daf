//! Floodgate: a flash-sale order engine.
//!
//! It sells a limited stock under a burst of requests and keeps three promises through any crash:
//! it never oversells, one request never becomes two orders, and each accepted request ends as
//! exactly one of order, recorded failure or dead letter. [`domain::invariants`] names the
//! promises; [`services::audit`] checks them.
//!
//! # The flow of one purchase
//!
//! ```text
//! 1 http/buyers/buy                                        authenticate, parse, refuse locally
//! 2 actors/stock_gate                                      one gate per bucket
//! 3 stock/ -> redis/scripts/ -> lua/reserve.lua            request, limit and units in one step
//! 4 outbox/                                                accepted intents, not published yet
//! 5 actors/outbox_relay                                    claim, publish, acknowledge
//! 6 broker/                                                exchanges, queues, dead letters
//! 7 actors/order_consumer -> actors/ledger_writer          one per queue -> one per process
//! 8 db/                                                    one transaction per batch
//! 9 actors/payment_timer                                   unpaid orders end, their units return
//! 10 actors/orphan_rescuer actors/dead_letter_collector     abandoned claims; dead letters
//! 11 actors/reconciler services/audit/                      compare Redis, broker and ledger
//! 12 actors/supervisor                                      restarts failed actors
//! ```
//!
//! In step 3 `lua/reserve.lua` writes the outbox; `outbox/` is the relay's side of it.
//!
//! After step 8 the ledger writer records the results in the buckets (`lua/settle.lua`), where
//! buyers read them. [`tier`] selects the steps. Without a broker, gates submit their intents
//! directly to the ledger writer, through the same messages.

pub mod actors;
pub mod app;
pub mod broker;
pub mod cli;
pub mod config;
pub mod db;
pub mod domain;
pub mod http;
pub mod lease;
pub mod limits;
pub mod messages;
pub mod net;
pub mod outbox;
pub mod payment;
pub mod runtime;
pub mod stock;
pub mod tickets;
pub mod tier;
pub mod watermark;

/// Metrics and logs.
pub mod observe {
    pub mod log_writer;
    pub mod metrics;
    pub mod repeats;
    pub mod series;
    pub mod telemetry;
}

/// Redis access for stock, outbox, lease and watermarks: connections and typed script calls.
pub mod redis {
    pub mod executor;
    pub mod scripts;
    pub mod transport;
}

/// Services: sales and bucket loading, catalog, payment and cancellation of orders, dead letters,
/// audit, funnel, rebuild.
pub mod services {
    pub mod audit;
    pub mod catalog;
    pub mod dead_letters;
    pub mod lost_requests;
    pub mod order_feed;
    pub mod order_life;
    pub mod rebuild;
    pub mod request_ending;
    pub mod sales;
    pub mod trusted_time;
}
