//! The life of an order by hand: the lines of `docs/api.md`, as a reader types them.

use std::process::Command;

use crate::support::process::Server;

const DOCUMENT: &str = include_str!("../../../docs/api.md");
const HEADING: &str = "### By hand\n";

/// The settings and the script below the heading.
fn by_hand() -> (Vec<(String, String)>, String) {
    let (_, section) = DOCUMENT.split_once(HEADING).unwrap();
    let (first, rest) = section.split_once("```sh\n").unwrap();
    let (script, _) = rest.split_once("```\n").unwrap();
    let words = first.split(['`', ' ']).filter_map(|word| word.split_once('='));
    let variable = |key: &str| format!("FLOODGATE__{}", key.to_uppercase().replace('.', "__"));
    let settings = words.map(|(key, value)| (variable(key), value.to_owned())).collect();
    (settings, script.to_owned())
}

#[test]
fn the_life_of_an_order_by_hand_is_what_the_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, script) = by_hand();
    assert_eq!(settings.len(), 2, "{settings:?}");
    let settings: Vec<(&str, &str)> =
        settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let server = Server::start(folder.path(), &settings);
    let script = script
        .replace("127.0.0.1:8080", &server.public.to_string())
        .replace("127.0.0.1:9090", &server.internal.to_string());
    let output = Command::new("bash").args(["-euo", "pipefail", "-c", &script]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}\n{}", server.log());
    let expected = [
        "buyer 1: paid",
        "buyer 1: refunded",
        "buyer 2: cancelled",
        "buyer 2: pending_payment",
        "buyer 2: closed",
        "buyer 2: paid",
        "first payment: refunded",
        "buyer 3: timed_out",
        "buyer 4: timed_out",
        "buyer 4: paid",
        "\"holds\":true",
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}
