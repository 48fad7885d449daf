//! `floodgate audit --answers`: the answers in a file against a ledger.

use std::path::Path;

use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Ledger, OrderWriter, SaleStore};
use floodgate::domain::{Epoch, OrderIntent, Phase};
use floodgate::http::buyers::request_ids::RequestIds;
use floodgate::runtime::clock::rfc3339;
use serde_json::{Value as Json, json};

use super::{code, json as printed, run};
use crate::support::offers::{self, ANY, ONE, buyer, intent, request};

/// Makes a ledger with the order 1 of buyer 1; returns the order as its buyer reads it, and the id
/// of request 2, which is in no ledger. Without a key the ids are signed with that of the ledger.
fn ledger_in(directory: &Path, signing_key: Option<&str>) -> (Json, String) {
    assert_eq!(code(&run(directory, &["migrate"])), 0);
    offers::run(async {
        let options = OpenOptions::new(directory.join("floodgate.db"));
        let ledger = SqliteLedger::open(&options).unwrap();
        let sku = offers::open_offer(&ledger, "spring", ANY, 10).await;
        let order = intent(&sku, 1, 1, 2);
        ledger.place(vec![order]).await.unwrap().unwrap();
        let key = match signing_key {
            Some(key) => key.as_bytes().to_vec(),
            None => ledger.secret("request-ids").await.unwrap(),
        };
        let request_ids = RequestIds::new(&key, 0, 1);
        let sale = "spring".parse().unwrap();
        let [own, lost] = [1, 2].map(|no| request_ids.sign(request(no), &sale, sku.no, buyer(no)));
        ledger.close().await;
        let placed_at = rfc3339(order.placed_at_ms);
        let order = json!({ "quantity": 2, "placed_at": placed_at });
        (json!({ "request_id": own, "state": "success", "order": order }), lost)
    })
}

fn line(buyer: u64, at_us: u64, status: u16, body: &Json) -> String {
    let line = json!({
        "sale_id": "spring", "buyer_id": buyer.to_string(), "began_us": at_us,
        "ended_us": at_us + 5, "status": status, "sent_id": body.get("request_id"), "body": body,
    });
    format!("{line}\n")
}

/// Compares these lines with the ledger: exit code and report.
fn compared(directory: &Path, lines: &[String]) -> (i32, Json) {
    compared_with(directory, lines, &[])
}

/// [`compared`] with further arguments.
fn compared_with(directory: &Path, lines: &[String], more: &[&str]) -> (i32, Json) {
    let file = directory.join("answers.ndjson");
    std::fs::write(&file, lines.concat()).unwrap();
    let words = ["audit", "--json", "--answers", "answers.ndjson"];
    let output = run(directory, &[&words[..], more].concat());
    (code(&output), printed(&output))
}

#[test]
fn answers_that_the_ledger_does_not_keep_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (own, lost) = ledger_in(directory, None);
    let kept = line(1, 0, 200, &own);
    let (exit, report) = compared(directory, std::slice::from_ref(&kept));
    assert_eq!((exit, &report["holds"]), (0, &json!(true)), "{report:#}");

    let promised = json!({ "request_id": lost, "state": "queued" });
    let denied = json!({ "request_id": own["request_id"], "code": "sold-out" });
    let mut other = own.clone();
    other["order"]["quantity"] = json!(3);
    for (added, rule) in [
        (line(2, 0, 202, &promised), "lost"),
        (line(1, 10, 409, &denied), "denied"),
        (line(1, 10, 200, &other), "two_ends"),
    ] {
        let (exit, report) = compared(directory, &[kept.clone(), added]);
        assert_eq!(exit, 1, "{report:#}");
        assert_eq!((&report["num_findings"], &report["num_answers"]), (&json!(1), &json!(2)));
        assert_eq!(report["findings"][0]["rule"], rule, "{report:#}");
    }
    let busy = json!({ "request_id": own["request_id"], "code": "busy" });
    let (exit, report) = compared(directory, &[line(1, 0, 503, &busy)]);
    assert_eq!((exit, &report["findings"][0]["rule"]), (1, &json!("ghost")), "{report:#}");
    let shown = run(directory, &["audit", "--answers", "answers.ndjson"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("CONTRADICTED: 1 requests (1 answers)\n  GHOST  sale spring"));
}

#[test]
fn purchases_without_ids_are_distinguished_by_their_skus() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert_eq!(code(&run(directory, &["migrate"])), 0);
    let bodies = offers::run(async {
        let ledger = SqliteLedger::open(&OpenOptions::new(directory.join("floodgate.db"))).unwrap();
        let key = ledger.secret("request-ids").await.unwrap();
        let skus = ["cap", "mug"].map(|id| offers::sku_draft(id, ONE, 10)).to_vec();
        let sale =
            ledger.create_sale(offers::sale_draft("spring", skus), 1).await.unwrap().unwrap();
        ledger.set_sale_phase(sale.id.clone(), Epoch(0), Phase::Open, 1, None).await.unwrap();
        let orders = [intent(&sale.skus[0], 1, 1, 1), intent(&sale.skus[1], 2, 1, 2)];
        let of_another = intent(&sale.skus[0], 3, 2, 1);
        ledger.place([&orders[..], &[of_another]].concat()).await.unwrap().unwrap();
        ledger.close().await;
        let request_ids = RequestIds::new(&key, 0, 1);
        let sign = |one: OrderIntent| request_ids.sign(one.request, &sale.id, one.sku, one.buyer);
        orders.map(|one| {
            let placed = json!({
                "quantity": one.quantity, "placed_at": rfc3339(one.placed_at_ms),
            });
            json!({ "request_id": sign(one), "state": "success", "order": placed })
        })
    });
    let answer = |buyer: &str, sku: Option<&str>, status: u16, body: &Json| {
        let line = json!({
            "sale_id": "spring", "sku_id": sku, "buyer_id": buyer, "began_us": 10,
            "ended_us": 15, "status": status, "body": body,
        });
        format!("{line}\n")
    };
    let [cap, mug] = [("cap", 0), ("mug", 1)]
        .map(|(sku, at): (_, usize)| answer("1", Some(sku), 200, &bodies[at]));
    let busy = |buyer, sku| answer(buyer, Some(sku), 503, &json!({ "code": "busy" }));
    // The other buyer has an order of the cap alone.
    let (exit, report) = compared(directory, &[cap.clone(), mug, busy("2", "mug")]);
    assert_eq!((exit, &report["holds"]), (0, &json!(true)), "{report:#}");
    let (exit, report) = compared(directory, &[cap, busy("1", "mug")]);
    assert_eq!((exit, &report["findings"][0]["rule"]), (1, &json!("ghost")), "{report:#}");
    std::fs::write(directory.join("answers.ndjson"), answer("1", None, 200, &bodies[0])).unwrap();
    let unclear = run(directory, &["audit", "--answers", "answers.ndjson"]);
    let message = String::from_utf8(unclear.stderr.clone()).unwrap();
    assert!(message.contains("-> add sku_id to each line without sent_id"), "{message}");
    assert_eq!(code(&unclear), 2);
}

#[test]
fn answers_with_ids_of_a_configured_key_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let key = "0123456789abcdef".repeat(2);
    std::fs::write(directory.join("key"), &key).unwrap();
    let (own, _) = ledger_in(directory, Some(&key));
    let more = ["--set", "auth.signing_key_file=key"];
    let (exit, report) = compared_with(directory, &[line(1, 0, 200, &own)], &more);
    assert_eq!((exit, &report["holds"]), (0, &json!(true)), "{report:#}");
}

#[test]
fn a_file_that_cannot_be_read_is_undecided() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(code(&run(directory.path(), &["migrate"])), 0);
    let missing = run(directory.path(), &["audit", "--answers", "answers.ndjson"]);
    assert_eq!(code(&missing), 2);
    assert!(String::from_utf8(missing.stderr).unwrap().contains("-> check the path"));
    std::fs::write(directory.path().join("answers.ndjson"), "{\"sale_id\": \"x\"}\n").unwrap();
    let wrong = run(directory.path(), &["audit", "--answers", "answers.ndjson"]);
    assert_eq!(code(&wrong), 2);
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("line 1: missing field"));
    std::fs::write(directory.path().join("answers.ndjson"), "\n").unwrap();
    for (file, words) in [("answers.ndjson", "holds no answers"), (".", "-> name a file")] {
        let nothing = run(directory.path(), &["audit", "--answers", file]);
        assert_eq!(code(&nothing), 2, "{nothing:?}");
        assert!(String::from_utf8(nothing.stderr).unwrap().contains(words), "{file}");
    }
}
