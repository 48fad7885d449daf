//! The release build unwinds on panic: otherwise the supervisor cannot restart a panicking actor.

use super::finding::{Finding, Rule};
use super::{keep, tree};

const MANIFEST: &str = "Cargo.toml";

fn unwinding(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut section = "";
    let mut is_set = false;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let value = line.strip_prefix("panic").map(|rest| rest.trim_start_matches([' ', '=']));
        let Some(value) = value.filter(|_| section.starts_with("[profile.")) else { continue };
        if value.starts_with("\"unwind\"") {
            is_set |= section == "[profile.release]";
        } else {
            let what = format!("{section} does not unwind: the supervisor catches panics");
            findings.push(Finding::new(path, index + 1, what));
        }
    }
    if !is_set {
        findings.push(Finding::new(path, 1, "[profile.release] does not say panic = \"unwind\""));
    }
    findings
}

#[test]
fn the_release_build_unwinds() {
    let manifest = tree::read(MANIFEST).expect("the manifest of this package");
    keep(Rule::Unwinding, unwinding(MANIFEST, &manifest));
}

#[test]
fn a_planted_abort_is_found() {
    let unwind = r#"
[profile.release]
lto = "thin"
panic = "unwind"

[lints.clippy]
panic = "warn"
"#;
    assert!(unwinding(MANIFEST, unwind).is_empty());
    let abort = unwind.replace("unwind", "abort");
    assert_eq!(unwinding(MANIFEST, &abort).len(), 2);
    let elsewhere = format!("{unwind}[profile.bench]\npanic = 'abort'\n");
    assert_eq!(unwinding(MANIFEST, &elsewhere).len(), 1);
    assert_eq!(unwinding(MANIFEST, "[profile.release]\n").len(), 1);
}
