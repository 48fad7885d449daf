//! The actors, without HTTP.

mod actix_facts;
mod gates;
mod supervision;
