//! Errors of MariaDB, provoked on a real server, and the class that the ledger maps them to. The
//! client passes errors on as text, so that each text is checked here.

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{Error, ErrorClass, OrderWriter, SaleStore};
use floodgate::domain::{OrderIntent, Policy, Sku};

use crate::support::offers::{ANY, ONE, intent, offer, orders, quota, run};
use crate::support::servers::mariadb::MariaDb;

struct Store {
    server: MariaDb,
    ledger: MysqlLedger,
    sku: Sku,
}

impl Store {
    async fn with(policy: Policy, change: impl FnOnce(&mut MysqlOptions)) -> Self {
        let server = MariaDb::start();
        let mut options = server.options();
        change(&mut options);
        let ledger = MysqlLedger::open(&options).unwrap();
        let sku = offer(&ledger, "sale", policy, 100).await;
        Self { server, ledger, sku }
    }

    fn batch(&self) -> Vec<OrderIntent> {
        (1..=3).map(|number| intent(&self.sku, number, number, 1)).collect()
    }

    /// Places the batch and returns its error; requires that nothing was written.
    async fn error(&self) -> Error {
        let error = self.ledger.place(self.batch()).await.unwrap_err();
        assert_eq!(orders(&self.ledger, self.sku.no).await, [], "{error:?}");
        assert_eq!(self.ledger.available(self.sku.no).await.unwrap(), 100);
        error
    }

    async fn assert_batch_is_placed(&self) {
        assert!(self.ledger.place(self.batch()).await.unwrap().is_some());
        assert_eq!(orders(&self.ledger, self.sku.no).await.len(), 3);
    }
}

/// Locks the row that every writer needs.
const LOCK_STOCK: &str = "BEGIN; SELECT * FROM skus FOR UPDATE";

/// Requires an error of this class whose message contains `word`.
#[track_caller]
fn assert_error(error: &Error, class: ErrorClass, word: &str) {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let message = format!("{error}: {source}");
    assert!(message.contains(word), "{word:?} is not in: {message}");
    assert_eq!(error.class(), class, "{message}");
}

#[test]
fn a_row_locked_too_long_is_retried() {
    run(async {
        // Error 1205 rolls back only the statement: the ledger must roll back the transaction.
        let store = Store::with(ANY, |options| options.lock_wait_timeout_s = 1).await;
        let holder = store.server.session();
        holder.sql(LOCK_STOCK);
        assert_error(&store.error().await, ErrorClass::Retry, "Lock wait timeout exceeded");
        holder.sql("ROLLBACK");
        store.assert_batch_is_placed().await;
    });
}

#[test]
fn a_statement_that_takes_too_long_is_retried() {
    run(async {
        let store = Store::with(ANY, |options| options.statement_timeout_ms = 1_000).await;
        let holder = store.server.session();
        holder.sql(LOCK_STOCK);
        assert_error(&store.error().await, ErrorClass::Retry, "max_statement_time exceeded");
        holder.sql("ROLLBACK");
        store.assert_batch_is_placed().await;
    });
}

#[test]
fn the_loser_of_a_deadlock_tries_again() {
    run(async {
        let store = Store::with(ANY, |_| {}).await;
        let other = store.server.session();
        // InnoDB rolls back the transaction that changed fewer rows.
        other.sql(
            "CREATE TABLE ballast (n INT) ENGINE = InnoDB; BEGIN; \
             INSERT INTO ballast SELECT seq FROM seq_1_to_1000; SELECT * FROM skus FOR UPDATE",
        );
        let conflicting = async {
            store.server.until_row_lock_wait().await;
            other.sql("SELECT * FROM orders FOR UPDATE");
        };
        let (placed, ()) = tokio::join!(store.ledger.place(store.batch()), conflicting);
        assert_error(&placed.unwrap_err(), ErrorClass::Retry, "Deadlock found");
        other.sql("ROLLBACK");
        assert_eq!(orders(&store.ledger, store.sku.no).await, []);
        store.assert_batch_is_placed().await;
    });
}

#[test]
fn a_connection_that_was_killed_before_commit_wrote_nothing() {
    run(async {
        let store = Store::with(ANY, |_| {}).await;
        let holder = store.server.session();
        holder.sql(LOCK_STOCK);
        let killing = async {
            store.server.until_row_lock_wait().await;
            let query = "SELECT id FROM information_schema.processlist \
                       WHERE user = 'floodgate' AND info LIKE 'UPDATE skus%'";
            store.server.sql(&format!("KILL {}", store.server.number(query)));
        };
        let (placed, ()) = tokio::join!(store.ledger.place(store.batch()), killing);
        let error = placed.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Down, "{error:?}");
        holder.sql("ROLLBACK");
        assert_eq!(orders(&store.ledger, store.sku.no).await, []);
        store.assert_batch_is_placed().await;
    });
}

#[test]
fn a_server_that_takes_no_writes_is_down() {
    run(async {
        let store = Store::with(ANY, |_| {}).await;
        store.server.sql("SET GLOBAL read_only = 1");
        let error = store.ledger.place(store.batch()).await.unwrap_err();
        assert_error(&error, ErrorClass::Down, "--read-only");
        store.server.sql("SET GLOBAL read_only = 0");
        assert_eq!(orders(&store.ledger, store.sku.no).await, []);
        store.assert_batch_is_placed().await;
    });
}

/// The ledger therefore maps this error of COMMIT to "not written" instead of "unknown".
#[test]
fn a_commit_that_a_read_only_server_refuses_is_rolled_back() {
    run(async {
        let store = Store::with(ANY, |_| {}).await;
        let writer = MariaDb::session_as(&store.server.url());
        writer.sql("BEGIN; INSERT INTO tokens VALUES ('test', 1)");
        store.server.sql("SET GLOBAL read_only = 1");
        let message = writer.try_sql("COMMIT").unwrap_err().to_string();
        assert!(message.contains("--read-only option"), "{message}");
        store.server.sql("SET GLOBAL read_only = 0");
        assert_eq!(store.server.number("SELECT COUNT(*) FROM tokens WHERE name = 'test'"), 0);
    });
}

#[test]
fn every_unique_key_is_a_conflict_and_no_error() {
    run(async {
        let store = Store::with(ONE, |_| {}).await;
        let (ledger, sku) = (&store.ledger, &store.sku);
        let some = offer(ledger, "quota", quota(2), 100).await;
        store.assert_batch_is_placed().await;
        let place = async |intent| ledger.place(vec![intent]).await.unwrap();
        assert!(place(intent(sku, 10, 1, 1)).await.is_none(), "sku, buyer, slot");
        assert!(place(intent(sku, 1, 10, 1)).await.is_none(), "request");
        assert!(place(intent(&some, 1, 10, 1)).await.is_none(), "request");
        assert!(place(intent(&some, 11, 1, 2)).await.is_some());
        assert!(place(intent(&some, 12, 1, 1)).await.is_none(), "quota");
    });
}

#[test]
fn the_schema_itself_enforces_the_constraints() {
    run(async {
        let store = Store::with(quota(2), |_| {}).await;
        store.assert_batch_is_placed().await;
        let root = store.server.session();
        for (statement, constraint) in [
            ("UPDATE skus SET available = -1", "skus_not_oversold"),
            ("UPDATE skus SET available = initial_stock + 1", "skus_not_oversold"),
            ("UPDATE quotas SET owned = quota + 1", "quotas_held"),
            ("UPDATE orders SET state = 6", "orders_state_known"),
            ("UPDATE orders SET quantity = 0", "orders_of_units"),
            ("UPDATE sales SET phase = 4", "sales_phase_known"),
        ] {
            let message = root.try_sql(statement).unwrap_err().to_string();
            assert!(message.contains(constraint), "{statement}: {message}");
        }
        let error = store.ledger.place(vec![intent(&store.sku, 9, 9, 0)]).await.unwrap_err();
        assert_error(&error, ErrorClass::Bug, "orders_of_units");
    });
}

#[test]
fn a_right_that_was_taken_away_is_named() {
    run(async {
        let store = Store::with(ANY, |_| {}).await;
        store.server.sql(
            "REVOKE ALL ON floodgate.* FROM floodgate@127.0.0.1; \
             GRANT SELECT ON floodgate.* TO floodgate@127.0.0.1",
        );
        let refused = MysqlLedger::open(&store.server.options()).unwrap_err().to_string();
        assert!(refused.contains("command denied") && refused.contains("GRANT ALL"), "{refused}");
        // These privileges are enough to open the ledger, but not to sell.
        store.server.sql("GRANT INSERT, UPDATE ON floodgate.tokens TO floodgate@127.0.0.1");
        let ledger = MysqlLedger::open(&store.server.options()).unwrap();
        let error = ledger.place(store.batch()).await.unwrap_err();
        assert_error(&error, ErrorClass::Down, "INSERT command denied");
        assert_eq!(orders(&ledger, store.sku.no).await, []);
    });
}
