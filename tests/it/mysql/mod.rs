//! The ledger in MariaDB where it differs from the one in a file: its schema, its errors, its
//! plans, and several writers at once. What both have in common is in `conformance/`.

mod errors;
mod fencing;
mod opening;
mod plans;
mod schema;
mod wire;
mod writers;
