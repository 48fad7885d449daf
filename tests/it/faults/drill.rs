//! Panics on purpose in the real process: C22.
//!
//! Covers the crash points `lent_not_borrowed` and, by steps that panic after their work, all of
//! those in the gate and the consumer: `reserved_not_submitted`, `committed_not_settled`,
//! `committed_not_answered`, `recorded_not_released`.

use std::sync::Arc;

use floodgate::clock::now_monotonic;
use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale};
use crate::support::crowd::{History, Wish, send};
use crate::support::orders::orders_in;
use crate::support::process::{Server, settings};
use crate::support::wait::DEADLINE;

const STOCK: u64 = 500;
const BUYERS: u64 = 1_000;

#[test]
fn one_step_in_a_hundred_panics_and_nothing_is_lost_or_doubled() {
    for kind in ["stock_gate", "order_consumer"] {
        let folder = tempfile::tempdir().unwrap();
        let keys = [
            ("FLOODGATE__FAULTS__PANIC_IN", kind),
            ("FLOODGATE__FAULTS__PANIC_PERCENT", "1"),
            ("FLOODGATE__SUPERVISOR__RESTARTS_MAX", "100000"),
            ("FLOODGATE__SUPERVISOR__BACKOFF_MIN_MS", "1"),
            ("FLOODGATE__SUPERVISOR__BACKOFF_MAX_MS", "5"),
            // Small batches: many steps.
            ("FLOODGATE__GATE__BATCH_MAX", "4"),
            ("FLOODGATE__CONSUMER__BATCH_MAX", "4"),
        ];
        let server = Server::start(folder.path(), &keys);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let policy = json!({"kind": "one_per_buyer"});
        let stock = u32::try_from(STOCK).unwrap();
        runtime.block_on(open_sale(server.internal, "sale", policy, stock, 4));
        let history = runtime.block_on(until_all_told(&server));
        runtime.block_on(assert_audit_holds(server.internal));
        let orders = runtime.block_on(orders_in(&settings(folder.path())));
        history.judge(0, &orders, STOCK).assert_clean();
        assert_eq!(orders.units, STOCK);
        let log = server.log();
        assert!(log.contains("drill: this step"), "the drill must have struck {kind}: {log}");
    }
}

/// Sends every wish until each has heard something final, as a buyer would who reads `busy` or
/// `unknown`.
async fn until_all_told(server: &Server) -> History {
    let wishes: Vec<_> = (1..=BUYERS).map(|buyer| Wish { buyer, request_id: None }).collect();
    let wishes = Arc::new(wishes);
    let mut history = History::default();
    let mut open: Vec<usize> = (0..wishes.len()).collect();
    for _ in 0..200 {
        let heard =
            send(server.public, "sale", wishes.clone(), open.clone().into(), 64).await.heard;
        open = heard
            .iter()
            .filter(|heard| !matches!(heard.status, Some(200 | 409)))
            .map(|heard| heard.wish)
            .collect();
        history.heard.extend(heard);
        if open.is_empty() {
            return history;
        }
    }
    panic!("{} wishes were never told, log: {}", open.len(), server.log());
}

#[test]
fn when_every_step_panics_the_process_ends_with_a_name_and_a_code() {
    for kind in ["stock_gate", "order_consumer", "stock_teller"] {
        let folder = tempfile::tempdir().unwrap();
        let keys = [
            ("FLOODGATE__TIER", if kind == "stock_teller" { "ledger" } else { "memory" }),
            ("FLOODGATE__FAULTS__PANIC_IN", kind),
            ("FLOODGATE__FAULTS__PANIC_PERCENT", "100"),
            ("FLOODGATE__SUPERVISOR__BACKOFF_MAX_MS", "100"),
            ("FLOODGATE__HTTP__ANSWER_DEADLINE_MS", "200"),
            ("FLOODGATE__SHUTDOWN__DEADLINE_MS", "2000"),
        ];
        let mut server = Server::start(folder.path(), &keys);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let policy = json!({"kind": "one_per_buyer"});
        runtime.block_on(open_sale(server.internal, "sale", policy, 5, 1));
        runtime.block_on(async {
            let wishes = Arc::new(vec![Wish { buyer: 1, request_id: None }]);
            let end = now_monotonic() + DEADLINE;
            while server.is_running() {
                assert!(now_monotonic() < end, "{kind} still runs: {}", server.log());
                send(server.public, "sale", wishes.clone(), vec![0].into(), 1).await;
            }
        });
        assert_eq!(server.wait().code(), Some(6), "{}", server.log());
        let log = server.log();
        assert!(log.contains(kind) && log.contains("is down"), "{log}");
        let orders = runtime.block_on(orders_in(&settings(folder.path())));
        assert!(orders.units <= 1);
    }
}
