//! The actors and their supervisor. `lib.rs` has the order of the flow.
//!
//! An actor is a thin shell around decisions made by plain code: a mailbox, timers, calls,
//! counters. No durable state is only in an actor: units and requests are in the stock, orders in
//! the ledger. Any actor may therefore crash at any step.

pub mod dead_letter_collector;
pub mod event_publisher;
pub mod ledger_writer;
pub mod order_consumer;
pub mod orphan_rescuer;
pub mod outbox_relay;
pub mod payment_consumer;
pub mod payment_timer;
mod payments;
pub mod periodic;
mod pipeline;
pub mod reconciler;
pub mod sale_loader;
pub mod series_sampler;
pub mod status_watcher;
pub mod stock_gate;
pub mod stock_refresher;
pub mod stock_returner;
pub mod supervisor;
pub mod system;

pub use dead_letter_collector::DeadLetterCollector;
pub use event_publisher::EventPublisher;
pub use order_consumer::OrderConsumer;
pub use orphan_rescuer::OrphanRescuer;
pub use outbox_relay::{OutboxRelay, RelayHandle};
pub use payment_consumer::PaymentConsumer;
pub use payment_timer::PaymentTimer;
pub use periodic::Periodic;
pub use reconciler::Reconciler;
pub use stock_gate::GateHandle;
pub use stock_returner::StockReturner;
pub use system::ActorSystem;
