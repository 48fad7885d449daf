//! One suite per port, run over every backend.

mod broker;
mod ledger;
mod outbox;
mod stock;
