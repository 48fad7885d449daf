//! The migration of a ledger in MySQL or MariaDB.

use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel_migrations::EmbeddedMigrations;

use super::client::{MysqlConnection, connect};
use super::database::number;
use super::session::{Session, statement_limit};
use crate::db::error::cannot_open;
use crate::db::migrate::MigratedDatabase;
use crate::db::sql::{Database, Queries};
use crate::db::{Error, migrate};

/// Limit of each statement of a migration.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

impl MigratedDatabase for MysqlConnection {
    const MIGRATIONS: EmbeddedMigrations = migrate::MYSQL;
    const AFTER_FAILED_MIGRATION: &'static str =
        "tables created by the failed migration stay, and the next attempt continues from there";
    const TABLES_NAMED: &'static str = "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = ";

    fn with_migration_lock<T>(
        &mut self,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // GET_LOCK locks are global to the server: the name contains the database.
        const NAME: &str = "LEFT(CONCAT('floodgate migrates ', DATABASE()), 64)";
        let wait_s = (self.session().audit_timeout_ms / 1000).max(1);
        // Practically unlimited: a large table takes long, and the operator can abort.
        self.limit_each(MIGRATION_TIMEOUT);
        self.batch_execute(&statement_limit(0))?;
        let lock = format!("SELECT GET_LOCK({NAME}, {wait_s})");
        if number(self, &lock)? != 1 {
            return cannot_open(format!(
                "another process has been migrating this ledger for {wait_s} s: wait for it, or \
                 find out what blocks it (SHOW PROCESSLIST)"
            ));
        }
        let result = job(self)?;
        // After an error the end of the connection releases the lock.
        let release = format!("SELECT RELEASE_LOCK({NAME})");
        number(self, &release)?;
        let usual = statement_limit(self.session().statement_timeout_ms);
        self.batch_execute(&usual)?;
        Ok(result)
    }
}

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
