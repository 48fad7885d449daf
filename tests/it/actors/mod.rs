//! The actors, without HTTP.

mod actix_facts;
mod gates;
pub mod gates_failing;
mod intake;
mod intake_failing;
mod intake_watermark;
mod letters;
mod reconciler;
mod relays;
mod rescuer;
mod stalls;
mod supervision;
