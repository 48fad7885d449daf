//! Tests of the SQLite ledger alone: paths, query plans, migrations and failed commits. The
//! contract that it shares with the MariaDB ledger is tested in `conformance/`.

mod commit;
mod paths;
mod plans;
mod schema;
