//! Reads the facts about the server that `floodgate doctor` checks.
//!
//! Uses a connection with the session settings of the ledger, so that its variables are those that
//! orders are written with. Changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Text;

use super::client::{MysqlConnection, connect};
use super::session::{Session, SessionAccess};
use super::{MysqlOptions, on_own_thread};
use crate::db::Error;
use crate::db::migrate::{self, SchemaStatus};
use crate::db::sql::{Database, Queries};
use crate::runtime::clock::{now_monotonic, wall_ms};

/// How often the time of the server is read; the fastest response is the most precise.
const TIME_READS: usize = 5;

/// The facts about a server.
#[derive(Debug, Clone)]
pub struct MysqlFacts {
    /// The time to connect and to set up the session.
    pub connect_time: Duration,
    /// The fastest of several round trips.
    pub round_trip: Duration,
    /// Server clock minus local clock, milliseconds.
    pub clock_ahead_ms: i64,
    /// The session variables by name.
    pub variables: BTreeMap<String, String>,
    /// All connections of the server, this one included.
    pub num_connections: u64,
    /// The status of the schema.
    pub status: SchemaStatus,
    /// Name and engine of each table.
    pub tables: Vec<(String, String)>,
    /// Why the server rejects writes; `None`: accepted, or not tested because the table is missing.
    pub refuses_writes: Option<String>,
}

impl MysqlFacts {
    /// A session variable; empty if unknown.
    pub fn text(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// A numeric session variable; 0 if unknown or not a number.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// Connects and reads all facts. Blocks.
pub fn read(options: &MysqlOptions) -> Result<MysqlFacts, Error> {
    let session = Session::new(options, SessionAccess::Write)?;
    on_own_thread(&session, || {
        let begun = now_monotonic();
        let mut conn = connect(&session)?;
        let connect_time = now_monotonic().duration_since(begun);
        conn.limit_job();
        let mut facts = read_facts(&mut conn, connect_time)?;
        if facts.tables.iter().any(|(name, _)| name == "tokens") {
            facts.refuses_writes = try_write(&mut conn);
        }
        Ok(facts)
    })
}

fn read_facts(conn: &mut MysqlConnection, connect_time: Duration) -> Result<MysqlFacts, Error> {
    let (round_trip, clock_ahead_ms) = measure_clock(conn)?;
    let pairs = |conn: &mut MysqlConnection, query| sql::<(Text, Text)>(query).load(conn);
    let variables: Vec<(String, String)> = pairs(conn, "SHOW SESSION VARIABLES")?;
    let connected = pairs(conn, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")?;
    let tables = pairs(
        conn,
        "SELECT CAST(table_name AS CHAR), CAST(COALESCE(engine, '') AS CHAR) \
         FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1",
    )?;
    Ok(MysqlFacts {
        connect_time,
        round_trip,
        clock_ahead_ms,
        variables: variables.into_iter().collect(),
        num_connections: connected.first().and_then(|(_, n)| n.parse().ok()).unwrap_or(0),
        status: migrate::schema_status(conn)?,
        tables,
        refuses_writes: None,
    })
}

/// Reads the server's clock, epoch milliseconds.
pub(super) const SERVER_TIME: &str =
    "SELECT CAST(FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000) AS SIGNED)";

/// The fastest round trip, and the server clock minus the local clock in milliseconds.
fn measure_clock(conn: &mut MysqlConnection) -> QueryResult<(Duration, i64)> {
    let mut fastest: Option<(Duration, i64)> = None;
    for _ in 0..TIME_READS {
        let (sent, sent_ms) = (now_monotonic(), wall_ms());
        let server_ms = conn.number(SERVER_TIME)?;
        let took = now_monotonic().duration_since(sent);
        let half_ms = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        if fastest.is_none_or(|(shortest, _)| took < shortest) {
            fastest = Some((took, server_ms - sent_ms - half_ms));
        }
    }
    Ok(fastest.unwrap_or_default())
}

/// Writes a row that does not exist in every way. Returns the error of the server.
fn try_write(conn: &mut MysqlConnection) -> Option<String> {
    conn.limit_job();
    let sql = "INSERT INTO tokens SELECT * FROM tokens WHERE name = ''; \
               UPDATE tokens SET token = token WHERE name = ''; \
               DELETE FROM tokens WHERE name = ''";
    conn.batch_execute(sql).err().map(|error| error.to_string())
}
