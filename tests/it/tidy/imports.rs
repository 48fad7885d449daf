//! Crates and modules that a folder must not import.

use super::finding::{Finding, Rule};
use super::{keep_each, rust, tree};

/// Crates and modules that the code of a folder must not name.
struct Layer {
    folder: &'static str,
    crates: &'static [&'static str],
    modules: &'static [&'static str],
    why: &'static str,
}

const LAYERS: &[Layer] = &[
    Layer {
        folder: "src/domain/",
        crates: &["actix", "diesel", "lapin", "redis", "tokio"],
        modules: &["actors", "config", "db", "http", "messages", "runtime", "services", "stock"],
        why: "the domain is pure: no actors, no I/O, no clock",
    },
    Layer {
        folder: "src/http/",
        crates: &["diesel", "lapin", "redis"],
        modules: &[],
        why: "handlers see handles and read models, never a driver",
    },
];

fn imports(path: &str, text: &str) -> Vec<Finding> {
    let code = rust::code(text);
    let mut findings = Vec::new();
    for layer in LAYERS.iter().filter(|layer| path.starts_with(layer.folder)) {
        for name in layer.crates {
            let used = code.match_indices(name).map(|(at, _)| at).filter(|&at| is_crate(&code, at));
            let what = format!("names `{name}`: {}", layer.why);
            findings.extend(used.map(|at| Finding::at(path, &code, at, &what)));
        }
        for name in layer.modules {
            let module = format!("crate::{name}");
            let what = format!("names `{module}`: {}", layer.why);
            let used = rust::words(&code, &module);
            findings.extend(used.map(|at| Finding::at(path, &code, at, &what)));
        }
    }
    findings
}

/// Whether the name at `at` is a path's segment, itself or as a prefix (`actix` in `actix_web::`).
fn is_crate(code: &str, at: usize) -> bool {
    let before = code[..at].trim_end();
    let starts = !code[..at].ends_with(rust::is_word);
    let name: String = code[at..].chars().take_while(|&c| rust::is_word(c)).collect();
    let after = code[at + name.len()..].trim_start();
    starts
        && (after.starts_with("::") || before.ends_with("use") || before.ends_with("extern crate"))
}

#[test]
fn folders_know_only_what_they_may() {
    keep_each(Rule::Imports, &tree::sources(), imports);
}

#[test]
fn a_planted_import_is_found() {
    let path = "src/domain/order.rs";
    assert_eq!(imports(path, "use actix::Message;").len(), 1);
    assert_eq!(imports(path, "use actix_web::web;").len(), 1);
    assert_eq!(imports(path, "#[tokio::main]\nfn f() {}").len(), 1);
    assert_eq!(imports(path, "use redis;").len(), 1);
    assert_eq!(imports(path, "use crate::runtime::clock::Clock;").len(), 1);
    assert_eq!(
        imports("src/http/buyers/buy.rs", "fn f(c: &diesel\n::SqliteConnection) {}").len(),
        1
    );
}

#[test]
fn a_permitted_import_is_not_found() {
    assert!(
        imports("src/http/buyers/buy.rs", "use actix_web::web; use crate::runtime::clock::Clock;")
            .is_empty()
    );
    assert!(
        imports("src/http/operators/health.rs", "let up = settings.redis.is_some();").is_empty()
    );
    assert!(imports("src/domain/order.rs", "// no redis::, no `use tokio`\n").is_empty());
    assert!(imports("src/db/mod.rs", "use diesel::prelude::*;").is_empty());
}
