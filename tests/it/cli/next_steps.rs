//! The commands that a command suggests, beside recorded text that names commands, too.

use serde_json::{Value as Json, json};

use super::run;
use super::scripted::{ScriptedApi, stderr};

/// A reason that a person or another program wrote.
const REASON: &str = "as floodgate audit says";

#[test]
fn next_steps_have_the_flags_of_the_command_without_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("own shop.toml"), "[http]\nworkers = 1\n").unwrap();
    let token = "admin.token = s3cret-0123456789";
    let given = ["--config", "own shop.toml", "--set", token, "--set", "role=all"];
    let shown = "floodgate --config 'own shop.toml' --set role=all";
    let api = ScriptedApi::always(200, json!({}));
    let pause = ["sale", "pause", "spring", "--internal-url", &api.url];
    let output = run(path, &[&given[..], &pause].concat());
    let next = format!("go on with: {shown} sale --internal-url {} open spring\n", api.url);
    assert_eq!(stderr(&output), next);

    let closed = ["sale", "list", "--internal-url", "http://127.0.0.1:1"];
    let output = run(path, &[&given[..], &closed].concat());
    let remedy = format!("with `{shown} serve`");
    assert!(stderr(&output).contains(&remedy), "{output:?}");
    assert!(stderr(&output).contains(&format!("`{shown} doctor`")), "{output:?}");
}

/// What a command prints as text with a flag of its user, for these answers.
fn shown(words: &[&str], answer: impl Fn(&str) -> Json + Send + 'static) -> String {
    let api = ScriptedApi::start(move |line| Some((200, answer(line))));
    api.text(&[words, &["--set", "role=all"]].concat(), 0)
}

#[test]
fn recorded_reasons_are_shown_as_they_are_and_suggested_commands_have_the_flags() {
    let dead_letter = shown(&["dlq", "show", "17"], |_| json!({ "id": "17", "reason": REASON }));
    let trace = shown(&["trace", "9"], |_| {
        json!({ "stages": [{ "stage": "dead_letter", "state": "open", "reason": REASON,
            "holder": "dead letter 17" }],
            "next": "next: floodgate dlq show 17, then replay" })
    });
    for (text, next) in [(dead_letter, "replay 17\n"), (trace, "show 17, then replay")] {
        assert!(text.contains(REASON), "{text}");
        assert!(text.contains(&format!("next: floodgate --set role=all dlq {next}")), "{text}");
    }

    let sale = json!({
        "sale_id": "spring", "phase": "closed", "starts_at": "2020-01-01T00:00:00.000Z",
        "retention": { "state": "sealed" }, "skus": [{ "sku_id": "phone" }],
    });
    let sale = shown(&["sale", "show", "spring"], move |line| {
        let distrusted = json!({ "sku_id": "phone", "health": "distrusted",
            "why": "behind; `floodgate sale open spring` continues above both" });
        match line {
            "GET /verbs?subject=sale%3Aspring&limit=10" => {
                json!({ "verbs": [{ "verb": "close", "operator": "anna", "reason": REASON }] })
            }
            "GET /sales/spring/buckets" => json!({ "skus": [distrusted] }),
            _ => sale.clone(),
        }
    });
    assert!(sale.contains(&format!("anna  {REASON}\n")), "{sale}");
    for next in ["the same `floodgate --set role=all sale purge` continues", "sale open spring`"] {
        assert!(sale.contains(next), "{sale}");
    }
    assert_eq!(sale.matches("`floodgate --set role=all ").count(), 2, "{sale}");
}

#[test]
fn a_command_in_a_list_or_report_has_the_flags() {
    let none = shown(&["sale", "list"], |_| json!({ "sales": [] }));
    assert_eq!(none, "no sales; create one: floodgate --set role=all sale create FILE\n");
    let note = "sale spring is half purged (`floodgate sale purge` continues)";
    let audit =
        shown(&["audit"], move |_| json!({ "holds": true, "could_tell": true, "notes": [note] }));
    assert!(audit.contains("(`floodgate --set role=all sale purge` continues)"), "{audit}");
}
