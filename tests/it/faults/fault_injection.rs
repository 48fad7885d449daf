//! Injected panics in the real process: C22.
//!
//! Covers the crash points `lent_not_borrowed` and, with steps that panic after their work, those
//! of gate and ledger writer: `reserved_not_submitted`, `committed_not_settled`,
//! `committed_not_answered`, `recorded_not_released`.

use std::sync::Arc;

use loadgen::Pace;
use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale, panics};
use crate::support::crowd::{History, Purchase, send, send_until};
use crate::support::orders::orders_in;
use crate::support::process::{Server, settings};
use crate::support::wait::until;

const STOCK: u64 = 500;
const BUYERS: u64 = 1_000;
/// The probability that so many sales see no panic is 10^-20.
const SALES: u64 = 40;

#[test]
fn one_step_in_a_hundred_panics_and_nothing_is_lost_or_doubled() {
    for kind in ["stock_gate", "ledger_writer"] {
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
        let mut history = History::default();
        let mut sold = 0;
        runtime.block_on(async {
            while panics(server.internal, kind).await.unwrap() == 0 {
                assert!(sold < SALES * STOCK, "no panic was injected in {kind}");
                let sale = format!("sale-{sold}");
                let policy = json!({"kind": "one_per_buyer"});
                let stock = u32::try_from(STOCK).unwrap();
                open_sale(server.internal, &sale, policy, stock, 4).await;
                history.absorb(send_until_final(&server, &sale).await);
                sold += STOCK;
            }
            assert_audit_holds(server.internal).await;
        });
        let orders = runtime.block_on(orders_in(&settings(folder.path())));
        history.check(0, &orders, sold).assert_clean();
        assert_eq!(orders.units, sold);
    }
}

/// Sends every purchase until each has a final answer, like a buyer who retries on `busy` and
/// `unknown`.
async fn send_until_final(server: &Server, sale: &str) -> History {
    let purchases: Vec<_> = (1..=BUYERS).map(Purchase::of).collect();
    let purchases = Arc::new(purchases);
    let mut history = History::default();
    let mut pending: Vec<usize> = (0..purchases.len()).collect();
    until("a final answer for every purchase", async || {
        let attempts = pending.clone().into();
        let sent = send(server.public, sale, purchases.clone(), attempts, 64).await;
        pending = sent
            .purchases
            .iter()
            .filter(|attempt| !matches!(attempt.status, Some(200 | 409)))
            .map(|attempt| attempt.purchase)
            .collect();
        history.absorb(sent);
        pending.is_empty().then_some(())
    })
    .await;
    history
}

#[test]
fn when_every_step_panics_the_process_ends_with_a_name_and_a_code() {
    for kind in ["stock_gate", "ledger_writer", "stock_refresher"] {
        let folder = tempfile::tempdir().unwrap();
        let keys = [
            ("FLOODGATE__TIER", if kind == "stock_refresher" { "ledger" } else { "memory" }),
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
            let purchases = Arc::new(vec![Purchase::of(1)]);
            let public = server.public;
            let ending =
                until("the end of the process", async || (!server.is_running()).then_some(()));
            let (attempts, pace) = (vec![0; 100_000].into(), (1, Pace::Closed));
            send_until(public, "sale", purchases, attempts, pace, ending).await;
        });
        assert_eq!(server.wait().code(), Some(6), "{}", server.log());
        let log = server.log();
        assert!(log.contains(kind) && log.contains("is down"), "{log}");
        let orders = runtime.block_on(orders_in(&settings(folder.path())));
        assert!(orders.units <= 1);
    }
}
