//! Properties of the client and of its sessions on which the ledger's statements depend.

use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{ErrorClass, OrderWriter, SaleStore};

use crate::support::offers::{ANY, intent, offer, run, sale_draft, sku_draft};
use crate::support::servers::mariadb::MariaDb;

/// The number of affected rows that the client returns for each statement.
async fn affected_rows<const N: usize>(
    conn: &mut AsyncMysqlConnection,
    statements: [&str; N],
) -> [usize; N] {
    let mut affected = [0; N];
    for (count, statement) in affected.iter_mut().zip(statements) {
        *count = diesel::sql_query(statement).execute(conn).await.unwrap();
    }
    affected
}

/// An upsert that changes nothing returns the same count as one that inserts, so the ledger does
/// not use its count. The count of a conditional UPDATE is exact.
#[test]
fn the_client_counts_the_rows_that_were_found() {
    const UPSERT: &str = "INSERT INTO t VALUES (1, 1) \
         ON DUPLICATE KEY UPDATE owned = IF(owned + 1 <= 2, owned + 1, owned)";
    const TAKE: &str = "UPDATE t SET owned = owned + 1 WHERE id = 1 AND owned + 1 <= 4";
    let server = MariaDb::start();
    server.as_root(async |conn| {
        conn.batch_execute("CREATE TABLE t (id INT PRIMARY KEY, owned INT)").await.unwrap();
        assert_eq!(
            affected_rows(conn, [UPSERT, UPSERT, UPSERT]).await,
            [1, 2, 1],
            "the last 1 is a refused upsert"
        );
        assert_eq!(affected_rows(conn, [TAKE, TAKE, TAKE]).await, [1, 1, 0]);
        let same = "UPDATE t SET owned = owned WHERE id = 1";
        assert_eq!(
            affected_rows(conn, [same]).await,
            [1],
            "the row was found, although nothing changed"
        );
    });
}

/// A trigger records the settings of the sessions of a ledger.
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
        // As many concurrent batches as writers, so that each writer connects.
        let batches = (1..=4).map(|n| ledger.place(vec![intent(&sku, n, n, 1)]));
        for placed in futures_util::future::join_all(batches).await {
            assert!(placed.unwrap().is_some());
        }
        let recorded = server.texts("SELECT text FROM seen");
        assert_eq!(recorded, vec!["READ-COMMITTED en_US ON 3 4.500000 8 OFF"; 4]);
    });
}

#[test]
fn too_long_values_are_refused_and_not_truncated() {
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
