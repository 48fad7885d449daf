//! The one integration binary: it is linked once, and its folders state what is tested where.
#![cfg(test)]

mod actors;
mod browser;
mod cli;
mod conformance;
mod deploy;
mod faults;
mod http;
mod invariants;
mod lease;
mod limits;
mod lua;
mod model;
mod mysql;
mod redis_transport;
mod sqlite;
mod support;
mod tidy;
mod tiers;
mod tls;
mod wire;
