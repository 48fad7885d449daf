//! A disk that is really full: a small file system of the test's own, in a mount namespace of the
//! server's own.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale, stage};
use crate::support::crowd::{History, Wish, send};
use crate::support::process::{Server, command};
use crate::support::wait::until;

/// Mounts 6 MiB over the folder, fills half of it, and becomes the server.
const SCRIPT: &str = "mount -t tmpfs -o size=6m none \"$1\" && cd \"$1\" && \
     dd if=/dev/zero of=filler bs=1024 count=3000 2>/dev/null && shift && exec \"$@\"";

/// The server's command inside a namespace where it may mount.
fn confined(folder: &Path) -> Command {
    let keys = [("FLOODGATE__HTTP__ANSWER_DEADLINE_MS", "300")];
    let server = command(folder, &["serve"], &keys);
    let mut confined = Command::new("unshare");
    confined.args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
    confined.arg(folder).arg(server.get_program()).args(server.get_args());
    for (name, value) in server.get_envs() {
        confined.envs(value.map(|value| (name, value)));
    }
    confined
}

const BUYERS: u64 = 100;

/// What the group of buyers from `first` on heard.
async fn buy(server: &Server, first: u64) -> History {
    let wishes: Vec<_> = (first..first + BUYERS).map(Wish::of).collect();
    let attempts: Vec<_> = (0..wishes.len()).collect();
    send(server.public, "sale", wishes.into(), attempts.into(), 16).await
}

fn all_placed(history: &History) -> bool {
    history.heard.iter().all(|heard| heard.status == Some(200))
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::from_command(confined(folder.path()));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = json!({"kind": "one_per_buyer"});
        open_sale(server.internal, "sale", policy, 1_000_000, 1).await;
        let mut first = 1;
        loop {
            // Who was in doubt for another reason asks again.
            let is_full = until("a group's orders, or a full disk", || async {
                let history = buy(&server, first).await;
                // A disk that fills up during COMMIT leaves a doubt, one that is full is busy.
                let told = |status| matches!(status, Some(200 | 202 | 503));
                assert!(history.heard.iter().all(|heard| told(heard.status)), "{}", server.log());
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
        // The mount is the server's own: it is reached through the server's root.
        let inside = format!("/proc/{}/root{}", server.id(), folder.path().display());
        std::fs::remove_file(Path::new(&inside).join("filler")).unwrap();
        // Who was in doubt asks again, with the same request id.
        until("every buyer's order", || async {
            all_placed(&buy(&server, first).await).then_some(())
        })
        .await;
        assert_audit_holds(server.internal).await;
        let landed = stage(server.internal, "sale", "landed").await;
        assert_eq!(landed, first + BUYERS - 1, "every buyer has one order, and nobody else");
    });
}
