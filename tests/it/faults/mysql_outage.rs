//! The database is away for a while (C12), in many ways: nobody waits longer than was agreed,
//! nothing is lost or doubled, and when it is back the same ledger works on, without a restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use floodgate::db::conflict_resolution::climb;
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{Error, ErrorClass, Ledger};
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

/// Short limits, so that a test sees them end.
fn impatient(url: String) -> MysqlOptions {
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

/// As few connections as can be.
fn few(options: MysqlOptions) -> MysqlOptions {
    MysqlOptions { writers: 1, readers: 1, ..options }
}

/// Opens a ledger, however often that takes too long.
async fn opened(options: &MysqlOptions) -> MysqlLedger {
    until("a connection", async || MysqlLedger::open(options).ok()).await
}

impl Store {
    async fn on(server: MariaDb, change: impl FnOnce(&mut MysqlOptions)) -> Self {
        let patient = opened(&few(server.options())).await;
        let sku = open_offer(&patient, "sale", ONE, STOCK).await;
        patient.close().await;
        let proxy = FaultProxy::start(server.addr());
        let mut options = impatient(MariaDb::url_by(proxy.addr()));
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

    /// Places half of the batches, breaks something, sees what the ledger says meanwhile, heals,
    /// and places the rest; then judges.
    async fn through(
        &self,
        classes: &[ErrorClass],
        word: &str,
        fault: impl FnOnce(),
        heal: impl FnOnce(),
    ) {
        let half = BATCHES / 2;
        let mut told = join_all((0..half).map(|number| self.place_all(number))).await;
        fault();
        // Calls end while it lasts, each with an account of what became of it.
        let meanwhile = (half..half + 10).map(|number| self.try_once(number));
        let errors: Vec<Error> =
            join_all(meanwhile).await.into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "the fault must strike");
        assert!(errors.iter().all(|error| classes.contains(&error.class())), "{errors:?}");
        assert!(errors.iter().any(|error| told_by(error).contains(word)), "{errors:?}");
        // Readers, too, come back in time, whatever they heard.
        let reads = (0..2).map(|_| self.ledger.scan_orders(self.sku.no, Box::new(|_| true)));
        drop(join_all(reads).await);
        drop(self.ledger.available(self.sku.no).await);
        assert_eq!(self.ledger.num_threads(), 5, "no thread was added or lost");
        heal();
        told.extend(join_all((half..BATCHES).map(|number| self.place_all(number))).await);
        self.judge(told.concat()).await;
    }

    async fn try_once(&self, number: u64) -> Result<(), Error> {
        let batch = self.batch(number);
        let mut outcomes = vec![None; batch.len()];
        climb(&*self.ledger, &batch, &mut outcomes).await
    }

    /// What a consumer does: asks until there is an answer.
    async fn place_all(&self, number: u64) -> Vec<PlaceOutcome> {
        let batch = self.batch(number);
        let outcomes = until("all outcomes", || async {
            let mut outcomes = vec![None; batch.len()];
            climb(&*self.ledger, &batch, &mut outcomes).await.ok()?;
            outcomes.into_iter().collect::<Option<Vec<_>>>()
        });
        outcomes.await
    }

    async fn judge(&self, told: Vec<PlaceOutcome>) {
        let ledger = opened(&few(self.server.options())).await;
        let found = orders(&ledger, self.sku.no).await;
        let distinct: BTreeSet<_> = found.iter().map(|order| order.request).collect();
        let acknowledged = told.iter().filter_map(PlaceOutcome::order);
        let units: u64 = found.iter().map(|order| u64::from(order.quantity)).sum();
        let verdict = Verdict {
            attempted: told.len(),
            acknowledged: acknowledged.clone().count(),
            ok: found.len(),
            units,
            lost: acknowledged.filter(|order| !distinct.contains(&order.request)).count(),
            duplicated: found.len() - distinct.len(),
            oversold: units.saturating_sub(u64::from(STOCK)),
            ..Verdict::default()
        };
        verdict.assert_clean();
        assert_eq!(verdict.acknowledged, told.len(), "everybody got what there was enough of");
        assert_eq!(found.len() as u64, BATCH * BATCHES);
        let left = ledger.available(self.sku.no).await.unwrap();
        assert_eq!(u64::from(left), u64::from(STOCK) - BATCH * BATCHES);
        assert_ledger_holds(&ledger).await;
    }
}

/// An error with its cause.
fn told_by(error: &Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {source}")
}

/// Whatever did not end in time may have been written, or waits for a thread.
const SILENCE: [ErrorClass; 3] = [ErrorClass::Down, ErrorClass::Unknown, ErrorClass::Retry];

#[test]
fn a_server_that_was_killed() {
    run(async {
        let store = Store::start().await;
        let Store { server, .. } = &store;
        store.through(&SILENCE, "", || server.kill(), || server.restart()).await;
    });
}

#[test]
fn a_server_that_hangs() {
    run(async {
        let store = Store::start().await;
        let Store { server, .. } = &store;
        store.through(&SILENCE, "in time", || server.stop(), || server.cont()).await;
    });
}

/// What was sent meanwhile arrives late, when its sender has long given it up.
#[test]
fn a_link_that_holds_everything_back() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let hold = || proxy.set(Mode::Hold(None));
        store.through(&SILENCE, "in time", hold, || proxy.heal()).await;
    });
}

#[test]
fn a_link_that_holds_the_answers_back() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let hold = || proxy.set(Mode::Hold(Some(Way::ToClient)));
        store.through(&SILENCE, "in time", hold, || proxy.heal()).await;
    });
}

/// And nobody ever hears that the connections are gone.
#[test]
fn a_link_that_loses_everything() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let lose = || proxy.set(Mode::Lose(None));
        store.through(&SILENCE, "in time", lose, || proxy.heal()).await;
    });
}

#[test]
fn a_link_that_resets_every_connection() {
    run(async {
        let store = Store::start().await;
        let Store { proxy, .. } = &store;
        let reset = || proxy.set(Mode::Reset);
        store.through(&SILENCE, "", reset, || proxy.heal()).await;
    });
}

#[test]
fn a_server_that_takes_no_writes() {
    run(async {
        let store = Store::start().await;
        let set = |value| store.server.sql(&format!("SET GLOBAL read_only = {value}"));
        store
            .through(&[ErrorClass::Down, ErrorClass::Retry], "--read-only", || set(1), || set(0))
            .await;
    });
}

#[test]
fn a_server_without_a_free_connection() {
    run(async {
        let store = Store::on(MariaDb::start_with(&["--max-connections=12"]), |_| {}).await;
        let others = Mutex::new(Vec::new());
        // The ledger's own connections go, and others are faster to take their places.
        let crowd = || {
            store.proxy.set(Mode::Reset);
            let connected = "SELECT variable_value FROM information_schema.global_status \
                             WHERE variable_name = 'THREADS_CONNECTED'";
            until_true("nobody but who asks", || store.server.number(connected) == 1);
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
        store.through(&classes, "Too many connections", crowd, || others.lock().clear()).await;
    });
}

/// The server would hold the rows of a client that vanished until TCP notices: for hours.
#[test]
fn the_rows_of_a_client_that_vanished_are_free_soon() {
    run(async {
        // So long that the row is still held when somebody looks.
        let store = Store::on(MariaDb::start(), |options| {
            options.job_deadline_ms = 9_000;
            options.statement_timeout_ms = 9_000;
            options.lock_wait_timeout_s = 9;
        })
        .await;
        let other = opened(&impatient(store.server.url())).await;
        let (holder, looker) = (store.server.session(), store.server.session());
        looker.sql("DO 1");
        holder.sql("BEGIN; SELECT * FROM skus FOR UPDATE");
        let vanishing = async {
            store.server.somebody_waits_for_a_row().await;
            // From here on the server has the stock's row locked for a client that hears nothing.
            store.proxy.set(Mode::Lose(None));
            holder.sql("ROLLBACK");
            let held = looker.try_sql("SELECT * FROM skus FOR UPDATE NOWAIT");
            assert!(held.is_err(), "the server still holds it");
        };
        let (vanished, ()) = tokio::join!(store.try_once(0), vanishing);
        assert!([ErrorClass::Down, ErrorClass::Unknown].contains(&vanished.unwrap_err().class()));

        let batch = store.batch(0);
        until("the stock's row", || async {
            let mut outcomes = vec![None; batch.len()];
            climb(&other, &batch, &mut outcomes).await.ok()
        })
        .await;
        assert_eq!(orders(&other, store.sku.no).await.len(), batch.len());
    });
}
