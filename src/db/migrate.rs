//! The ledger's schema: its version in a database, and the migration to the present version.
//!
//! Migrations are compiled in. A server migrates an older ledger when it opens it and rejects a
//! newer one, because the meaning of its columns is unknown to this program.

use diesel::migration::{Migration, MigrationSource};
use diesel::sqlite::Sqlite;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};

use super::Error;
use super::error::cannot_open;
use super::sql::Database;

/// The migrations of `SQLite`.
pub const SQLITE: EmbeddedMigrations = embed_migrations!("migrations/sqlite");

/// The migrations of MySQL and MariaDB.
pub const MYSQL: EmbeddedMigrations = embed_migrations!("migrations/mysql");

/// The table of the applied migrations, created before every other.
pub const MIGRATIONS: &str = "__diesel_schema_migrations";

/// Tables of every ledger: with one, but without [`MIGRATIONS`], a database is another program's.
pub const TABLES: [&str; 7] =
    ["sales", "skus", "orders", "quotas", "failed_requests", "tokens", "secrets"];

/// How a database's schema compares with this program's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchemaStatus {
    /// Versions in the database, oldest first.
    pub applied: Vec<String>,
    /// Migrations missing in the database, by full name, oldest first.
    pub pending: Vec<String>,
    /// Versions in the database that this program does not contain, oldest first.
    pub unknown: Vec<String>,
}

impl SchemaStatus {
    /// `CannotOpen` for a schema of a newer program.
    pub fn check_not_newer(&self) -> Result<(), Error> {
        let Some(newest) = self.unknown.last() else { return Ok(()) };
        cannot_open(format!(
            "the ledger has schema version {newest}, this program supports versions up to {}: a \
             newer program has migrated it; start that program, or restore the backup made before \
             the upgrade",
            newest_known()?
        ))
    }

    /// `CannotOpen` for a schema that differs from this program's, for callers that do not migrate.
    pub fn check_current(&self) -> Result<(), Error> {
        self.check_not_newer()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = self.pending.join(", ");
        cannot_open(format!("the ledger's schema lacks {pending}: run `floodgate migrate`"))
    }
}

/// Compares the schema of the database with this program's. Read-only.
pub fn schema_status<D: Database>(conn: &mut D) -> Result<SchemaStatus, Error> {
    let mut status = SchemaStatus::default();
    if conn.has_table(MIGRATIONS)? {
        status.applied = conn.applied_versions()?;
    }
    let built_in = built_in()?;
    let is_known = |version: &String| built_in.iter().any(|(known, _)| known == version);
    status.unknown = status.applied.iter().filter(|v| !is_known(v)).cloned().collect();
    status.pending = built_in
        .iter()
        .filter(|(version, _)| !status.applied.contains(version))
        .map(|(_, name)| name.clone())
        .collect();
    Ok(status)
}

/// Applies the missing migrations and returns their full names; empty when the schema was current.
pub fn run<D: Database>(conn: &mut D) -> Result<Vec<String>, Error> {
    let status = schema_status(conn)?;
    status.check_not_newer()?;
    if status.pending.is_empty() {
        return Ok(Vec::new());
    }
    conn.with_migration_lock(|conn| {
        // Another process may have migrated while this one waited for the lock.
        let before = schema_status(conn)?;
        before.check_not_newer()?;
        if before.pending.is_empty() {
            return Ok(Vec::new());
        }
        // Crash here [migrating]: recorded migrations stay applied; the next start applies the
        // remaining ones, and repeats one that was applied in part.
        conn.run_migrations(D::MIGRATIONS).map_err(|error| Error::CannotOpen {
            reason: format!(
                "the ledger cannot be migrated ({}): {error}; {}",
                before.pending.join(", "),
                D::AFTER_FAILED_MIGRATION
            ),
        })?;
        Ok(before.pending)
    })
}

/// Version and full name of every migration of this program, oldest first; the same for every
/// database.
fn built_in() -> Result<Vec<(String, String)>, Error> {
    let unreadable = |error| Error::Unreadable { what: format!("built-in migrations: {error}") };
    let migrations: Vec<Box<dyn Migration<Sqlite>>> = SQLITE.migrations().map_err(unreadable)?;
    let mut names: Vec<_> = migrations
        .iter()
        .map(|migration| (migration.name().version().to_string(), migration.name().to_string()))
        .collect();
    names.sort_unstable();
    Ok(names)
}

fn newest_known() -> Result<String, Error> {
    Ok(built_in()?.pop().map(|(version, _)| version).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use diesel::dsl::sql;
    use diesel::prelude::*;
    use diesel::sql_types::Text;

    use super::*;

    #[test]
    fn the_code_and_the_database_name_the_same_columns() {
        let mut conn = SqliteConnection::establish(":memory:").unwrap();
        run(&mut conn).unwrap();
        macro_rules! check {
            ($($table:ident)+) => {$({
                use crate::db::schema::$table;
                let table = stringify!($table);
                let query = $table::table.select($table::all_columns);
                let query = diesel::debug_query::<Sqlite, _>(&query).to_string();
                let selected = query.split(" FROM ").next().unwrap();
                let in_code = selected.split(", ").filter_map(|column| column.rsplit('`').nth(1));
                let in_code: Vec<&str> = in_code.collect();
                let names = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
                let in_database: Vec<String> = sql::<Text>(&names).load(&mut conn).unwrap();
                assert_eq!(in_database, in_code, "{table}");
                assert!(!in_code.is_empty());
            })+};
        }
        check!(sales skus orders quotas failed_requests tokens secrets dead_letters dead_requests);
        check!(sale_phases repairs payment_events operator_verbs terms stock_changes order_events);
        check!(payments bars cursors);
    }
}
