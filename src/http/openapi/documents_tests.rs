use std::collections::BTreeSet;

use super::*;
use crate::http::routes::RouteEntry;

/// The operations of a document, by method and path.
fn operations(document: &Value) -> Vec<(String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let mut all = Vec::new();
    for (path, item) in paths {
        let methods = item.as_object().unwrap().iter();
        all.extend(methods.map(|(method, one)| (format!("{} {path}", method.to_uppercase()), one)));
    }
    all
}

#[test]
fn operation_ids_are_unique_and_each_is_a_verb_with_an_object() {
    for document in [public(), internal()] {
        let mut seen = BTreeSet::new();
        for (place, operation) in operations(&document) {
            let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{place}"));
            assert!(seen.insert(id.to_owned()), "{place}: {id}");
            let is_named = id.starts_with(|c: char| c.is_ascii_lowercase())
                && id.chars().any(|c| c.is_ascii_uppercase())
                && id.chars().all(|c| c.is_ascii_alphabetic());
            assert!(is_named, "{place}: {id}");
            let is_admin = place.contains(" /admin/");
            assert_eq!(id.starts_with("admin"), is_admin, "{place}: {id}");
        }
    }
}

#[test]
fn each_document_has_the_routes_of_its_listener_and_no_other() {
    for (document, table) in [(public(), PUBLIC), (internal(), INTERNAL)] {
        let path = |entry: &RouteEntry| entry.path.replace(":.*}", "}");
        let routes: BTreeSet<_> =
            table.iter().map(|entry| format!("{} {}", entry.method, path(entry))).collect();
        let described: BTreeSet<_> = operations(&document).into_iter().map(|(at, _)| at).collect();
        assert_eq!(described, routes);
    }
}

/// Names that say what became of something, or of which kind it is: clients branch on them.
const BRANCHED: [&str; 7] = ["state", "phase", "kind", "code", "outcome", "origin", "scope"];

/// States of other systems, and texts for people.
const OPEN: [&str; 2] = ["StageView", "ProblemView.state"];

#[test]
fn fields_that_clients_branch_on_are_enumerations() {
    for document in [public(), internal()] {
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas {
            for property in BRANCHED {
                let found = &schema["properties"][property];
                let place = format!("{name}.{property}");
                if found.is_null() || OPEN.iter().any(|open| place.starts_with(open)) {
                    continue;
                }
                let text = found.to_string();
                let is_enum = text.contains("\"enum\"") || {
                    let referred = text.split("schemas/").nth(1).and_then(|t| t.split('"').next());
                    referred.is_some_and(|to| schemas[to].to_string().contains("\"enum\""))
                };
                assert!(is_enum, "{place}: {text}");
            }
        }
    }
}
