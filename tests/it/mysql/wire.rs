//! What the client and the server agree on, on which the ledger's statements depend.

use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{BlindInsert, ErrorClass, Ledger};

use crate::support::offers::{ANY, intent, offer, run, sale_draft, sku_draft};
use crate::support::servers::mariadb::MariaDb;

/// How many rows each statement says it changed.
async fn counts<const N: usize>(
    conn: &mut AsyncMysqlConnection,
    statements: [&str; N],
) -> [usize; N] {
    let mut counts = [0; N];
    for (count, statement) in counts.iter_mut().zip(statements) {
        *count = diesel::sql_query(statement).execute(conn).await.unwrap();
    }
    counts
}

/// An upsert that refuses says the same as one that inserts, so the ledger never asks it; a
/// conditional UPDATE tells exactly.
#[test]
fn the_client_counts_the_rows_that_were_found() {
    const UPSERT: &str = "INSERT INTO t VALUES (1, 1) \
         ON DUPLICATE KEY UPDATE owned = IF(owned + 1 <= 2, owned + 1, owned)";
    const TAKE: &str = "UPDATE t SET owned = owned + 1 WHERE id = 1 AND owned + 1 <= 4";
    let server = MariaDb::start();
    server.as_root(async |conn| {
        conn.batch_execute("CREATE TABLE t (id INT PRIMARY KEY, owned INT)").await.unwrap();
        assert_eq!(counts(conn, [UPSERT, UPSERT, UPSERT]).await, [1, 2, 1], "1: refused");
        assert_eq!(counts(conn, [TAKE, TAKE, TAKE]).await, [1, 1, 0]);
        let same = "UPDATE t SET owned = owned WHERE id = 1";
        assert_eq!(counts(conn, [same]).await, [1], "found, though nothing changed");
    });
}

/// What the sessions of a ledger are set to, as a trigger sees it from inside.
#[test]
fn every_session_is_set_up() {
    run(async {
        let server =
            MariaDb::start_with(&["--transaction-isolation=REPEATABLE-READ", "--autocommit=0"]);
        server.sql("SET GLOBAL lc_messages = 'de_DE'");
        let options = MysqlOptions {
            lock_wait_timeout_s: 3,
            statement_timeout_ms: 4_500,
            job_deadline_ms: 7_000,
            ..server.options()
        };
        let ledger = MysqlLedger::open(&options).unwrap();
        let sku = offer(&ledger, "sale", ANY, 100).await;
        server.sql(
            "CREATE TABLE seen (text VARCHAR(200)); \
             CREATE TRIGGER spy BEFORE INSERT ON orders FOR EACH ROW \
               INSERT INTO seen SELECT CONCAT_WS(' ', @@tx_isolation, @@lc_messages, @@autocommit, \
               @@innodb_lock_wait_timeout, @@max_statement_time, \
               @@idle_write_transaction_timeout, @@tx_read_only)",
        );
        // As many at once as there are writers, so that each makes a connection.
        let batches = (1..=4).map(|n| ledger.place(vec![intent(&sku, n, n, 1)]));
        for placed in futures_util::future::join_all(batches).await {
            assert_eq!(placed.unwrap(), BlindInsert::All);
        }
        let seen = server.texts("SELECT text FROM seen");
        assert_eq!(seen, vec!["READ-COMMITTED en_US ON 3 4.500000 8 OFF"; 4]);
    });
}

#[test]
fn what_does_not_fit_is_refused_and_not_cut() {
    run(async {
        let server = MariaDb::start_with(&["--sql-mode="]);
        let ledger = MysqlLedger::open(&server.options()).unwrap();
        server.sql("ALTER TABLE sales MODIFY title VARCHAR(5) NOT NULL");
        let draft = sale_draft("sale", vec![sku_draft("sku", ANY, 1)]);
        let error = ledger.create_sale(draft, 1).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Bug, "{error:?}");
        assert_eq!(ledger.sales().await.unwrap(), []);
    });
}
