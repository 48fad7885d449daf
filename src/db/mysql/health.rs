//! What there is to know about the server before anything is sold: facts, and no judgement.
//!
//! Everything is asked on a connection that is made and set up as the ledger makes its own, so that
//! what the session says of itself is what orders would be written with. Changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::sql_query;
use diesel::sql_types::Text;

use super::client::{MysqlConnection, connect};
use super::database::number;
use super::open::{MysqlOptions, apart};
use super::session::{Session, SessionAccess};
use crate::db::Error;
use crate::db::migrate::{self, SchemaStatus};
use crate::db::sql::{Database, TimeoutClass};
use crate::runtime::clock::{now_monotonic, wall_ms};

/// How often the server is asked for the time: the quickest answer tells most.
const ASKED: usize = 5;

/// What the server told.
#[derive(Debug, Clone)]
pub struct MysqlFacts {
    /// How long it took to connect and to set the session up.
    pub connect_took: Duration,
    /// From asking to the answer, at its quickest.
    pub round_trip: Duration,
    /// How far its clock is ahead of ours, in milliseconds.
    pub clock_ahead_ms: i64,
    /// The variables of our session, by name.
    pub variables: BTreeMap<String, String>,
    /// Connections of everybody, this one included.
    pub num_connections: u64,
    /// How its schema compares with this program's.
    pub standing: SchemaStatus,
    /// The tables of the database, with the engine of each.
    pub tables: Vec<(String, String)>,
    /// Why it would not take a write; `None` where it would, or where there is no table to try.
    pub refuses_writes: Option<String>,
}

impl MysqlFacts {
    /// A variable of our session; empty if there is none of that name.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// A variable that is a number; 0 if there is none of that name.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

#[derive(QueryableByName)]
struct Variable {
    #[diesel(sql_type = Text, column_name = "Variable_name")]
    name: String,
    #[diesel(sql_type = Text, column_name = "Value")]
    value: String,
}

#[derive(QueryableByName)]
struct Table {
    #[diesel(sql_type = Text)]
    name: String,
    #[diesel(sql_type = Text)]
    engine: String,
}

/// Looks at the server. Blocks.
pub fn look(options: &MysqlOptions) -> Result<MysqlFacts, Error> {
    let session = Session::new(options, SessionAccess::Write)?;
    apart(&session, || {
        let begun = now_monotonic();
        let mut conn = connect(&session)?;
        let connect_took = now_monotonic().duration_since(begun);
        let mut facts = conn.attend(TimeoutClass::Caller, |conn| read(conn, connect_took))?;
        if facts.tables.iter().any(|(name, _)| name == "tokens") {
            facts.refuses_writes = try_write(&mut conn);
        }
        Ok(facts)
    })
}

fn read(conn: &mut MysqlConnection, connect_took: Duration) -> Result<MysqlFacts, Error> {
    let (round_trip, clock_ahead_ms) = time(conn)?;
    let variables = sql_query("SHOW SESSION VARIABLES").load::<Variable>(conn);
    let variables = variables?.into_iter();
    let connected = sql_query("SHOW GLOBAL STATUS LIKE 'Threads_connected'");
    let connected = connected.load::<Variable>(conn)?;
    let tables = sql_query(
        "SELECT CAST(table_name AS CHAR) AS name, CAST(COALESCE(engine, '') AS CHAR) AS engine \
         FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1",
    );
    let tables = tables.load::<Table>(conn)?.into_iter();
    Ok(MysqlFacts {
        connect_took,
        round_trip,
        clock_ahead_ms,
        variables: variables.map(|variable| (variable.name, variable.value)).collect(),
        num_connections: connected.first().and_then(|one| one.value.parse().ok()).unwrap_or(0),
        standing: migrate::standing(conn)?,
        tables: tables.map(|table| (table.name, table.engine)).collect(),
        refuses_writes: None,
    })
}

fn time(conn: &mut MysqlConnection) -> QueryResult<(Duration, i64)> {
    const ASK: &str = "SELECT CAST(FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000) AS SIGNED) AS cell";
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..ASKED {
        let (sent, sent_ms) = (now_monotonic(), wall_ms());
        let theirs = number(conn, ASK)?;
        let took = now_monotonic().duration_since(sent);
        let half_ms = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        if best.is_none_or(|(before, _)| took < before) {
            best = Some((took, theirs - sent_ms - half_ms));
        }
    }
    Ok(best.unwrap_or_default())
}

/// Tries to change a row that is not there, and takes it back.
fn try_write(conn: &mut MysqlConnection) -> Option<String> {
    let tried = conn.attend(TimeoutClass::Caller, |conn| {
        let sql = "START TRANSACTION; UPDATE tokens SET token = token WHERE name = ''; ROLLBACK";
        Ok(conn.batch_execute(sql)?)
    });
    match tried {
        Ok(()) => None,
        Err(Error::Refused { source, .. }) => Some(source.to_string()),
        Err(error) => Some(error.to_string()),
    }
}
