//! What tests share: rigs, stand-ins that lie, and waiting without sleeping.

pub mod admin;
pub mod app;
pub mod crowd;
pub mod lying_ledger;
pub mod offers;
pub mod orders;
pub mod process;
pub mod random;
pub mod rig;
pub mod wait;

pub use app::TestApp;
