//! `kill -9` of the server under load, again and again, on the same ledger.
//!
//! Covers the crash points `reserved_not_submitted`, `committed_not_settled`,
//! `committed_not_answered` and `recorded_not_released`: whatever was in memory is gone, and the
//! next start builds books and results from the ledger.

use std::time::Duration;

use floodgate::load::{BuyRequest, Load, Until};
use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale};
use crate::support::crowd::{History, Wish, send_until};
use crate::support::gate::metric;
use crate::support::orders::orders_in;
use crate::support::process::{Server, settings};
use crate::support::random::number_from_env;
use crate::support::wait::until;

const ROUNDS: u64 = 20;
const BUYERS_PER_ROUND: u64 = 3_000;
const STOCK: u64 = 20_000;

#[test]
fn twenty_kills_lose_nothing_that_was_answered() {
    let wanted = number_from_env("FLOODGATE_CHAOS_ROUNDS").unwrap_or(ROUNDS);
    for (tier, rounds) in [("memory", wanted), ("ledger", wanted.div_ceil(4))] {
        kill_rounds(tier, rounds);
    }
}

fn kill_rounds(tier: &str, rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let keys = [("FLOODGATE__TIER", tier)];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut history = History::default();
    let stock = u32::try_from(STOCK).unwrap();
    for round in 0..rounds {
        let server = Server::start(folder.path(), &keys);
        if round == 0 {
            let policy = json!({"kind": "one_per_buyer"});
            runtime.block_on(open_sale(server.internal, "sale", policy, stock, 4));
        } else {
            runtime.block_on(assert_audit_holds(server.internal));
        }
        let first = 1 + round * BUYERS_PER_ROUND;
        let wishes: Vec<_> = (first..first + BUYERS_PER_ROUND)
            .map(|buyer| Wish { buyer, request_id: None })
            .collect();
        // Every wish twice, in random order: repeats arrive while the first one is on its way.
        let mut attempts: Vec<_> = (0..wishes.len()).chain(0..wishes.len()).collect();
        random.shuffle(&mut attempts);
        let after = Duration::from_millis(random.u64(5..120));
        let public = server.public;
        let killing = async {
            if round == 0 {
                until("an order", async || {
                    let name = "floodgate_orders_placed_total";
                    (metric(server.internal, name, "").await > 0).then_some(())
                })
                .await;
            }
            // Not a wait for a condition: the moment of death is meant to be arbitrary.
            tokio::time::sleep(after).await;
            server.kill();
        };
        let loading = send_until(public, "sale", wishes.into(), attempts.into(), 64, killing);
        let heard = runtime.block_on(loading);
        history.heard.extend(heard.heard);
    }
    let server = Server::start(folder.path(), &keys);
    runtime.block_on(assert_audit_holds(server.internal));
    drop(server);
    let orders = runtime.block_on(orders_in(&settings(folder.path())));
    history.judge(seed, &orders, STOCK).assert_clean();
    assert!(orders.units > 0, "the load must have got through");
}

#[test]
fn a_server_told_to_stop_under_load_answers_what_it_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let policy = json!({"kind": "one_per_buyer"});
    runtime.block_on(open_sale(server.internal, "sale", policy, 1_000_000, 2));
    let load = Load {
        until: Until::Elapsed(Duration::from_millis(300)),
        connections: 32,
        ..Load::new(
            server.public,
            BuyRequest::new(server.public, "sale", "sku", 1).by_unique_buyers(1),
        )
    };
    let report = runtime.block_on(floodgate::load::run(load)).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    let orders = runtime.block_on(orders_in(&settings(folder.path())));
    // Whoever was told of an order has it, and besides them only those in doubt may have one.
    let told = report.with_status(200);
    let in_doubt = report.with_status(202) + report.transport_errors;
    assert!((told..=told + in_doubt).contains(&orders.units), "{}: {report:?}", orders.units);
}
