//! Tests of the MariaDB ledger alone: schema, errors, query plans and concurrent writers. The
//! contract that it shares with the SQLite ledger is tested in `conformance/`.

mod errors;
mod feed;
mod fencing;
mod opening;
mod plans;
mod schema;
mod wire;
mod writers;
