//! The command line: the real binary, its exit codes, its standard output and standard error.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

mod answers;
mod bench;
mod demo;
mod dlq;
mod doctor;
mod doctor_mysql;
mod doctor_rabbitmq;
mod doctor_redis;
mod events;
mod next_steps;
mod order_life;
mod payments;
mod sale_changes;
mod scripted;

const SALE: &str = r#"{"sale_id": "spring", "title": "Spring sale",
    "starts_at": "2020-01-01T00:00:00Z", "ends_at": "2099-01-01T00:00:00Z",
    "skus": [{"sku_id": "phone", "title": "Phone", "price": 100, "initial_stock": 5,
              "policy": {"kind": "one_per_buyer"}}]}"#;

fn floodgate(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodgate"));
    command.current_dir(directory).args(words).env_clear();
    command.env("FLOODGATE__HTTP__BIND", "127.0.0.1:0");
    command.env("FLOODGATE__INTERNAL__BIND", "127.0.0.1:0");
    command
}

fn run(directory: &Path, words: &[&str]) -> Output {
    floodgate(directory, words).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

fn json(output: &Output) -> Json {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A running server. Dropping it kills the process.
struct Server {
    child: Child,
    internal: String,
}

impl Server {
    fn start(directory: &Path) -> Self {
        let mut child = floodgate(directory, &["serve"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        // If the server does not start, the read returns at the end of the stream.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let internal = line.trim().strip_prefix("listening public=127.0.0.1:");
        let internal =
            internal.and_then(|rest| rest.split_once(" internal=")).map(|(_, address)| address);
        let internal = format!(
            "http://{}",
            internal.unwrap_or_else(|| panic!("unexpected first line {line:?}"))
        );
        Self { child, internal }
    }

    /// Runs a command against this server.
    fn command(&self, directory: &Path, words: &[&str]) -> Output {
        run(directory, &[words, &["--internal-url", &self.internal, "--json"]].concat())
    }

    fn stop(mut self) -> Option<i32> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_sale_is_run_from_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("sale.json"), SALE).unwrap();
    let twice = SALE.replacen("\"title\"", "\"sale_id\": \"autumn\", \"title\"", 1);
    std::fs::write(path.join("twice.json"), twice).unwrap();
    let server = Server::start(path);

    assert_eq!(code(&server.command(path, &["sale", "create", "twice.json"])), 1, "two ids");
    assert_eq!(code(&server.command(path, &["sale", "create", "sale.json"])), 0);
    assert_eq!(code(&server.command(path, &["sale", "create", "sale.json"])), 1, "the sale exists");
    for (verb, phase) in [("open", "open"), ("pause", "paused"), ("open", "open")] {
        assert_eq!(json(&server.command(path, &["sale", verb, "spring"]))["phase"], phase);
    }
    let shown = json(&server.command(path, &["sale", "show", "spring"]));
    assert_eq!(shown["skus"][0]["stock_left"], 5);
    let unknown = server.command(path, &["sale", "show", "autumn"]);
    assert_eq!(code(&unknown), 1);
    assert!(scripted::stderr(&unknown).contains("sale autumn: No such sale"), "{unknown:?}");
    assert_eq!(json(&server.command(path, &["sale", "close", "spring"]))["phase"], "closed");

    let audited = server.command(path, &["audit"]);
    assert_eq!((code(&audited), &json(&audited)["holds"]), (0, &Json::Bool(true)));
    assert_eq!(
        code(&server.command(path, &["audit", "--sale", "autumn"])),
        2,
        "no sale was audited"
    );
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn one_ledger_has_one_server_and_its_audit_needs_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = Server::start(path);
    let second = run(path, &["serve"]);
    assert_eq!(code(&second), 4, "{second:?}");
    assert_eq!(server.stop(), Some(0));

    let migrated = run(path, &["migrate", "--json"]);
    assert_eq!(json(&migrated)["migrations_run"], serde_json::json!([]));
    // Without a server the audit cannot check the gates, so that it must not exit with 0.
    let audited = run(path, &["audit", "--json"]);
    assert_eq!((code(&audited), &json(&audited)["num_violations"]), (2, &Json::from(0)));
    assert!(
        !audited.stderr.is_empty(),
        "standard error states that the audit read the ledger directly"
    );
}

/// A relative path may be that of another folder than the one that was meant.
#[test]
fn migrate_says_where_a_new_ledger_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("floodgate.db");
    for words in ["created a new ledger, ran 0001_", "the schema is up to date"] {
        let output = run(directory.path(), &["migrate"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(&format!("sqlite://{}: {words}", file.display())), "{text}");
    }
}

#[test]
fn a_taken_address_and_a_wrong_key_have_their_exits() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for key in ["http.bind", "internal.bind"] {
        let bind = format!("{key}={}", taken.local_addr().unwrap());
        assert_eq!(code(&run(directory.path(), &["serve", "--set", &bind])), 5, "{key}");
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 0, "{key}: no ledger is made");
    }

    let wrong = run(directory.path(), &["serve", "--set", "http.wrokers=1"]);
    assert_eq!(code(&wrong), 3);
    assert!(wrong.stdout.is_empty());
    let stderr = String::from_utf8(wrong.stderr).unwrap();
    assert!(stderr.contains("did you mean `http.workers`?"), "{stderr}");
    let unlike = run(directory.path(), &["serve", "--set", "colour=red"]);
    let stderr = String::from_utf8(unlike.stderr).unwrap();
    assert!(stderr.contains("lists every key") && !stderr.contains("did you mean"), "{stderr}");

    let doctor = run(directory.path(), &["doctor", "--json", "--set", "http.wrokers=1"]);
    let findings = json(&doctor)["findings"].clone();
    assert_eq!((code(&doctor), findings.as_array().map(Vec::len)), (1, Some(1)), "{findings}");
    assert!(findings[0]["detail"].as_str().unwrap().contains("http.wrokers"), "{findings}");
}

#[test]
fn wrong_usage_is_2_and_help_is_0() {
    for (line, exit) in
        [("fly", 2), ("serve --fly", 2), ("--json", 2), ("serve --help", 0), ("--version", 0)]
    {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(code(&run(Path::new("/"), &words)), exit, "{line}");
    }
}

#[test]
fn common_options_mean_the_same_before_and_behind_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("one.toml"), "[http]\nworkers = 1\n").unwrap();
    std::fs::write(path.join("two.toml"), "[http]\nworkers = 2\n").unwrap();
    let before = ["--json", "--config", "one.toml", "--set", "http.backlog=5"];
    let more = ["--set", "gate.batch_max=7", "check-config"];
    let behind = ["--set", "http.backlog=6", "--config", "two.toml"];
    let numbers = |words: &[&str]| {
        let shown = json(&run(path, words));
        let settings = &shown["settings"];
        ["/http/workers", "/http/backlog", "/gate/batch_max"]
            .map(|key| settings.pointer(key).and_then(Json::as_u64))
    };
    assert_eq!(numbers(&[&before[..], &more].concat()), [Some(1), Some(5), Some(7)]);
    let both = [&before[..], &more, &behind].concat();
    assert_eq!(numbers(&both), [Some(2), Some(6), Some(7)], "the last one counts");

    let api = scripted::ScriptedApi::always(200, serde_json::json!({ "sales": [] }));
    for line in ["--json sale list", "sale --json list", "sale list --json"] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(api.text(&words, 0), "{\"sales\":[]}\n", "{line}");
    }
    let between = run(path, &["sale", "--internal-url", &api.url, "list"]);
    assert_eq!(code(&between), 0, "{between:?}");
}

#[test]
fn commands_send_the_first_token_that_may_operate() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = "collector read 0123456789abcdef\nanna operate fedcba9876543210\n";
    std::fs::write(directory.path().join("tokens"), tokens).unwrap();
    let api = scripted::ScriptedApi::always(200, serde_json::json!({ "sales": [] }));
    let list = ["sale", "list", "--internal-url", &api.url, "--set", "admin.tokens_file=tokens"];
    let own = ("admin.token=s3cret-0123456789", "s3cret-0123456789");
    let cases = [("log.format=text", "fedcba9876543210"), own];
    for (more, token) in cases {
        let output = run(directory.path(), &[&list[..], &["--set", more]].concat());
        assert_eq!(code(&output), 0, "{output:?}");
        let request = api.requests.lock().unwrap().pop().unwrap();
        assert!(request.contains(&format!("authorization: Bearer {token}\r\n")), "{request}");
    }
    let refused = scripted::ScriptedApi::always(401, Json::Null).run(&["sale", "list"]);
    assert!(scripted::stderr(&refused).contains("admin.tokens_file"), "{refused:?}");
}

#[test]
fn an_id_that_would_be_another_path_is_named() {
    let api = scripted::ScriptedApi::always(200, Json::Null);
    for words in [["trace", ""].as_slice(), &["sale", "show", ".."], &["dlq", "show", "."]] {
        let output = api.run(words);
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(scripted::stderr(&output).contains("is no id"), "{output:?}");
    }
    assert_eq!(api.lines().len(), 0);
}

/// A ledger that is read-only answers, and the server is ready.
#[test]
fn a_server_that_cannot_do_it_now_leads_to_the_doctor() {
    let problem = serde_json::json!({ "title": "Busy", "code": "busy" });
    let output = scripted::ScriptedApi::always(503, problem).run(&["sale", "open", "spring"]);
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(scripted::stderr(&output).contains("-> see `floodgate doctor`"), "{output:?}");
}

#[test]
fn the_help_and_the_manual_list_every_exit_code() {
    let help = String::from_utf8(run(Path::new("/"), &["--help"]).stdout).unwrap();
    let (_, listed) = help.split_once("Exit codes:\n").unwrap();
    let exit_of = |line: &str| line.split_whitespace().next()?.parse::<u8>().ok();
    let listed: Vec<_> = listed.lines().filter_map(exit_of).collect();
    assert_eq!(listed, [0, 1, 2, 3, 4, 5, 6, 70]);
    let (_, manual) =
        include_str!("../../../docs/operate/install.md").split_once("## Exit codes\n").unwrap();
    for exit in listed {
        assert!(manual.contains(&format!("\n| {exit} |")), "{exit}");
    }
}

/// The defaults are another installation than that of an operator who forgets `--config`.
#[test]
fn a_doctor_without_a_configuration_begins_with_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("own.toml"), "[http]\nworkers = 1\n").unwrap();
    for (words, status) in [
        (&["--set", "tier=ledger"][..], "ok"),
        (&["--config", "own.toml"], "ok"),
        (&["--set", "http.workers=1"], "warn"),
        (&[], "warn"),
    ] {
        let doctor = run(directory.path(), &[&["doctor", "--json"], words].concat());
        let findings = json(&doctor)["findings"].clone();
        assert_eq!(findings[0]["check"], "configuration", "{findings}");
        assert_eq!(findings[0]["status"], status, "{words:?}: {findings}");
        assert_eq!(code(&doctor), 0, "{findings}");
    }
}

#[test]
fn json_makes_the_log_json_unless_its_format_is_set() {
    for (more, is_json) in [("log.filter=info", true), ("log.format=text", false)] {
        let output = serve_nowhere(&["--json", "--set", more]);
        assert_eq!(code(&output), 4, "{output:?}");
        assert_eq!(output.stderr.starts_with(b"{"), is_json, "{output:?}");
    }
}

#[test]
fn every_value_of_the_role_flag_is_a_role() {
    for role in ["all", "api", "relay", "consumer", "maintenance", "keeper"] {
        let output = serve_nowhere(&["--role", role]);
        if role == "all" {
            assert_eq!(code(&output), 4, "{output:?}");
            continue;
        }
        // Tier `memory` has no roles.
        assert_eq!(code(&output), 3, "{output:?}");
        assert!(scripted::stderr(&output).contains("role: role `"), "{output:?}");
    }
}

#[test]
fn serve_and_the_doctor_warn_that_orders_cannot_be_paid() {
    for (provider, warns) in [("none", true), ("demo", false)] {
        let provider = format!("payment.provider={provider}");
        let output = serve_nowhere(&["--set", &provider]);
        assert_eq!(scripted::stderr(&output).contains("end unpaid"), warns, "{output:?}");
        let doctor = run(Path::new("/"), &["doctor", "--set", &provider]);
        let report = String::from_utf8(doctor.stdout).unwrap();
        let words = "-> set payment.provider, or payment_window_s 0 in the sale";
        assert_eq!(report.contains(words), warns, "{report}");
    }
}

/// A server whose ledger cannot be opened.
fn serve_nowhere(more: &[&str]) -> Output {
    let nowhere = ["serve", "--set", "ledger.url=sqlite:///nowhere/at/all/ledger.db"];
    run(Path::new("/"), &[&nowhere[..], more].concat())
}

#[test]
fn the_environment_is_read_and_secrets_stay_hidden() {
    let directory = tempfile::tempdir().unwrap();
    let shown = floodgate(directory.path(), &["check-config", "--json"])
        .env("FLOODGATE__ADMIN__TOKEN", "007-s3cret")
        .output()
        .unwrap();
    let settings = json(&shown);
    assert_eq!(settings["settings"]["admin"]["token"], "(hidden)");
    assert_eq!(settings["origins"]["admin.token"], "environment FLOODGATE__ADMIN__TOKEN");
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("s3cret"));

    let doctor = run(directory.path(), &["doctor", "--json"]);
    assert_eq!(code(&doctor), 0, "{doctor:?}");
    assert!(json(&doctor)["findings"].as_array().is_some_and(|list| list.len() > 8));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it leaves files behind");
}

#[test]
fn a_list_that_a_fault_shows_may_be_given_by_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [("HTTP__TRUSTED_PROXIES", "such as "), ("TICKETS__CHALLENGES", "Default: ")];
    // Only buyers with tokens may come through proxies.
    std::fs::write(directory.path().join("secret"), "a secret of 32 different bytes!!").unwrap();
    let tokens = [("FLOODGATE__AUTH__MODE", "jwt"), ("FLOODGATE__AUTH__JWT_SECRET_FILE", "secret")];
    for (name, before) in cases {
        let given = |value: &str| {
            let mut command = floodgate(directory.path(), &["check-config"]);
            command.env(format!("FLOODGATE__{name}"), value).envs(tokens).output().unwrap()
        };
        let refused = given("abc");
        assert_eq!(code(&refused), 3, "{refused:?}");
        let text = scripted::stderr(&refused);
        let (_, shown) = text.split_once(before).unwrap_or_else(|| panic!("{text}"));
        let shown = &shown[..=shown.find(']').unwrap()];
        let accepted = given(shown);
        assert_eq!(code(&accepted), 0, "{name}={shown}: {accepted:?}");
        let accepted = given(&shown.replace(['[', ']', '"'], ""));
        assert_eq!(code(&accepted), 0, "{name}={shown} without brackets: {accepted:?}");
    }
}
