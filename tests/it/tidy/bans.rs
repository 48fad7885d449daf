//! Words that are allowed in few files, or in none.
//!
//! Clippy's `disallowed-methods` resolves imports, but an attribute at the call can switch it off.
//! Here the allowed files are part of the rule.

use super::finding::{Finding, Rule};
use super::{keep_each, rust, tree};

/// Banned words of code, the files that may use them, and the alternative for other files.
struct Ban {
    words: &'static [&'static str],
    /// Path prefixes of the files that may use the words.
    places: &'static [&'static str],
    instead: &'static str,
}

const ALLOW: Ban = Ban {
    words: &["#[allow", "#![allow"],
    places: &[],
    instead: "`#[expect(.., reason = \"..\")]` ends when its reason ends",
};

const ENVIRONMENT: Ban = Ban {
    words: &["env::var", "env::var_os", "env::vars", "env::vars_os"],
    places: &["src/config/"],
    instead: "take a setting",
};

const MAILBOXES: Ban =
    Ban { words: &["do_send"], places: &[], instead: "take a permit, then `send`" };

const PANICS: Ban = Ban {
    words: &[".unwrap()", ".expect(", "panic!", "todo!", "unimplemented!"],
    places: &[],
    instead: "a refusal is a value, a failure an error",
};

const PRINTING: Ban = Ban {
    words: &["print!", "println!", "eprint!", "eprintln!"],
    places: &["src/cli/output.rs"],
    instead: "log fields, or give data to `Output`",
};

const TASKS: Ban = Ban {
    words: &[
        "actix::spawn",
        "actix_rt::spawn",
        "rt::spawn",
        "task::spawn",
        "task::spawn_local",
        "tokio::spawn",
    ],
    places: &["src/runtime/shutdown.rs"],
    instead: "spawn through it, so that the shutdown waits for the task",
};

const TIME: Ban = Ban {
    words: &["Instant::now", "SystemTime::now", "Local::now", "Utc::now"],
    places: &["src/runtime/clock.rs", "crates/loadgen/src/clock.rs"],
    instead: "take a `Clock`",
};

impl Ban {
    /// Findings in all code.
    fn anywhere(&self, path: &str, text: &str) -> Vec<Finding> {
        self.findings(path, &rust::code(text))
    }

    /// Findings in code outside tests.
    fn in_production(&self, path: &str, text: &str) -> Vec<Finding> {
        self.findings(path, &rust::production(path, text))
    }

    fn findings(&self, path: &str, code: &str) -> Vec<Finding> {
        if self.places.iter().any(|place| path.starts_with(place)) {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for word in self.words {
            let what = match self.places {
                [place, ..] => format!("`{word}` outside {place}: {}", self.instead),
                [] => format!("`{word}`: {}", self.instead),
            };
            findings.extend(rust::words(code, word).map(|at| Finding::at(path, code, at, &what)));
        }
        findings
    }
}

/// Each word must be found in other files, but neither in the allowed files nor in comments or
/// literals.
fn each_planted_word_is_found(ban: &Ban) {
    for word in ban.words {
        let text = format!("fn f() {{\n    let x = {word}\n();\n}}\n");
        for path in ["src/other.rs", "bench/src/x.rs", "crates/y/src/x.rs"] {
            assert_eq!(ban.in_production(path, &text).len(), 1, "{path}: {word}");
            assert_eq!(ban.anywhere(path, &text).len(), 1, "{path}: {word}");
        }
        let harmless = format!("// {word}\nconst X: &str = \"{word}\";\n");
        assert!(ban.anywhere("src/other.rs", &harmless).is_empty(), "{word}");
        for place in ban.places {
            assert!(ban.in_production(place, &text).is_empty(), "{word}");
        }
    }
}

#[test]
fn no_lint_is_allowed_for_good() {
    keep_each(Rule::Allow, &tree::rust(), |path, text| ALLOW.anywhere(path, text));
}

#[test]
fn a_planted_allow_is_found() {
    each_planted_word_is_found(&ALLOW);
}

#[test]
fn only_the_configuration_reads_the_environment() {
    let check = |path: &str, text: &str| ENVIRONMENT.in_production(path, text);
    keep_each(Rule::Environment, &tree::sources(), check);
}

#[test]
fn a_planted_read_of_the_environment_is_found() {
    each_planted_word_is_found(&ENVIRONMENT);
}

#[test]
fn nothing_is_sent_past_the_bounds() {
    keep_each(Rule::Mailboxes, &tree::rust(), |path, text| MAILBOXES.anywhere(path, text));
}

#[test]
fn a_planted_unbounded_send_is_found() {
    each_planted_word_is_found(&MAILBOXES);
}

#[test]
fn nothing_panics_on_purpose_outside_tests() {
    keep_each(Rule::Panics, &tree::sources(), |path, text| PANICS.in_production(path, text));
}

#[test]
fn a_planted_panic_is_found_outside_tests_only() {
    each_planted_word_is_found(&PANICS);
    let tested = "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() { x.unwrap() }\n}\n";
    assert!(PANICS.in_production("src/a.rs", tested).is_empty());
    let lenient = "#[expect(dead_code, reason = \"\")]\nfn f() { x.unwrap_or(1); y.expect_err(); }";
    assert!(PANICS.in_production("src/a.rs", lenient).is_empty());
}

#[test]
fn only_the_command_line_prints() {
    keep_each(Rule::Printing, &tree::sources(), |path, text| PRINTING.in_production(path, text));
}

#[test]
fn a_planted_print_is_found() {
    each_planted_word_is_found(&PRINTING);
}

#[test]
fn every_task_is_known_to_the_way_down() {
    keep_each(Rule::Tasks, &tree::sources(), |path, text| TASKS.in_production(path, text));
}

#[test]
fn a_planted_bare_task_is_found() {
    each_planted_word_is_found(&TASKS);
    let tracked = "fn f() { shutdown.spawn_local(x); ctx.spawn(y); task::spawn_blocking(z); }";
    assert!(TASKS.in_production("src/a.rs", tracked).is_empty());
}

#[test]
fn only_the_clock_reads_the_time() {
    keep_each(Rule::Time, &tree::sources(), |path, text| TIME.in_production(path, text));
}

#[test]
fn a_planted_read_of_the_time_is_found() {
    each_planted_word_is_found(&TIME);
}
