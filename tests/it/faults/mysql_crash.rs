//! The database fails while it commits (C11) and while it is migrated.
//!
//! Covers the crash points `before_commit`, `after_commit` and `migrating` in MariaDB.

use std::sync::Arc;

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::placement::place_each;
use floodgate::db::{ErrorClass, Ledger, OrderWriter, SaleStore};
use floodgate::domain::{OrderIntent, PlaceOutcome, Sku};
use floodgate::runtime::clock::{ManualClock, now_monotonic};

use crate::support::fault_proxy::FaultProxy;
use crate::support::offers::{ANY, assert_ledger_holds, intent, open_offer, orders, quota, run};
use crate::support::random::number_from_env;
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::until;

/// A ledger behind a proxy that cuts connections, and one with a direct connection, for checks.
struct Store {
    server: MariaDb,
    proxy: FaultProxy,
    ledger: MysqlLedger,
    direct: MysqlLedger,
    sku: Sku,
}

const STOCK: u32 = 1_000;

/// The time of the ledger's rows.
const NOW_MS: i64 = 1_800_000_000_000;

/// The whole packet, because the server also receives READ COMMITTED.
const COMMIT: &[u8] = b"\x07\0\0\0\x03COMMIT";

impl Store {
    async fn start() -> Self {
        let server = MariaDb::start();
        let proxy = FaultProxy::start(server.addr());
        let url = MariaDb::url_by(proxy.addr());
        let clock = Arc::new(ManualClock::new(NOW_MS));
        let options = MysqlOptions { connect_timeout_ms: 10_000, clock, ..MysqlOptions::new(url) };
        let ledger = MysqlLedger::open(&options).unwrap();
        let direct = MysqlLedger::open(&server.options()).unwrap();
        let sku = open_offer(&direct, "sale", quota(5), STOCK).await;
        Self { server, proxy, ledger, direct, sku }
    }

    fn batch(&self) -> Vec<OrderIntent> {
        (1..=100).map(|number| intent(&self.sku, number, number, 2)).collect()
    }

    async fn num_orders(&self) -> usize {
        orders(&self.direct, self.sku.no).await.len()
    }

    /// Resolves the batch, as a consumer does after an unknown commit, and checks every outcome.
    async fn assert_resolved(&self, expected: fn(&OrderIntent) -> PlaceOutcome) {
        let batch = self.batch();
        let mut outcomes = vec![None; batch.len()];
        place_each(&self.ledger, &batch, &mut outcomes).await.unwrap();
        let expected: Vec<_> = batch.iter().map(|intent| Some(expected(intent))).collect();
        assert_eq!(outcomes, expected);
        assert_eq!(self.num_orders().await, batch.len());
        assert_eq!(self.direct.available(self.sku.no).await.unwrap(), STOCK - 200);
        assert_ledger_holds(&self.direct).await;
    }
}

/// Crash point `after_commit`, as the client of the database sees it.
#[test]
fn a_commit_without_an_answer_is_unknown_and_the_keys_decide() {
    run(async {
        let store = Store::start().await;
        store.proxy.cut_reply(COMMIT);
        let error = store.ledger.place(store.batch()).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Unknown, "{error:?}");
        assert_eq!(store.proxy.cuts(), 1);
        assert_eq!(store.num_orders().await, 100, "the batch was committed");
        store.assert_resolved(|intent| PlaceOutcome::Repeat(intent.order(NOW_MS))).await;
    });
}

/// Crash point `before_commit`, as the client of the database sees it.
#[test]
fn a_commit_that_never_arrived_is_unknown_too() {
    run(async {
        let store = Store::start().await;
        store.proxy.cut_request(COMMIT);
        let error = store.ledger.place(store.batch()).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Unknown, "{error:?}");
        assert_eq!(store.proxy.cuts(), 1);
        assert_eq!(store.num_orders().await, 0);
        store.assert_resolved(|intent| PlaceOutcome::Placed(intent.order(NOW_MS))).await;
    });
}

#[test]
fn a_connection_that_breaks_before_commit_has_written_nothing() {
    run(async {
        let store = Store::start().await;
        for statement in ["INSERT INTO orders", "INSERT INTO quotas", "UPDATE quotas"] {
            store.proxy.cut_reply(statement);
            let error = store.ledger.place(store.batch()).await.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Down, "{statement}: {error:?}");
            assert_eq!(store.num_orders().await, 0, "{statement}");
        }
        assert_eq!(store.proxy.cuts(), 3);
        store.assert_resolved(|intent| PlaceOutcome::Placed(intent.order(NOW_MS))).await;
    });
}

#[test]
fn a_server_that_is_killed_with_the_answer_on_its_way_has_kept_the_orders() {
    run(async {
        let store = Store::start().await;
        store.proxy.cut_reply(COMMIT);
        let error = store.ledger.place(store.batch()).await.unwrap_err();
        store.server.kill();
        assert_eq!(error.class(), ErrorClass::Unknown, "{error:?}");
        let error = store.ledger.place(store.batch()).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Down, "{error:?}");
        store.server.restart();
        store.assert_resolved(|intent| PlaceOutcome::Repeat(intent.order(NOW_MS))).await;
    });
}

/// The moment of the kill is arbitrary; the answer of the ledger must be true.
#[test]
fn whenever_the_server_is_killed_the_answer_was_true() {
    run(async {
        let server = MariaDb::start();
        let options = MysqlOptions { connect_timeout_ms: 10_000, ..server.options() };
        let ledger = MysqlLedger::open(&options).unwrap();
        let sku = open_offer(&ledger, "sale", ANY, 1_000_000).await;
        let rounds: u64 = number_from_env("FLOODGATE_CHAOS_ROUNDS").unwrap_or(20);
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut placed, mut unknown, mut refused, mut lost) = (0, 0, 0, 0);
        let batch_of = |round: u64| -> Vec<_> {
            (1..=300).map(|n| intent(&sku, round * 1_000 + n, n, 1)).collect()
        };
        // The kills spread over the whole of a batch, however fast this machine is.
        let begin = now_monotonic();
        ledger.place(batch_of(0)).await.unwrap().unwrap();
        let batch_takes = begin.elapsed();
        for round in 1..=rounds {
            let after = batch_takes.mul_f64(random.f64() * 1.5);
            let killing = async {
                // Not a wait for a condition: the moment of the kill is meant to be arbitrary.
                tokio::time::sleep(after).await;
                server.kill();
            };
            let batch = batch_of(round);
            let (answer, ()) = tokio::join!(ledger.place(batch.clone()), killing);
            server.restart();
            let examined =
                until("the ledger", || async { ledger.examine(batch.clone()).await.ok() });
            let num_found = examined.await.orders.len();
            match answer {
                Ok(Some(_)) => {
                    placed += 1;
                    lost += batch.len() - num_found;
                }
                Ok(None) => panic!("seed={seed}: no other process writes"),
                Err(error) if error.class() == ErrorClass::Unknown => {
                    unknown += 1;
                    assert!(
                        [0, batch.len()].contains(&num_found),
                        "seed={seed}: torn batch: {num_found}"
                    );
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(num_found, 0, "seed={seed}: {error:?}");
                }
            }
        }
        println!("seed={seed} placed={placed} unknown={unknown} refused={refused} lost={lost}");
        assert_eq!(lost, 0, "seed={seed}");
        // A connection of the ledger before may be unused since the kill, and lost.
        assert_ledger_holds(&MysqlLedger::open(&server.options()).unwrap()).await;
    });
}

/// Crash point `migrating`: MariaDB changes tables outside transactions, so the completed part of a
/// crashed migration stays, without a record.
#[test]
fn migrating_goes_on_where_it_ended() {
    let up = include_str!("../../../migrations/mysql/0001_create_schema/up.sql");
    let down = include_str!("../../../migrations/mysql/0001_create_schema/down.sql");
    let statements: Vec<&str> = up.split_inclusive(";\n").collect();
    let server = MariaDb::start();
    let options = server.options();
    MysqlLedger::migrate(&options).unwrap();
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'floodgate'";
    let complete = server.number(tables);
    for num_done in (0..statements.len()).step_by(6).chain([statements.len()]) {
        let done = statements[..num_done].concat();
        server.sql(&format!("{down} {done} DELETE FROM __diesel_schema_migrations"));
        let and_the_record = i64::try_from(num_done).unwrap() + 1;
        assert_eq!(server.number(tables), and_the_record, "one table per statement");
        assert_eq!(MysqlLedger::migrate(&options).unwrap(), ["0001_create_schema"]);
        assert_eq!(server.number(tables), complete, "after {num_done} statements");
    }
    let ledger = MysqlLedger::open(&options).unwrap();
    assert_eq!(run(ledger.next_token("process")).unwrap(), 1);
}
