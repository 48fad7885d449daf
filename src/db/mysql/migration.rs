//! The migration of a ledger in MySQL or MariaDB.

use std::sync::Arc;

use super::client::{MysqlConnection, connect};
use super::session::Session;
use crate::db::error::cannot_open;
use crate::db::sql::{Database, Queries};
use crate::db::{Error, migrate};

/// Connects, and brings the schema up to date; returns the applied migrations by full name.
pub(super) fn check_and_migrate(
    session: &Arc<Session>,
) -> Result<(MysqlConnection, Vec<String>), Error> {
    let mut conn = connect(session)?;
    conn.limit_statements();
    reject_foreign_tables(&mut conn)?;
    let migrated = migrate::run(&mut conn)?;
    Ok((conn, migrated))
}

/// Rejects a database in which another program created tables with our names.
fn reject_foreign_tables(conn: &mut MysqlConnection) -> Result<(), Error> {
    for table in migrate::TABLES {
        // In this order, because another process may be migrating.
        if conn.has_table(table)? && !conn.has_table(migrate::MIGRATIONS)? {
            return cannot_open(format!(
                "the database has a table `{table}` of another program: give floodgate a database \
                 of its own"
            ));
        }
    }
    Ok(())
}
