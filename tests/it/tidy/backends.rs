//! Only `src/tier/` names concrete backends: all other code uses a port (trait) or a handle.

use std::collections::BTreeSet;

use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, rust};

const CHOOSER: &str = "src/tier/";

/// Ports (traits) and the folders of their backends; a folder need not exist.
const PORTS: &[(&str, &str)] = &[
    ("Lease", "src/lease/"),
    ("Ledger", "src/db/"),
    ("Outbox", "src/outbox/"),
    ("PaymentProvider", "src/payment/"),
    ("Publisher", "src/broker/"),
    ("Stock", "src/stock/"),
    ("Subscriber", "src/broker/"),
    ("Watermarks", "src/watermark/"),
];

fn named_backends(files: &[File]) -> Vec<Finding> {
    let codes: Vec<(&str, String)> = files
        .iter()
        .map(|file| (file.path.as_str(), rust::production(&file.path, &file.text)))
        .collect();
    let mut findings = Vec::new();
    for (port, folder) in PORTS {
        let inside: Vec<&str> = codes
            .iter()
            .filter(|(path, _)| path.starts_with(folder))
            .map(|(_, code)| code.as_str())
            .collect();
        if !inside.is_empty() && !declares(&inside, &format!("trait {port}")) {
            findings.push(Finding::new(folder, 1, format!("no `trait {port}`: see PORTS in tidy")));
        }
        let outside = codes.iter().filter(|(path, _)| !path.starts_with(folder));
        let backends = backends(port, &inside);
        for (path, code) in outside.filter(|(path, _)| !path.starts_with(CHOOSER)) {
            for name in &backends {
                let what = format!("names the backend `{name}`: only {CHOOSER} chooses");
                let used = rust::words(code, name);
                findings.extend(used.map(|at| Finding::at(path, code, at, &what)));
            }
        }
    }
    findings
}

/// Types of a folder that implement its port, and their aliases. An implementation for `Arc<T>`
/// does not make `Arc` a backend, because the folder does not declare `Arc`.
fn backends(port: &str, folder: &[&str]) -> BTreeSet<String> {
    let clause = format!("{port} for ");
    let mut names = BTreeSet::new();
    for code in folder {
        for at in rust::words(code, &clause) {
            let name = code[at + clause.len()..].chars();
            names.insert(name.take_while(|&c| rust::is_word(c)).collect());
        }
    }
    names.retain(|name: &String| declares(folder, &format!("struct {name}")));
    let aliases = folder.iter().flat_map(|code| aliases(code));
    let aliases: Vec<_> = aliases.filter(|(_, of)| names.contains(of)).collect();
    names.extend(aliases.into_iter().map(|(alias, _)| alias));
    names
}

/// The pairs (A, B) of `type A = B<..>`.
fn aliases(code: &str) -> impl Iterator<Item = (String, String)> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|&c| rust::is_word(c)).collect()
    };
    rust::words(code, "type ").filter_map(move |at| {
        let (alias, of) = code[at + "type ".len()..].split_once('=')?;
        Some((name(alias), name(of)))
    })
}

fn declares(folder: &[&str], declaration: &str) -> bool {
    folder.iter().any(|code| rust::words(code, declaration).next().is_some())
}

#[test]
fn only_the_tier_names_backends() {
    keep(Rule::Backends, named_backends(&tree::server()));
}

const LIST: &str = "
pub struct ListOutbox<C>(C);
pub type RedisOutbox = ListOutbox<Redis>;
type Redis = ();
impl<C> Outbox for ListOutbox<C> {}
impl<T: Outbox> Outbox for Arc<T> {}
";

fn found(user: &str, text: &str) -> Vec<String> {
    let files = [
        File::planted("src/outbox/mod.rs", "pub trait Outbox {}"),
        File::planted("src/outbox/list.rs", LIST),
        File::planted(user, text),
    ];
    named_backends(&files).iter().map(ToString::to_string).collect()
}

#[test]
fn a_planted_backend_is_found() {
    for name in ["ListOutbox", "RedisOutbox"] {
        let what = format!("names the backend `{name}`: only src/tier/ chooses");
        let relay = format!("use std::sync::Arc;\nfn f(outbox: Arc<{name}>) {{}}");
        let path = "src/actors/outbox_relay.rs";
        assert_eq!(found(path, &relay), [format!("{path}:2: {what}")]);
    }
    assert_eq!(found("src/actors/a.rs", "fn f(redis: Redis) {}"), [""; 0]);
}

#[test]
fn the_tier_tests_and_the_own_folder_may_name_backends() {
    assert_eq!(found("src/tier/", "use crate::outbox::ListOutbox;"), [""; 0]);
    assert_eq!(found("src/outbox/lists.rs", "use super::ListOutbox;"), [""; 0]);
    let tested = "#[cfg(test)]\nmod tests { use crate::outbox::ListOutbox; }";
    assert_eq!(found("src/actors/a.rs", tested), [""; 0]);
}

#[test]
fn a_port_that_was_renamed_is_found() {
    let folder = [File::planted("src/stock/mod.rs", "pub trait Shelf {}")];
    let found = named_backends(&folder);
    let what = "no `trait Stock`: see PORTS in tidy";
    assert_eq!(found, [Finding::new("src/stock/", 1, what)]);
}
