//! One test suite per port, run against every backend.

mod broker;
mod ledger;
mod outbox;
mod stock;
