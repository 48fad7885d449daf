//! `floodgate demo`: its verdict, and the calls that it prints for a newcomer to try.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{code, floodgate, json, run};

/// The first words of the note that ends the demo's output.
const LAST_LINE: &str = "The interface with every call: ";

/// Reads whole lines up to one that begins with `last`; panics if the stream ends before it.
fn read_until(stream: impl Read, last: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let is_last = line.starts_with(last);
        lines.push(line);
        if is_last {
            return lines;
        }
    }
    panic!("no line begins with {last:?}: {lines:#?}");
}

/// The printed commands; one may take several lines.
fn commands(lines: &[String]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for line in lines {
        match (line.strip_prefix("  "), commands.last_mut()) {
            (Some(command), _) if command.starts_with("curl ") => commands.push(command.to_owned()),
            (Some(rest), Some(command)) => command.push_str(&format!("\n{rest}")),
            _ => {}
        }
    }
    commands
}

/// Runs a command line as a newcomer would, but fails on HTTP errors.
fn try_command(command: &str) -> String {
    let script = format!("set -eo pipefail; curl() {{ command curl -f \"$@\"; }}; {command}");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Kills the demo when a test fails.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_calls_that_the_demo_prints_work_until_ctrl_c() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = floodgate(directory.path(), &["demo", "--buyers", "300", "--stock", "290"]);
    command.env("TMPDIR", directory.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = Demo(command.spawn().unwrap());
    let verdict = read_until(demo.0.stdout.take().unwrap(), "verdict: ");
    assert_eq!(verdict.last().unwrap(), "verdict: 0 oversold, 0 doubled, 0 lost");
    let notes = read_until(demo.0.stderr.take().unwrap(), LAST_LINE);
    // The folder of the ledger, which has the key of request ids.
    let mut entries = directory.path().read_dir().unwrap().map(|entry| entry.unwrap());
    let folder = entries.find(|entry| entry.file_type().unwrap().is_dir()).unwrap();
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);

    let commands = commands(&notes);
    let answers: Vec<String> = commands.iter().map(|command| try_command(command)).collect();
    let answer_of = |part: &str| {
        let at = commands.iter().position(|command| command.contains(part));
        &answers[at.unwrap_or_else(|| panic!("no call contains {part:?}: {commands:#?}"))]
    };
    assert!(answer_of("/v1/buy/demo").contains("\"request_id\""), "{answers:#?}");
    assert!(answer_of("/v1/orders").contains("\"sku_id\":\"phone\""), "{answers:#?}");
    assert!(answer_of("/funnel").contains("\"committed\""), "{answers:#?}");
    assert!(answer_of("/metrics").contains("floodgate_buy"), "{answers:#?}");
    assert!(answer_of("/tea/request-ids").contains("\"request_id\""), "{answers:#?}");
    for step in ["  1. Buy ", "  3. Watch "] {
        let line = notes.iter().find_map(|line| line.strip_prefix(step));
        let address = line.unwrap_or_else(|| panic!("no step {step:?}: {notes:#?}")).trim();
        assert!(try_command(&format!("curl -s '{address}'")).contains("<html"), "{address}");
        assert!(address.contains("sale=your-turn"), "{address}");
    }
    let sale = answer_of("/v1/sales/demo");
    assert!(sale.contains("\"phone\""), "{sale}");
    let page = notes.last().unwrap().strip_prefix(LAST_LINE).unwrap();
    assert!(try_command(&format!("curl -s {page}")).contains("<html"), "{page}");

    kill_process(Pid::from_child(&demo.0), Signal::INT).unwrap();
    assert_eq!(demo.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_demo_that_is_terminated_removes_its_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = floodgate(directory.path(), &["demo", "--buyers", "20", "--stock", "5"]);
    command.env("TMPDIR", directory.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut demo = Demo(command.spawn().unwrap());
    read_until(demo.0.stderr.take().unwrap(), LAST_LINE);
    let folders = || {
        let entries = directory.path().read_dir().unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir()).count()
    };
    assert_eq!(folders(), 1);
    kill_process(Pid::from_child(&demo.0), Signal::TERM).unwrap();
    assert_eq!((demo.0.wait().unwrap().code(), folders()), (Some(0), 0));
}

#[test]
fn a_demo_without_a_place_for_its_ledger_names_the_remedy() {
    let mut command = floodgate(std::path::Path::new("/"), &["demo", "--exit"]);
    let output = command.env("TMPDIR", "/nowhere/at/all").output().unwrap();
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(code(&output), 4, "{stderr}");
    assert!(stderr.contains("-> set TMPDIR to a writable folder"), "{stderr}");
}

#[test]
fn the_demo_sells_out_and_ends_with_its_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["demo", "--buyers", "500", "--stock", "20", "--exit", "--json"];
    let output = run(directory.path(), &arguments);
    assert_eq!(code(&output), 0, "{output:?}");
    let verdict = json(&output);
    let figures = ["sold", "sold_out_answers", "repeats_answered", "clicks", "unknown"];
    let [sold, refused, repeats, clicks, unknown] =
        figures.map(|figure| verdict[figure].as_u64().unwrap());
    assert_eq!((sold, unknown, verdict["audit_holds"].as_bool()), (20, 0, Some(true)));
    assert_eq!(sold + refused + repeats, clicks, "every click has one of three answers");
    for broken in ["oversold", "doubled", "lost", "other_answers"] {
        assert_eq!(verdict[broken], 0, "{broken}");
    }
}

#[test]
fn the_demo_uses_no_server_and_no_access_rule_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["demo", "--buyers", "50", "--stock", "5", "--exit", "--json"];
    let mut command = floodgate(directory.path(), &words);
    for (key, value) in [
        ("TIER", "gate"),
        ("REDIS__URL", "redis://127.0.0.1:1"),
        ("AUTH__MODE", "jwt"),
        ("HTTP__BIND", "0.0.0.0:0"),
        ("ADMIN__TOKEN", "0123456789abcdef"),
        ("LIMITS__ADDRESS_PER_SECOND", "1"),
    ] {
        command.env(format!("FLOODGATE__{key}"), value);
    }
    let output = command.output().unwrap();
    assert_eq!((code(&output), json(&output)["sold"].as_u64()), (0, Some(5)), "{output:?}");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("5 units, http://127.0.0.1:"), "buyer ids are not verified: {notes}");
    let ignored = "ignores tier, admin.token, auth.mode, limits.address_per_second, redis.url\n";
    assert!(notes.contains(ignored), "{notes}");
}

#[test]
fn a_demo_on_an_address_that_is_taken_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    for key in ["http.bind", "internal.bind"] {
        let bind = format!("{key}={taken}");
        let words = ["demo", "--buyers", "5", "--stock", "5", "--exit", "--set", &bind];
        let output = run(std::path::Path::new("/"), &words);
        assert_eq!(code(&output), 5, "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(&taken.to_string()), "{stderr}");
    }
}
