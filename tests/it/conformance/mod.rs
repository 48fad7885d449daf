//! One suite per port, run over every backend.

mod ledger;
mod stock;
