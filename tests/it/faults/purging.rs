//! A purge that is interrupted at every step, and what buyers, operators and readers of the feed
//! find afterwards. Covers the crash points `sale_sealed`, `purge_begun`, `rows_partly_purged` and
//! `rows_purged`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::sql_types::BigInt;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{RetentionStore, SaleStore};
use floodgate::domain::RetentionChange::{Archive, BeginPurge, EndPurge, Seal};
use floodgate::domain::{ArchiveDigest, Epoch, Phase, SkuNo};
use floodgate::services::audit::{AuditSources, audit_all};
use reqwest::{Client, Method};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::support::admin::call;
use crate::support::app::sale_body;
use crate::support::crowd::{Attempt, send};
use crate::support::faulty_ledger::FaultyLedger;
use crate::support::gate::purchases;
use crate::support::offers::{ANY, open_offer};
use crate::support::pipeline::PipelineFixture;
use crate::support::process::{Server, command};
use crate::support::wait::until;

const KEYS: [(&str, &str); 1] = [("FLOODGATE__MAINTENANCE__EVERY_MS", "20")];
const SOLD: u64 = 30;
const SOLD_OF_OTHER: u64 = 10;

/// Opens a sale whose orders have no deadline, and sells to as many buyers.
async fn sell(server: &Server, sale: &str, buyers: u64) -> Vec<Attempt> {
    let mut body = sale_body(sale, json!({"kind": "one_per_buyer"}), 100, 2);
    body["skus"][0]["payment_window_s"] = json!(0);
    call(server.internal, "/sales", body).await;
    call(server.internal, &format!("/sales/{sale}/open"), json!({})).await;
    let all = purchases(1..1 + buyers);
    let once: Vec<usize> = (0..all.len()).collect();
    let sent = send(server.public, sale, all.into(), once.into(), 8).await.purchases;
    assert!(sent.iter().all(|attempt| attempt.is_promise()), "{sent:?}");
    sent
}

fn run(folder: &Path, internal: SocketAddr, words: &[&str]) -> Output {
    let url = format!("http://{internal}");
    let words = [words, &["--internal-url", &url, "--json"]].concat();
    command(folder, &words, &[]).output().unwrap()
}

fn ask(folder: &Path, server: &Server, words: &[&str]) -> Json {
    let output = run(folder, server.internal, words);
    assert!(output.status.success(), "{words:?}: {output:?}\n{}", server.log());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Closes a sale, and runs the command that archives it as soon as all its events are read.
async fn run_archive(folder: &Path, server: &Server, sale: &str, to: &str) -> Output {
    call(server.internal, &format!("/sales/{sale}/close"), json!({})).await;
    until("the archive", async || {
        let output = run(folder, server.internal, &["sale", "archive", sale, "--to", to]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let waits = ["unread events", "queued requests"].iter().any(|what| stderr.contains(what));
        (!waits).then_some(output)
    })
    .await
}

/// Closes and archives the sale `sale`.
async fn archive(folder: &Path, server: &Server, to: &str) -> Json {
    let output = run_archive(folder, server, "sale", to).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn get(server: &Server, path: &str) -> (u16, Json) {
    let url = format!("http://{}{path}", server.public);
    let answer = Client::new().request(Method::GET, url).header("x-buyer-id", "1").send().await;
    let answer = answer.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// What buyers of a purged sale hear, and that the other sale goes on.
async fn assert_purged_for_buyers(server: &Server, bought: &[Attempt]) {
    let of_buyer = bought.iter().find(|attempt| attempt.request.buyer == 1).unwrap();
    let id = of_buyer.request_id.as_deref().unwrap();
    let (status, body) = get(server, &format!("/v1/requests/{id}")).await;
    assert_eq!((status, &body["code"]), (404, &json!("not-found")));
    assert_eq!(get(server, "/v1/sales/sale").await.0, 404);
    assert_eq!(get(server, "/v1/sales/sale/mine").await.0, 404);
    let buyers = purchases(1..2);
    let again = send(server.public, "sale", buyers.into(), vec![0].into(), 1).await;
    let again = &again.purchases[0];
    assert_eq!((again.status, again.code.as_deref()), (Some(410), Some("ended")));
    let buyers = purchases(50..51);
    let other = send(server.public, "other", buyers.into(), vec![0].into(), 1).await;
    let admin = async |path: &str| -> Json {
        let url = format!("http://{}/admin/v1{path}", server.internal);
        reqwest::get(url).await.unwrap().json().await.unwrap()
    };
    let buckets = admin("/sales/sale/buckets").await;
    let (sku, why) = (&buckets["skus"][0], json!("the sale is purged"));
    assert_eq!((&sku["health"], &sku["why"]), (&json!("missing"), &why), "{buckets}");
    until("the gates of the purged sale to end", async || {
        let actors = admin("/actors").await.to_string();
        assert!(actors.contains("stock_gate/2/0"), "{actors}");
        (!actors.contains("stock_gate/1/0")).then_some(())
    })
    .await;
    assert!(other.purchases[0].is_promise(), "{:?}", other.purchases);
}

async fn sales_in_feed(server: &Server) -> Vec<String> {
    let url = format!("http://{}/admin/v1/order-events?limit=1000", server.internal);
    let events: Vec<Json> = reqwest::get(url).await.unwrap().json().await.unwrap();
    let sale = |event: &Json| event["data"]["order"]["sale_id"].as_str().unwrap().to_owned();
    events.iter().map(sale).collect()
}

fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["ledger.db", "ledger.db-wal"] {
        if folder.join(name).exists() {
            fs::copy(folder.join(name), copy.path().join(name)).unwrap();
        }
    }
    copy
}

/// How far the purge was when its process crashed.
#[derive(Debug, Clone, Copy)]
enum Crash {
    SaleSealed,
    PurgeBegun,
    RowsPartlyPurged,
    RowsPurged,
}

/// Brings the ledger to where a crash left it.
async fn crash(folder: &Path, digest: ArchiveDigest, crash: Crash) {
    let ledger = SqliteLedger::open(&OpenOptions::new(folder.join("ledger.db"))).unwrap();
    let id = || "sale".parse().unwrap();
    let sealed = ledger.set_retention(id(), Seal(digest), None).await.unwrap().unwrap();
    if !matches!(crash, Crash::SaleSealed) {
        let archived = ledger.contents(&sealed).await.unwrap();
        ledger.set_retention(id(), BeginPurge(archived), None).await.unwrap().unwrap();
    }
    let sale = ledger.sales().await.unwrap().remove(0);
    let sku: SkuNo = sale.skus[0].no;
    match crash {
        Crash::SaleSealed | Crash::PurgeBegun => {}
        Crash::RowsPartlyPurged => {
            assert_eq!(ledger.purge_step(sku, 7).await.unwrap().num_rows, 7);
        }
        Crash::RowsPurged => while ledger.purge_step(sku, 7).await.unwrap().num_rows > 0 {},
    }
    floodgate::db::Ledger::close(&ledger).await;
}

fn count(folder: &Path, rows: &str) -> i64 {
    let file = folder.join("ledger.db");
    let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
    let query = format!("SELECT COUNT(*) FROM {rows}");
    diesel::dsl::sql::<BigInt>(&query).get_result(&mut conn).unwrap()
}

#[test]
fn a_purge_continues_after_a_crash_at_every_step() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let server = Server::start(path, &KEYS);
        let bought = sell(&server, "sale", SOLD).await;
        sell(&server, "other", SOLD_OF_OTHER).await;
        let unfinished = run(path, server.internal, &["sale", "archive", "sale", "--to", "early"]);
        let stderr = String::from_utf8_lossy(&unfinished.stderr);
        assert_eq!(unfinished.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("1 not closed: close the sale: floodgate sale --internal-url"));
        assert!(stderr.contains(" close sale"), "{stderr}");
        let archived = archive(path, &server, "one").await;
        assert_eq!(archive(path, &server, "two").await["digest"], archived["digest"]);
        for entry in fs::read_dir(path.join("one")).unwrap() {
            let name = entry.unwrap().file_name();
            let bytes = |folder: &str| fs::read(path.join(folder).join(&name)).unwrap();
            assert_eq!(bytes("one"), bytes("two"), "{}", name.display());
        }
        fs::write(path.join("two/orders.ndjson"), "{}\n").unwrap();
        let words = ["sale", "purge", "sale", "--archive", "two"];
        assert_eq!(run(path, server.internal, &words).status.code(), Some(1), "a damaged archive");
        server.kill();

        let digest = archived["digest"].as_str().unwrap().parse().unwrap();
        let points = [
            (Crash::SaleSealed, "sealed"),
            (Crash::PurgeBegun, "purging"),
            (Crash::RowsPartlyPurged, "purging"),
            (Crash::RowsPurged, "purging"),
        ];
        for (at, state) in points {
            println!("{at:?}");
            let copy = copy_of(path);
            crash(copy.path(), digest, at).await;
            let archive = path.join("one");
            continue_purge(copy.path(), archive.to_str().unwrap(), state, &bought).await;
        }
    });
}

async fn continue_purge(folder: &Path, archive: &str, state: &str, bought: &[Attempt]) {
    let server = Server::start(folder, &KEYS);
    let show = || ask(folder, &server, &["sale", "show", "sale"])["retention"]["state"].clone();
    assert_eq!(show(), state);
    let audit = || ask(folder, &server, &["audit"]);
    let notes = |report: &Json| report["notes"].to_string();
    assert_eq!(notes(&audit()).contains("half purged"), state == "purging");
    let purge = || ask(folder, &server, &["sale", "purge", "sale", "--archive", archive]);
    assert_eq!(purge()["state"], "purged");
    assert_eq!((show(), &purge()["num_rows"]), (json!("purged"), &json!(0)));
    let report = audit();
    assert!(notes(&report).contains("sale sale is purged"), "{report}");
    assert_eq!(report["num_orders"], SOLD_OF_OTHER);
    assert_purged_for_buyers(&server, bought).await;
    let of_other = until("the new order's event", async || {
        let sales = sales_in_feed(&server).await;
        (sales.len() as u64 > SOLD_OF_OTHER).then_some(sales)
    });
    assert!(of_other.await.iter().all(|sale| sale == "other"));
    server.kill();
    assert_eq!(count(folder, "orders WHERE sku_no = 1"), 0);
    assert_eq!(count(folder, "order_events WHERE sku_no = 1"), 0);
    assert_eq!(count(folder, "orders"), i64::try_from(SOLD_OF_OTHER).unwrap() + 1);
}

#[test]
fn an_archive_is_not_overwritten_by_that_of_another_sale() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let server = Server::start(path, &KEYS);
        sell(&server, "sale", 2).await;
        sell(&server, "other", 1).await;
        archive(path, &server, "archive").await;
        let files = || {
            let names = ["manifest.json", "orders.ndjson"];
            names.map(|name| fs::read_to_string(path.join("archive").join(name)).unwrap())
        };
        let mode = fs::metadata(path.join("archive")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "it has what buyers bought");
        let before = files();
        let refused = run_archive(path, &server, "other", "archive").await;
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("name another folder"), "{stderr}");
        assert_eq!(files(), before);
    });
}

/// The first read finds the SKU as a purge leaves it that took the units after the audit had listed
/// the sale.
#[test]
fn a_sale_that_is_purged_during_an_audit_is_not_judged() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        let ledger = Arc::new(SqliteLedger::open(&OpenOptions::new(&file)).unwrap());
        open_offer(&*ledger, "sale", ANY, 10).await;
        let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        let taken = "PRAGMA busy_timeout = 5000; UPDATE skus SET available = 0";
        conn.batch_execute(taken).unwrap();
        let audited = FaultyLedger::new(ledger.clone());
        let release = audited.hold_next_audit();
        let recheck = Duration::ZERO;
        let sources = AuditSources { ledger: &audited, stock: None, pipeline: None, recheck };
        let purge = async {
            until("the first read", async || audited.holds_audit().then_some(())).await;
            let (id, digest) = (|| "sale".parse().unwrap(), ArchiveDigest([7; 32]));
            let closed = ledger.set_sale_phase(id(), Epoch(1), Phase::Closed, 1, None).await;
            let archived = ledger.contents(&closed.unwrap().unwrap()).await.unwrap();
            for change in [Archive(digest), Seal(digest), BeginPurge(archived), EndPurge] {
                assert!(ledger.set_retention(id(), change, None).await.unwrap().is_some());
            }
            release.send(()).unwrap();
        };
        let (report, ()) = tokio::join!(audit_all(sources, None, 1), purge);
        let report = report.unwrap();
        assert!(report.holds, "{report:#?}");
        for expected in ["1 differences were gone", "sale sale is purged"] {
            assert!(report.notes.iter().any(|note| note.contains(expected)), "{report:#?}");
        }
    });
}

fn keys_of(fixture: &PipelineFixture, sku: u8) -> Vec<String> {
    let pattern = format!("*{{{sku}:*");
    let mut keys: Vec<String> =
        redis::from_redis_value(fixture.redis.cmd(&["KEYS", &pattern])).unwrap();
    keys.sort();
    keys
}

fn purges_redis(outbox: &str) {
    let fixture = PipelineFixture::new(outbox).patient();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [server, beside] = [fixture.server("all", &[]), fixture.server("all", &[])];
        let bought = sell(&server, "sale", SOLD).await;
        sell(&server, "other", SOLD_OF_OTHER).await;
        fixture.drained(server.internal).await;
        let folder = tempfile::tempdir().unwrap();
        archive(folder.path(), &server, "archive").await;
        assert!(keys_of(&fixture, 1).len() > 2);
        let of_other = keys_of(&fixture, 2);
        let words = ["sale", "purge", "sale", "--archive", "archive"];
        assert_eq!(ask(folder.path(), &server, &words)["num_rows"], SOLD);
        assert_eq!(keys_of(&fixture, 1), [""; 0]);
        assert_eq!(keys_of(&fixture, 2), of_other);
        until("the other process to know", async || {
            (get(&beside, "/v1/sales/sale").await.0 == 404).then_some(())
        })
        .await;
        let report = ask(folder.path(), &server, &["audit"]);
        assert!(report["holds"] == true && report["could_tell"] == true, "{report:#}");
        for process in [&server, &beside] {
            assert_purged_for_buyers(process, &bought).await;
        }
        assert_eq!(keys_of(&fixture, 1), [""; 0], "no process creates them again");
        assert_eq!(fixture.mariadb.number("SELECT COUNT(*) FROM orders WHERE sku_no = 1"), 0);
    });
}

#[test]
fn a_purge_deletes_the_keys_of_an_outbox_in_lists() {
    purges_redis("list");
}

#[test]
fn a_purge_deletes_the_keys_of_an_outbox_in_streams() {
    purges_redis("stream");
}
