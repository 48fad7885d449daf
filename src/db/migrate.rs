//! The ledger's schema: which version a database has, and how it gets the present one.
//!
//! Migrations are compiled in. A server brings an older ledger up to date when it opens it; a newer
//! one is refused, because this program does not know what its columns promise.

use diesel::migration::{Migration, MigrationSource};
use diesel::sqlite::Sqlite;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};

use super::Error;
use super::sql::Database;

/// The migrations of `SQLite`.
pub const SQLITE: EmbeddedMigrations = embed_migrations!("migrations/sqlite");

/// The migrations of MySQL and MariaDB.
pub const MYSQL: EmbeddedMigrations = embed_migrations!("migrations/mysql");

/// The tables that every ledger has had from its first version on.
pub(super) const TABLES: [&str; 7] =
    ["sales", "skus", "orders", "quotas", "failed_requests", "tokens", "secrets"];

/// How a database's schema compares with this program's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchemaStatus {
    /// Versions that the database has, oldest first.
    pub applied: Vec<String>,
    /// Migrations that it still needs, by full name, oldest first.
    pub pending: Vec<String>,
    /// Versions that this program has never heard of, oldest first.
    pub unknown: Vec<String>,
}

impl SchemaStatus {
    /// Refuses a schema that a newer program wrote.
    pub fn check_not_newer(&self) -> Result<(), Error> {
        let Some(newest) = self.unknown.last() else { return Ok(()) };
        let reason = format!(
            "the ledger has schema version {newest}, this program knows versions up to {}: a newer \
             program has migrated it; start that program, or restore the backup made before the \
             upgrade",
            newest_known()?
        );
        Err(Error::CannotOpen { reason })
    }

    /// Refuses a schema that is not exactly this program's, for those who may not migrate.
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

/// Compares without changing anything.
pub fn standing<D: Database>(conn: &mut D) -> Result<SchemaStatus, Error> {
    let mut standing = SchemaStatus::default();
    if conn.has_table("__diesel_schema_migrations")? {
        standing.applied = conn.applied_versions()?;
    }
    let known = known()?;
    let is_known = |version: &String| known.iter().any(|(known, _)| known == version);
    standing.unknown = standing.applied.iter().filter(|v| !is_known(v)).cloned().collect();
    standing.pending = known
        .iter()
        .filter(|(version, _)| !standing.applied.contains(version))
        .map(|(_, name)| name.clone())
        .collect();
    Ok(standing)
}

/// Applies what is missing and returns it by full name; empty when the schema was current.
pub fn run<D: Database>(conn: &mut D) -> Result<Vec<String>, Error> {
    if up_to_date(&standing(conn)?)? {
        return Ok(Vec::new());
    }
    conn.alone(|conn| {
        // Another process may have been here while this one waited.
        let before = standing(conn)?;
        if up_to_date(&before)? {
            return Ok(Vec::new());
        }
        // Crash here [migrating]: the migrations that are recorded stay; the next start applies the
        // rest, and where a half of one stayed, too, that one again.
        conn.run_migrations(D::MIGRATIONS).map_err(|said| Error::CannotOpen {
            reason: format!(
                "the ledger cannot be migrated ({}): {said}; {}",
                before.pending.join(", "),
                D::AFTER_FAILED_MIGRATION
            ),
        })?;
        Ok(before.pending)
    })
}

fn up_to_date(standing: &SchemaStatus) -> Result<bool, Error> {
    standing.check_not_newer()?;
    Ok(standing.pending.is_empty())
}

/// Version and full name of every migration of this program, oldest first; the same for every
/// database.
fn known() -> Result<Vec<(String, String)>, Error> {
    let unreadable = |error| Error::Unreadable { what: format!("built-in migrations: {error}") };
    let migrations: Vec<Box<dyn Migration<Sqlite>>> = SQLITE.migrations().map_err(unreadable)?;
    let mut known: Vec<_> = migrations
        .iter()
        .map(|migration| (migration.name().version().to_string(), migration.name().to_string()))
        .collect();
    known.sort_unstable();
    Ok(known)
}

fn newest_known() -> Result<String, Error> {
    Ok(known()?.pop().map(|(version, _)| version).unwrap_or_default())
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

    /// Every table and index, as the database describes them.
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
        assert_eq!(standing(&mut conn).unwrap().applied, Vec::<String>::new());
        assert_eq!(schema(&mut conn), Vec::<String>::new(), "looking changes nothing");

        let applied = run(&mut conn).unwrap();
        assert_eq!(applied.len(), known().unwrap().len());
        let verbs = ["_create_", "_add_"];
        let says_what = |name: &String| verbs.iter().any(|verb| name.contains(verb));
        assert!(applied.iter().all(says_what), "{applied:?}");
        let first = schema(&mut conn);
        assert!(first.len() > 10, "{first:?}");
        assert_eq!(run(&mut conn).unwrap(), Vec::<String>::new());

        conn.revert_all_migrations(SQLITE).unwrap();
        assert_eq!(schema(&mut conn), Vec::<String>::new());
        assert_eq!(standing(&mut conn).unwrap().pending, applied);

        assert_eq!(run(&mut conn).unwrap(), applied);
        assert_eq!(schema(&mut conn), first);
    }

    /// The columns of a table by the database, and the columns in the text of a query.
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
                let (there, here) = columns(&mut conn, stringify!($table), &text);
                assert_eq!(there, here, "{}", stringify!($table));
                assert!(!here.is_empty());
            })+};
        }
        check!(sales skus orders quotas failed_requests tokens secrets dead_letters dead_requests);
    }

    #[test]
    fn every_migration_says_what_it_is_for() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        for (_, name) in known().unwrap() {
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
    fn a_newer_schema_is_named_with_both_versions() {
        let standing = SchemaStatus { unknown: vec!["9999".to_owned()], ..SchemaStatus::default() };
        let told = standing.check_not_newer().unwrap_err().to_string();
        assert!(told.contains("9999") && told.contains(&newest_known().unwrap()), "{told}");
        assert!(standing.check_current().is_err());
    }
}
