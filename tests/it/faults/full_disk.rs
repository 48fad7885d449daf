//! A full disk (C24) of the server and of Redis, which run on a small file system, in a mount
//! namespace of their own. The broker's disk alarm: `broker_blocked.rs`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale, stage};
use crate::support::crowd::{History, Purchase, send};
use crate::support::gate::{GateFixture, buy as buy_one, purchases, retry_until_answered};
use crate::support::process::{Server, command};
use crate::support::servers::wrapped_redis::WrappedRedis;
use crate::support::wait::until;

/// Mounts a tmpfs of 6 MiB on the folder, fills it but for some KiB and executes the command.
const SCRIPT: &str = "mount -t tmpfs -o size=6m none \"$1\" && cd \"$1\" && \
     dd if=/dev/zero of=filler bs=1024 count=$((6144 - $2)) 2>/dev/null && shift 2 && exec \"$@\"";

/// Executes the command that is appended, in a user and mount namespace, which permits the mount.
fn small_disk(folder: &Path, free_kib: u32) -> Command {
    let mut confined = Command::new("unshare");
    confined.args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
    confined.arg(folder).arg(free_kib.to_string());
    confined
}

/// The server command on a small disk.
fn confined(folder: &Path) -> Command {
    let keys = [("FLOODGATE__HTTP__ANSWER_DEADLINE_MS", "300")];
    let server = command(folder, &["serve"], &keys);
    let mut confined = small_disk(folder, 3_144);
    confined.arg(server.get_program()).args(server.get_args());
    for (name, value) in server.get_envs() {
        confined.envs(value.map(|value| (name, value)));
    }
    confined
}

const BUYERS: u64 = 100;

/// Sends one purchase for each of `BUYERS` buyers, from `first` on.
async fn buy(server: &Server, first: u64) -> History {
    let purchases: Vec<_> = (first..first + BUYERS).map(Purchase::of).collect();
    let attempts: Vec<_> = (0..purchases.len()).collect();
    send(server.public, "sale", purchases.into(), attempts.into(), 16).await
}

fn all_placed(history: &History) -> bool {
    history.purchases.iter().all(|attempt| attempt.status == Some(200))
}

#[test]
fn a_full_disk_is_reported_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::from_command(confined(folder.path()));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        open_sale(server.internal, "sale", policy, 1_000_000, 1).await;
        let mut first = 1;
        loop {
            // Buyers without an order for another reason retry.
            let is_full = until("the orders of all buyers, or a full disk", || async {
                let history = buy(&server, first).await;
                // Full during COMMIT: outcome unknown (202). Full before it: busy (503).
                let is_expected = |status| matches!(status, Some(200 | 202 | 503));
                assert!(
                    history.purchases.iter().all(|attempt| is_expected(attempt.status)),
                    "{}",
                    server.log()
                );
                let is_full = server.log().contains("disk is full");
                (is_full || all_placed(&history)).then_some(is_full)
            })
            .await;
            if is_full {
                break;
            }
            first += BUYERS;
            assert!(first < 100_000, "3 MiB must be full by now");
        }
        // The mount exists in the server's namespace only, which /proc/PID/root exposes.
        let inside = format!("/proc/{}/root{}", server.id(), folder.path().display());
        std::fs::remove_file(Path::new(&inside).join("filler")).unwrap();
        // Buyers without an order retry with the same request id.
        until("every buyer's order", || async {
            all_placed(&buy(&server, first).await).then_some(())
        })
        .await;
        assert_audit_holds(server.internal).await;
        let num_orders = stage(server.internal, "sale", "committed").await;
        assert_eq!(num_orders, first + BUYERS - 1, "one order for each buyer and no other order");
    });
}

/// Sends one purchase of each further buyer until a purchase is refused as busy; returns the number
/// of buyers, and what they were answered.
async fn buy_until_busy(server: &Server, at_most: u64) -> (u64, History) {
    let (mut next, mut history) = (1, History::default());
    loop {
        let sent = Arc::new(purchases(next..next + BUYERS));
        next += BUYERS;
        let once: Arc<Vec<usize>> = Arc::new((0..sent.len()).collect());
        history.absorb(send(server.public, "sale", sent, once, 16).await);
        let is_known = |status| matches!(status, Some(200 | 202 | 503));
        assert!(history.purchases.iter().all(|attempt| is_known(attempt.status)));
        if history.purchases.iter().any(|attempt| attempt.status == Some(503)) {
            return (next, history);
        }
        assert!(next < at_most, "the disk must be full by now");
    }
}

/// Redis with an append-only file refuses writes while it cannot append.
#[test]
fn a_redis_on_a_full_disk_sells_nothing_until_there_is_room() {
    let aof = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let redis = WrappedRedis::start(|folder| small_disk(folder, 1_144), &aof);
    let fixture = GateFixture::new();
    let server = fixture.server(&[("redis.url", &redis.url())]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        open_sale(server.internal, "sale", json!({"kind": "one_per_buyer"}), 1_000_000, 2).await;
        let (next, mut history) = buy_until_busy(&server, 100_000).await;
        until("the error of the file", async || {
            let info = redis.text(&["INFO", "persistence"]);
            info.contains("aof_last_write_status:err").then_some(())
        })
        .await;
        let (status, body) = buy_one(server.public, next).await.unwrap();
        assert_eq!((status, &body["code"]), (503, &json!("busy")), "{body}");
        std::fs::remove_file(redis.file("filler")).unwrap();
        // No part is restarted or repaired.
        history.absorb(retry_until_answered(server.public, purchases(1..next).into(), 16).await);
        let verdict = fixture.check(server.internal, &history, 1_000_000).await;
        assert_eq!(verdict.ok as u64, next - 1, "one order for each buyer");
    });
}
