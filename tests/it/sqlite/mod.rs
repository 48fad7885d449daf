//! Tests of the SQLite ledger alone: query plans, migrations and failed commits. The contract that
//! it shares with the MariaDB ledger is tested in `conformance/`.

mod commit;
mod plans;
mod schema;
