//! What tests share: rigs, stand-ins that lie, and waiting without sleeping.

pub mod admin;
pub mod app;
pub mod crowd;
pub mod fake_broker;
pub mod fault_proxy;
mod fault_proxy_tests;
pub mod faulty_ledger;
pub mod faulty_stock;
pub mod gate;
pub mod greed;
pub mod intake;
pub mod judge;
mod judge_tests;
pub mod keepers;
pub mod letters;
pub mod links;
pub mod lying_ledger;
pub mod memory_broker;
pub mod offers;
pub mod oracle;
pub mod orders;
pub mod pipeline;
pub mod poison;
pub mod process;
pub mod random;
pub mod reconcilers;
pub mod relays;
pub mod rig;
pub mod servers;
pub mod shop;
pub mod wait;

pub use app::TestApp;
