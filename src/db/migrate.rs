//! The ledger's schema: its version in a database, and the migration to the present version.
//!
//! Migrations are compiled in. A server migrates an older ledger when it opens it and rejects a
//! newer one, because the meaning of its columns is unknown to this program.

use diesel::migration::{Migration, MigrationSource};
use diesel::sqlite::Sqlite;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};

use super::Error;
use super::sql::Database;

/// The migrations of `SQLite`.
pub const SQLITE: EmbeddedMigrations = embed_migrations!("migrations/sqlite");

/// The migrations of MySQL and MariaDB.
pub const MYSQL: EmbeddedMigrations = embed_migrations!("migrations/mysql");

/// The tables of every ledger since its first version.
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
        let reason = format!(
            "the ledger has schema version {newest}, this program supports versions up to {}: a \
             newer program has migrated it; start that program, or restore the backup made before \
             the upgrade",
            newest_known()?
        );
        Err(Error::CannotOpen { reason })
    }

    /// `CannotOpen` for a schema that differs from this program's, for callers that do not migrate.
    pub fn check_current(&self) -> Result<(), Error> {
        self.check_not_newer()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "the ledger's schema lacks {}: run `floodgate migrate`",
            self.pending.join(", ")
        );
        Err(Error::CannotOpen { reason })
    }
}

/// Compares the schema of the database with this program's. Read-only.
pub fn schema_status<D: Database>(conn: &mut D) -> Result<SchemaStatus, Error> {
    let mut status = SchemaStatus::default();
    if conn.has_table("__diesel_schema_migrations")? {
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
    if is_current(&schema_status(conn)?)? {
        return Ok(Vec::new());
    }
    conn.with_migration_lock(|conn| {
        // Another process may have migrated while this one waited for the lock.
        let before = schema_status(conn)?;
        if is_current(&before)? {
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

fn is_current(status: &SchemaStatus) -> Result<bool, Error> {
    status.check_not_newer()?;
    Ok(status.pending.is_empty())
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
    use diesel::prelude::*;
    use diesel::sql_types::Text;
    use diesel_migrations::MigrationHarness;

    use super::*;

    #[derive(QueryableByName)]
    struct Applied {
        #[diesel(sql_type = Text)]
        version: String,
    }

    /// The definition of every table and index in the database.
    fn schema(conn: &mut SqliteConnection) -> Vec<String> {
        diesel::sql_query(
            "SELECT type || ' ' || name || ' ' || COALESCE(sql, '') AS version FROM sqlite_master \
             WHERE name NOT LIKE '%diesel%' AND name <> 'sqlite_sequence' ORDER BY 1",
        )
        .load::<Applied>(conn)
        .unwrap()
        .into_iter()
        .map(|row| row.version)
        .collect()
    }

    #[test]
    fn up_down_up_is_the_same_schema() {
        let mut conn = SqliteConnection::establish(":memory:").unwrap();
        assert_eq!(schema_status(&mut conn).unwrap().applied, Vec::<String>::new());
        assert_eq!(schema(&mut conn), Vec::<String>::new(), "reading the status changes nothing");

        let applied = run(&mut conn).unwrap();
        assert_eq!(applied.len(), built_in().unwrap().len());
        let verbs = ["_create_", "_add_"];
        let has_verb = |name: &String| verbs.iter().any(|verb| name.contains(verb));
        assert!(applied.iter().all(has_verb), "{applied:?}");
        let first = schema(&mut conn);
        assert!(first.len() > 10, "{first:?}");
        assert_eq!(run(&mut conn).unwrap(), Vec::<String>::new());

        conn.revert_all_migrations(SQLITE).unwrap();
        assert_eq!(schema(&mut conn), Vec::<String>::new());
        assert_eq!(schema_status(&mut conn).unwrap().pending, applied);

        assert_eq!(run(&mut conn).unwrap(), applied);
        assert_eq!(schema(&mut conn), first);
    }

    /// The columns of a table in the database, and the columns in the text of a query.
    fn columns(
        conn: &mut SqliteConnection,
        table: &str,
        query: &str,
    ) -> (Vec<String>, Vec<String>) {
        let sql = format!("SELECT name AS version FROM pragma_table_info('{table}') ORDER BY cid");
        let rows: Vec<Applied> = diesel::sql_query(sql).load(conn).unwrap();
        let selected = query.split(" FROM ").next().unwrap();
        let names = selected.split(", ").filter_map(|column| column.rsplit('`').nth(1));
        (rows.into_iter().map(|row| row.version).collect(), names.map(str::to_owned).collect())
    }

    #[test]
    fn the_code_and_the_database_name_the_same_columns() {
        let mut conn = SqliteConnection::establish(":memory:").unwrap();
        run(&mut conn).unwrap();
        macro_rules! check {
            ($($table:ident)+) => {$({
                use crate::db::schema::$table;
                let query = $table::table.select($table::all_columns);
                let text = diesel::debug_query::<Sqlite, _>(&query).to_string();
                let (in_database, in_code) = columns(&mut conn, stringify!($table), &text);
                assert_eq!(in_database, in_code, "{}", stringify!($table));
                assert!(!in_code.is_empty());
            })+};
        }
        check!(sales skus orders quotas failed_requests tokens secrets dead_letters dead_requests);
    }

    #[test]
    fn every_migration_begins_with_a_comment() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        for (_, name) in built_in().unwrap() {
            for (database, file) in [
                ("sqlite", "up.sql"),
                ("sqlite", "down.sql"),
                ("mysql", "up.sql"),
                ("mysql", "down.sql"),
            ] {
                let file = folder.join(database).join(&name).join(file);
                let text = std::fs::read_to_string(&file).unwrap();
                assert!(text.starts_with("-- "), "{} begins with its purpose", file.display());
            }
        }
    }

    #[test]
    fn the_error_of_a_newer_schema_contains_both_versions() {
        let status = SchemaStatus { unknown: vec!["9999".to_owned()], ..SchemaStatus::default() };
        let message = status.check_not_newer().unwrap_err().to_string();
        assert!(message.contains("9999"), "{message}");
        assert!(message.contains(&newest_known().unwrap()), "{message}");
        assert!(status.check_current().is_err());
    }
}
