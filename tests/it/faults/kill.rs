//! `kill -9` of the server under load, repeatedly, on the same ledger.
//!
//! Covers the crash points `reserved_not_submitted`, `committed_not_settled`,
//! `committed_not_answered` and `recorded_not_released`: all state in memory is lost, and the next
//! start rebuilds stock and results from the ledger.

use std::time::Duration;

use loadgen::{BuyRequest, Load, Pace, Until};
use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale};
use crate::support::crowd::{History, send_until};
use crate::support::gate::{metric, retry_until};
use crate::support::orders::orders_in;
use crate::support::process::{Server, settings};
use crate::support::quota_load;
use crate::support::random::number_from_env;
use crate::support::wait::until;

const ROUNDS: u64 = 20;
const BUYERS_PER_ROUND: u64 = 1_000;
/// Fewer units than its buyers ask for.
const STOCK_PER_ROUND: u64 = 1_500;

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
    let (mut history, mut unanswered) = (History::default(), Vec::new());
    let stock = rounds * STOCK_PER_ROUND;
    for round in 0..rounds {
        let server = Server::start(folder.path(), &keys);
        if round == 0 {
            let stock = u32::try_from(stock).unwrap();
            runtime.block_on(open_sale(server.internal, "sale", quota_load::quota(), stock, 4));
        } else {
            runtime.block_on(assert_audit_holds(server.internal));
        }
        let first = 1 + round * BUYERS_PER_ROUND;
        let buyers = first..first + BUYERS_PER_ROUND;
        let purchases = runtime.block_on(quota_load::purchases(server.public, buyers, &mut random));
        let attempts = quota_load::shuffled(&purchases, 2, &mut random);
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
            // Not a wait for a condition: the moment of the kill is meant to be arbitrary.
            tokio::time::sleep(after).await;
            server.kill();
        };
        let loading =
            send_until(public, "sale", purchases.clone(), attempts, (64, Pace::Closed), killing);
        history.absorb(runtime.block_on(loading));
        unanswered.push(purchases);
    }
    let server = Server::start(folder.path(), &keys);
    runtime.block_on(async {
        // Buyers without a final answer retry; then the remaining units are sold.
        for purchases in unanswered {
            history.absorb(retry_until(server.public, purchases, 64, quota_load::is_final).await);
        }
        quota_load::sell_rest(server.public, server.internal, &mut history).await;
        assert_audit_holds(server.internal).await;
    });
    drop(server);
    let orders = runtime.block_on(orders_in(&settings(folder.path())));
    let verdict = history.check(seed, &orders, stock);
    verdict.assert_clean();
    assert_eq!(verdict.units, stock, "every unit was sold");
}

#[test]
fn a_server_that_is_stopped_raises_no_alarm() {
    let folder = tempfile::tempdir().unwrap();
    // Its periodic actors read the ledger nearly all the time.
    let often =
        [("FLOODGATE__PAYMENT__EVERY_MS", "10"), ("FLOODGATE__MAINTENANCE__EVERY_MS", "10")];
    let mut server = Server::start(folder.path(), &often);
    server.terminate();
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    let log = server.log();
    let (_, end) = log.split_once("server: stopping").expect("a graceful end");
    assert!(!end.contains(" WARN ") && end.contains("server: stopped"), "{log}");
}

#[test]
fn a_server_stopped_under_load_answers_what_it_accepted() {
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
    let report = runtime.block_on(loadgen::run(load)).unwrap();
    server.terminate();
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    let orders = runtime.block_on(orders_in(&settings(folder.path())));
    // Every 200 is an order; besides these only unknown outcomes may be orders.
    let placed = report.with_status(200);
    let unknown = report.with_status(202) + report.transport_errors;
    assert!((placed..=placed + unknown).contains(&orders.units), "{}: {report:?}", orders.units);
}
