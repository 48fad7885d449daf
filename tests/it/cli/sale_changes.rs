//! `floodgate sale create`, `set`, `restock`, `close`, `show` and `archive`, against a server whose
//! answers the test writes.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};

use super::scripted::{ScriptedApi, stderr};
use super::{SALE, Server, code, json as parsed, run};

#[test]
fn a_description_is_sent_as_it_is_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{\"sale_id\": \"a\",\n \"sale_id\": \"b\"}\n").unwrap();
    let create = ["sale", "create", file.path().to_str().unwrap()];
    let api = ScriptedApi::always(400, json!({"title": "Invalid", "detail": "named twice"}));
    for (more, end) in [(&["--reason", "rain"][..], ",\"reason\":\"rain\"}"), (&[], "}")] {
        let refused = api.run(&[&create[..], more].concat());
        assert_eq!(code(&refused), 1, "{refused:?}");
        let request = api.requests.lock().unwrap().pop().unwrap();
        let sent = format!("\r\n\r\n{{\"sale_id\": \"a\",\n \"sale_id\": \"b\"{end}");
        assert!(request.ends_with(&sent), "{request}");
    }
}

#[test]
fn a_creation_of_unknown_outcome_is_not_repeated_blindly() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), SALE).unwrap();
    let create = ["sale", "create", file.path().to_str().unwrap()];
    let output = ScriptedApi::start(|_| None).run(&create);
    assert_eq!(code(&output), 2, "{output:?}");
    let remedy = "-> `floodgate sale list` shows whether it exists; then create or open it\n";
    assert!(stderr(&output).contains(remedy), "{output:?}");
}

#[test]
fn set_sends_what_is_given_and_nothing_else() {
    let api = ScriptedApi::start(|line| {
        (line == "PATCH /sales/spring").then(|| (200, json!({"sale_id": "spring"})))
    });
    let of_sale = ["sale", "set", "spring", "--title", "Encore", "--reason", "an hour longer"];
    assert_eq!(api.text(&of_sale, 0), "sale spring is changed\n");
    assert_eq!(api.bodies(), [json!({"title": "Encore", "reason": "an hour longer"})]);
    let of_sku = [
        &["sale", "set", "spring", "--ends-at", "2099-01-01T00:00:00Z", "--sku", "phone"][..],
        &["--title", "Phone", "--price", "7", "--limit", "2", "--max-quantity", "1"],
        &["--payment-window", "0"],
    ];
    api.text(&of_sku.concat(), 0);
    let sku = json!({
        "sku_id": "phone", "title": "Phone", "price": 7, "limit": 2, "max_quantity": 1,
        "payment_window_s": 0,
    });
    assert_eq!(api.bodies(), [json!({"ends_at": "2099-01-01T00:00:00Z", "skus": [sku]})]);
}

#[test]
fn set_without_a_change_asks_for_one() {
    let api = ScriptedApi::start(|_| None);
    for more in [&["--reason", "none"][..], &["--sku", "phone"]] {
        let output = api.run(&[&["sale", "set", "spring"][..], more].concat());
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(stderr(&output).contains("nothing to change"), "{output:?}");
        assert!(stderr(&output).contains("give --title"), "{output:?}");
    }
    let later = ["sale", "set", "spring", "--ends-at", "2099-01-01T00:00:00Z", "--sku", "phone"];
    let output = api.run(&later);
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(stderr(&output).contains("nothing to change in SKU phone"), "{output:?}");
    for (flag, value, fault) in [
        ("--ends-at", "tomorrow", "a time such as"),
        ("--price", "-5", "-5 is not in 0.."),
        ("--price", "499.00", "invalid digit"),
    ] {
        let output = api.run(&["sale", "set", "spring", "--sku", "phone", flag, value]);
        assert_eq!(code(&output), 2, "{output:?}");
        let stderr = stderr(&output);
        assert!(stderr.contains(flag) && stderr.contains(fault), "{stderr}");
    }
    let output = api.run(&["sale", "set", "spring", "--price", "7"]);
    assert!(!output.status.success(), "a price without its SKU: {output:?}");
    assert!(api.lines().is_empty());
}

#[test]
fn restock_says_how_many_units_came() {
    let api = ScriptedApi::start(|line| {
        let answer = json!({"changed": -150, "initial_stock": 850, "stock_left": 0});
        (line == "POST /sales/spring/skus/phone/stock").then_some((200, answer))
    });
    let words = ["sale", "restock", "spring", "phone", "-200", "--change-id", "damaged-4"];
    let done = "stock of phone changed by -150, of -200 wanted; initial stock 850, 0 left\n";
    assert_eq!(api.text(&words, 0), done);
    assert_eq!(api.bodies(), [json!({"delta": -200, "change_id": "damaged-4"})]);
    let output = api.run(&words[..5]);
    assert!(!output.status.success(), "without a change id: {output:?}");

    let conflict = json!({"title": "Change id used", "detail": "of other units"});
    let refused = ScriptedApi::always(409, conflict).run(&words);
    assert_eq!(code(&refused), 1, "{refused:?}");
}

#[test]
fn a_repeated_restock_says_that_it_changed_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("sale.json"), SALE).unwrap();
    let server = Server::start(path);
    assert_eq!(code(&server.command(path, &["sale", "create", "sale.json"])), 0);
    let words = ["sale", "restock", "spring", "phone", "-9", "--change-id", "damaged-4"];
    let done = "stock of phone changed by -5, of -9 wanted; initial stock 0, 0 left\n";
    for repeat in ["", "already done, nothing changed: "] {
        let output = run(path, &[&words[..], &["--internal-url", &server.internal]].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{repeat}{done}"));
    }
    assert_eq!(parsed(&server.command(path, &words))["repeated"], true);
}

/// A closed sale is never opened again.
#[test]
fn closing_a_sale_asks_on_a_terminal_and_only_there() {
    let api = ScriptedApi::always(200, json!({}));
    let close = format!("sale close spring --internal-url {}", api.url);
    let on_terminal = |more: &str, answer: &str| {
        let line = format!("{} {close} {more}", env!("CARGO_BIN_EXE_floodgate"));
        // Runs the line on a terminal of its own.
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env_clear();
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (code(&output), api.lines().len())
    };
    assert_eq!(on_terminal("", "no\n"), (1, 0));
    assert_eq!(on_terminal("", "yes\n"), (0, 1));
    assert_eq!(on_terminal("--yes", ""), (0, 1));
    assert_eq!(code(&api.run(&["sale", "close", "spring"])), 0, "a script is not asked");
}

/// The server's number of a SKU whose bucket is fenced is of an earlier time.
#[test]
fn free_units_of_buckets_that_cannot_be_read_are_unknown() {
    let sku = |id: &str| json!({ "sku_id": id, "title": "T", "stock_left": 3, "price": 10 });
    let shown = |starts_at: &str, health: [&str; 2]| {
        let sale = json!({
            "sale_id": "spring", "title": "Spring", "phase": "open", "starts_at": starts_at,
            "ends_at": "2090-01-01T00:00:00.000Z", "skus": [sku("phone"), sku("case")],
        });
        let why = "the server was restarted\u{1b}[2J";
        let buckets = json!({ "skus": [
            { "sku_id": "case", "health": health[1], "why": why },
            { "sku_id": "phone", "health": health[0], "why": why },
        ] });
        ScriptedApi::start(move |line| {
            let is_of_buckets = line == "GET /sales/spring/buckets";
            Some((200, if is_of_buckets { buckets.clone() } else { sale.clone() }))
        })
    };
    let (begun, early) = ("2020-01-01T00:00:00.000Z", "2080-01-01T00:00:00.000Z");
    for health in ["distrusted", "unavailable", "missing"] {
        let text = shown(begun, [health, "ready"]).text(&["sale", "show", "spring"], 0);
        assert!(text.contains("\nphone  ?     10") && text.contains("\ncase   3     10"), "{text}");
        let why = "\nFREE of phone is not known: the server was restarted.[2J\n";
        assert!(text.contains(why), "{text}");
    }
    let output =
        shown(begun, ["distrusted", "other_phase"]).run(&["sale", "show", "spring", "--json"]);
    let sale: Json = serde_json::from_slice(&output.stdout).unwrap();
    let left = [0, 1].map(|at| sale["skus"][at]["stock_left"].clone());
    assert_eq!(left, [Json::Null, json!(3)]);
    let text = shown(early, ["missing", "ready"]).text(&["sale", "show", "spring"], 0);
    assert!(text.contains("\nphone  3     10") && !text.contains("FREE of"), "{text}");
}

#[test]
fn an_archive_whose_folder_cannot_be_written_asks_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = json!({"format": 1, "sale_id": "spring", "tables": []});
    std::fs::write(folder.path().join("manifest.json"), manifest.to_string()).unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o500)).unwrap();
    let api = ScriptedApi::always(200, json!({"open": []}));
    // Without this capability the permissions of files bind root, too.
    let mut archive = Command::new("setpriv");
    archive.args(["--bounding-set=-dac_override", "--inh-caps=-dac_override"]);
    archive.args([env!("CARGO_BIN_EXE_floodgate"), "sale", "archive", "spring", "--to"]);
    archive.arg(folder.path()).args(["--internal-url", &api.url]).current_dir("/").env_clear();
    let output = archive.output().unwrap();
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(stderr(&output).contains("name a folder that this user may write"), "{output:?}");
    assert_eq!(api.lines().len(), 1, "nothing is archived");
}
