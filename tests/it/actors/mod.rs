//! The actors, without HTTP.

mod actix_facts;
mod gates;
mod intake;
mod intake_failing;
mod letters;
mod relays;
mod rescuer;
mod supervision;
