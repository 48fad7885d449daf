//! The database is unavailable for a while (C12), in many ways: no call exceeds its deadline, no
//! order is lost or duplicated, and afterwards the same ledger works on without a restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::placement::place_each;
use floodgate::db::{Error, ErrorClass, Ledger, OrderReader, SaleStore};
use floodgate::domain::{OrderIntent, PlaceOutcome, Sku};
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::support::crowd::Verdict;
use crate::support::fault_proxy::{FaultProxy, Mode, Way};
use crate::support::offers::{ONE, assert_ledger_holds, intent, open_offer, orders, run};
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::{until, until_true};

const STOCK: u32 = 2_000;
const BATCH: u64 = 20;
const BATCHES: u64 = 60;

struct Store {
    server: MariaDb,
    proxy: FaultProxy,
    ledger: Arc<MysqlLedger>,
    sku: Sku,
}

/// Short limits, so that a test reaches them.
fn short_limits(url: String) -> MysqlOptions {
    MysqlOptions {
        writers: 3,
        readers: 2,
        job_deadline_ms: 700,
        statement_timeout_ms: 600,
        connect_timeout_ms: 300,
        lock_wait_timeout_s: 1,
        ..MysqlOptions::new(url)
    }
}

/// Limits that no call of a test reaches.
fn long_limits(options: &mut MysqlOptions) {
    options.job_deadline_ms = 9_000;
    options.statement_timeout_ms = 9_000;
    options.lock_wait_timeout_s = 9;
}

/// One connection for writing and one for reading.
fn few_connections(options: MysqlOptions) -> MysqlOptions {
    MysqlOptions { writers: 1, readers: 1, ..options }
}

/// Opens a ledger, and retries until an attempt is in time.
async fn opened(options: &MysqlOptions) -> MysqlLedger {
    until("a connection", async || MysqlLedger::open(options).ok()).await
}

impl Store {
    async fn on(server: MariaDb, change: impl FnOnce(&mut MysqlOptions)) -> Self {
        let setup_ledger = opened(&few_connections(server.options())).await;
        let sku = open_offer(&setup_ledger, "sale", ONE, STOCK).await;
        setup_ledger.close().await;
        let proxy = FaultProxy::start(server.addr());
        let mut options = short_limits(MariaDb::url_by(proxy.addr()));
        change(&mut options);
        Self { ledger: Arc::new(opened(&options).await), server, proxy, sku }
    }

    async fn start() -> Self {
        Self::on(MariaDb::start(), |_| {}).await
    }

    fn batch(&self, number: u64) -> Vec<OrderIntent> {
        let first = number * BATCH + 1;
        (first..first + BATCH).map(|n| intent(&self.sku, n, n, 1)).collect()
    }

    /// Places half of the batches, injects the fault, checks the errors of further calls, heals,
    /// places the remaining batches and checks all orders.
    async fn run_outage(
        &self,
        classes: &[ErrorClass],
        word: &str,
        fault: impl FnOnce(),
        heal: impl FnOnce(),
    ) {
        let half = BATCHES / 2;
        let mut outcomes = join_all((0..half).map(|number| self.place_all(number))).await;
        fault();
        // Calls return during the fault, each with a classified result.
        let meanwhile = (half..half + 10).map(|number| self.try_once(number));
        let errors: Vec<Error> =
            join_all(meanwhile).await.into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "the fault had no effect");
        assert!(errors.iter().all(|error| classes.contains(&error.class())), "{errors:?}");
        assert!(errors.iter().any(|error| with_source(error).contains(word)), "{errors:?}");
        // Reads return in time as well, with or without an error.
        let reads = (0..2).map(|_| self.ledger.scan_orders(self.sku.no, Box::new(|_| true)));
        drop(join_all(reads).await);
        drop(self.ledger.available(self.sku.no).await);
        assert_eq!(num_threads(), 5, "no thread was added or lost");
        heal();
        outcomes.extend(join_all((half..BATCHES).map(|number| self.place_all(number))).await);
        self.check(outcomes.concat()).await;
    }

    async fn try_once(&self, number: u64) -> Result<(), Error> {
        let batch = self.batch(number);
        let mut outcomes = vec![None; batch.len()];
        place_each(&*self.ledger, &batch, &mut outcomes).await
    }

    /// Retries like a consumer, until every outcome is known.
    async fn place_all(&self, number: u64) -> Vec<PlaceOutcome> {
        let batch = self.batch(number);
        let outcomes = until("all outcomes", || async {
            let mut outcomes = vec![None; batch.len()];
            place_each(&*self.ledger, &batch, &mut outcomes).await.ok()?;
            outcomes.into_iter().collect::<Option<Vec<_>>>()
        });
        outcomes.await
    }

    async fn check(&self, outcomes: Vec<PlaceOutcome>) {
        let ledger = opened(&few_connections(self.server.options())).await;
        let found = orders(&ledger, self.sku.no).await;
        let distinct: BTreeSet<_> = found.iter().map(|order| order.request).collect();
        let acknowledged = outcomes.iter().filter_map(PlaceOutcome::order);
        let units: u64 = found.iter().map(|order| u64::from(order.quantity)).sum();
        let verdict = Verdict {
            attempted: outcomes.len(),
            acknowledged: acknowledged.clone().count(),
            ok: found.len(),
            units,
            lost: acknowledged.filter(|order| !distinct.contains(&order.request)).count(),
            duplicated: found.len() - distinct.len(),
            oversold: units.saturating_sub(u64::from(STOCK)),
            ..Verdict::default()
        };
        verdict.assert_clean();
        assert_eq!(
            verdict.acknowledged,
            outcomes.len(),
            "every intent is an order, because the stock suffices"
        );
        assert_eq!(found.len() as u64, BATCH * BATCHES);
        let left = ledger.available(self.sku.no).await.unwrap();
        assert_eq!(u64::from(left), u64::from(STOCK) - BATCH * BATCHES);
        assert_ledger_holds(&ledger).await;
    }
}

/// The threads of the ledgers of this process.
fn num_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.unwrap()));
    names.filter(|name| name.starts_with("ledger-")).count()
}

/// An error with its source.
fn with_source(error: &Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {source}")
}

/// A call that timed out may have been written, or may wait for a thread.
const TIMED_OUT: [ErrorClass; 3] = [ErrorClass::Down, ErrorClass::Unknown, ErrorClass::Retry];

#[test]
fn a_server_that_was_killed() {
    run(async {
        let store = Store::start().await;
        let Store { server, .. } = &store;
        store.run_outage(&TIMED_OUT, "", || server.kill(), || server.restart()).await;
    });
}

#[test]
fn a_server_that_hangs() {
    run(async {
        let store = Store::start().await;
        let Store { server, .. } = &store;
        store.run_outage(&TIMED_OUT, "in time", || server.stop(), || server.cont()).await;
    });
}

/// Requests sent during the fault arrive after their callers timed out.
#[test]
fn a_connection_that_delays_everything() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let hold = || proxy.set(Mode::Hold(None));
        store.run_outage(&TIMED_OUT, "in time", hold, || proxy.heal()).await;
    });
}

#[test]
fn a_connection_that_delays_the_answers() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let hold = || proxy.set(Mode::Hold(Some(Way::ToClient)));
        store.run_outage(&TIMED_OUT, "in time", hold, || proxy.heal()).await;
    });
}

/// Neither side is notified that the connections are gone.
#[test]
fn a_connection_that_loses_everything() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let lose = || proxy.set(Mode::Lose(None));
        store.run_outage(&TIMED_OUT, "in time", lose, || proxy.heal()).await;
    });
}

#[test]
fn a_proxy_that_resets_every_connection() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let reset = || proxy.set(Mode::Reset);
        store.run_outage(&TIMED_OUT, "", reset, || proxy.heal()).await;
    });
}

#[test]
fn a_server_that_takes_no_writes() {
    run(async {
        let store = Store::on(MariaDb::start(), long_limits).await;
        let set = |value| store.server.sql(&format!("SET GLOBAL read_only = {value}"));
        store
            .run_outage(&[ErrorClass::Down, ErrorClass::Retry], "--read-only", || set(1), || set(0))
            .await;
    });
}

#[test]
fn a_server_without_a_free_connection() {
    run(async {
        let store = Store::on(MariaDb::start_with(&["--max-connections=12"]), long_limits).await;
        let others = Mutex::new(Vec::new());
        // Resets the ledger's connections; other clients take all free ones before it reconnects.
        let exhaust = || {
            store.proxy.set(Mode::Reset);
            let connected = "SELECT variable_value FROM information_schema.global_status \
                             WHERE variable_name = 'THREADS_CONNECTED'";
            until_true("no connection but the counting one", || {
                store.server.number(connected) == 1
            });
            loop {
                let other = MariaDb::session_as(&store.server.url());
                if other.try_sql("DO 1").is_err() {
                    break;
                }
                others.lock().push(other);
            }
            store.proxy.heal();
        };
        let classes = [ErrorClass::Down, ErrorClass::Retry];
        store.run_outage(&classes, "Too many connections", exhaust, || others.lock().clear()).await;
    });
}

/// Without a limit the server would keep the row locks of a vanished client for hours, until TCP
/// times out.
#[test]
fn row_locks_of_a_lost_client_are_released() {
    run(async {
        // The row is still locked when the test checks it.
        let store = Store::on(MariaDb::start(), long_limits).await;
        let other = opened(&short_limits(store.server.url())).await;
        let (holder, checker) = (store.server.session(), store.server.session());
        checker.sql("DO 1");
        holder.sql("BEGIN; SELECT * FROM skus FOR UPDATE");
        let vanishing = async {
            store.server.until_row_lock_wait().await;
            // From here on the server locks the stock's row for an unreachable client.
            store.proxy.set(Mode::Lose(None));
            holder.sql("ROLLBACK");
            let held = checker.try_sql("SELECT * FROM skus FOR UPDATE NOWAIT");
            assert!(held.is_err(), "the server still holds the lock");
        };
        let (vanished, ()) = tokio::join!(store.try_once(0), vanishing);
        assert!([ErrorClass::Down, ErrorClass::Unknown].contains(&vanished.unwrap_err().class()));

        let batch = store.batch(0);
        until("the stock's row", || async {
            let mut outcomes = vec![None; batch.len()];
            place_each(&other, &batch, &mut outcomes).await.ok()
        })
        .await;
        assert_eq!(orders(&other, store.sku.no).await.len(), batch.len());
    });
}
