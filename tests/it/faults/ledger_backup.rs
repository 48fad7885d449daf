//! Another program at the ledger file of a running server: the backup that the manual shows.

use std::path::Path;
use std::process::Command;

use loadgen::{BuyRequest, Load, Until};
use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale};
use crate::support::app::url_of;
use crate::support::orders::orders_in;
use crate::support::process::{Server, settings};

/// Copies the ledger with the library of another program.
fn back_up(ledger: &Path, copy: &Path) {
    let script = "import sqlite3, sys; ledger = sqlite3.connect(sys.argv[1]); \
                  ledger.execute('VACUUM INTO ?', (sys.argv[2],)); ledger.close()";
    let status = Command::new("python3").arg("-c").arg(script).args([ledger, copy]).status();
    assert!(status.unwrap().success());
}

/// The program that closes a ledger last deletes its log. A server that another program takes for
/// gone goes on writing to the deleted log, and its orders end with its process.
#[test]
fn orders_after_a_backup_survive_the_kill_of_the_server() {
    const ORDERS: u64 = 20;
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ledger = folder.path().join("ledger.db");
    // The first start makes the file, the second finds its log, the third finds a closed file.
    for start in 0..3 {
        let mut server = Server::start(folder.path(), &[]);
        if start == 0 {
            let policy = json!({"kind": "one_per_buyer"});
            runtime.block_on(open_sale(server.internal, "sale", policy, 1_000, 2));
        }
        let copy = folder.path().join(format!("backup-{start}.db"));
        back_up(&ledger, &copy);
        let request = BuyRequest::new(server.public, "sale", "sku", 1);
        let load = Load {
            until: Until::Requests(ORDERS),
            ..Load::new(server.public, request.by_unique_buyers(1 + start * ORDERS))
        };
        runtime.block_on(loadgen::run(load)).unwrap();
        if start == 1 {
            server.terminate();
            assert_eq!(server.wait().code(), Some(0), "{}", server.log());
        } else {
            server.kill();
        }
        let orders = runtime.block_on(orders_in(&settings(folder.path())));
        assert_eq!(orders.request_ids.len() as u64, (start + 1) * ORDERS, "after start {start}");
        let mut copied = settings(folder.path());
        copied.ledger.url = url_of(copy);
        let orders = runtime.block_on(orders_in(&copied));
        assert_eq!(orders.request_ids.len() as u64, start * ORDERS, "in backup {start}");
    }
    let server = Server::start(folder.path(), &[]);
    runtime.block_on(assert_audit_holds(server.internal));
}
