//! Shared test support: harnesses, faulty test doubles, and waiting without fixed sleeps.

pub mod admin;
pub mod app;
pub mod browser;
pub mod checker;
mod checker_tests;
pub mod crowd;
pub mod dead_letter_collectors;
pub mod dead_letters;
pub mod defective_ledger;
pub mod fake_broker;
pub mod fault_proxy;
mod fault_proxy_tests;
pub mod faulty_ledger;
pub mod faulty_stock;
pub mod gate;
pub mod harness;
pub mod memory_broker;
pub mod offers;
pub mod oracle;
mod order_changes;
pub mod order_consumer;
pub mod orders;
pub mod pipeline;
pub mod poison;
pub mod process;
pub mod quota_load;
pub mod random;
pub mod reconcilers;
pub mod redis_connections;
pub mod relays;
pub mod servers;
pub mod shop;
pub mod wait;

pub use app::TestApp;
