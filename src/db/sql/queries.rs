//! The portable queries, written with diesel.
//!
//! Each is declared once and compiled for each database, because diesel's types depend on the
//! database. The decisions on the rows are generic, in the other files of this folder.

use diesel::dsl::{insert_into, sql};
use diesel::prelude::*;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Text};
use diesel_migrations::{EmbeddedMigrations, MigrationHarness};

use super::Database;
use crate::db::schema::{sales, secrets, tokens};

/// Declares a trait of queries and implements it for the connection of every database.
macro_rules! queries {
    ($(#[$doc:meta])* trait $name:ident { $($query:tt)+ }) => {
        $(#[$doc])*
        pub trait $name {
            $crate::db::sql::queries::queries!(@declare $($query)+);
        }
        $crate::db::sql::queries::queries!(@implement $name diesel::sqlite::SqliteConnection {
            $($query)+
        });
        $crate::db::sql::queries::queries!(@implement $name $crate::db::mysql::MysqlConnection {
            $($query)+
        });
    };
    (@declare $($(#[$doc:meta])* fn $query:ident(
        &mut $conn:ident $(, $arg:ident: $kind:ty)*
    ) -> $answer:ty $body:block)+) => {
        $($(#[$doc])* fn $query(&mut $conn $(, $arg: $kind)*) -> $answer;)+
    };
    (@implement $name:ident $connection:ty { $($(#[$doc:meta])* fn $query:ident(
        &mut $conn:ident $(, $arg:ident: $kind:ty)*
    ) -> $answer:ty $body:block)+ }) => {
        impl $name for $connection {
            $(fn $query(&mut $conn $(, $arg: $kind)*) -> $answer $body)+
        }
    };
}
pub(super) use queries;

queries! {
/// The queries about the schema, the tokens and the secrets, and those of one value.
trait Queries {
    /// The versions of the applied migrations, oldest first.
    fn applied_versions(&mut self) -> QueryResult<Vec<String>> {
        sql::<Text>("SELECT version FROM __diesel_schema_migrations ORDER BY version").load(self)
    }

    /// Applies the missing migrations; the error is diesel's text.
    fn run_migrations(&mut self, migrations: EmbeddedMigrations) -> Result<(), String> {
        self.run_pending_migrations(migrations).map(drop).map_err(|error| error.to_string())
    }

    fn has_table(&mut self, name: &str) -> QueryResult<bool> {
        let named = sql::<BigInt>(Self::TABLES_NAMED).bind::<Text, _>(name);
        named.get_result::<i64>(self).map(|tables| tables > 0)
    }

    /// Reads one number.
    fn number(&mut self, query: &str) -> QueryResult<i64> {
        sql::<BigInt>(query).get_result(self)
    }

    /// Reads one text.
    fn text(&mut self, query: &str) -> QueryResult<String> {
        sql::<Text>(query).get_result(self)
    }

    /// Reads at most one row.
    fn ping(&mut self) -> QueryResult<()> {
        sales::table.select(sales::sale_no).first::<i32>(self).optional().map(drop)
    }

    /// Sets a token to `next`, an SQL expression of its present value (0 for a new token), and
    /// returns it; part of a transaction.
    fn raise_token(&mut self, name: &str, next: &str) -> QueryResult<i64> {
        sql_query(Self::INSERT_TOKEN).bind::<Text, _>(name).execute(self)?;
        let token = sql_query(format!("UPDATE tokens SET token = {next} WHERE name = ?"));
        token.bind::<Text, _>(name).execute(self)?;
        tokens::table.find(name).select(tokens::token).first(self)
    }

    /// The value of a counter; `None`: it was never raised.
    fn token(&mut self, name: &str) -> QueryResult<Option<i64>> {
        tokens::table.find(name).select(tokens::token).first(self).optional()
    }

    fn secret_value(&mut self, name: &str) -> QueryResult<Option<Vec<u8>>> {
        secrets::table.find(name).select(secrets::value).first(self).optional()
    }

    fn insert_secret(&mut self, name: &str, value: &[u8]) -> QueryResult<()> {
        let row = (secrets::name.eq(name), secrets::value.eq(value));
        insert_into(secrets::table).values(row).execute(self).map(drop)
    }
}
}
