//! Every database has the same migrations, each with `up.sql` and `down.sql`.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Finding, Rule};
use super::keep;
use super::tree::{self, File};

const FOLDER: &str = "migrations/";
const FILES: [&str; 2] = ["up.sql", "down.sql"];

fn migrations(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut databases: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for File { path, .. } in files {
        let parts: Vec<&str> = path.trim_start_matches(FOLDER).split('/').collect();
        match parts[..] {
            [database, step, file] if FILES.contains(&file) => {
                databases.entry(database).or_default().insert(step);
            }
            _ => findings.push(Finding::new(path, 1, "not <database>/<step>/{up,down}.sql")),
        }
    }
    let steps: BTreeSet<&str> = databases.values().flatten().copied().collect();
    for (database, own) in &databases {
        for step in &steps {
            if !own.contains(step) {
                let path = format!("{FOLDER}{database}/{step}");
                findings.push(Finding::new(&path, 1, "only the other database has this step"));
                continue;
            }
            for name in FILES {
                let path = format!("{FOLDER}{database}/{step}/{name}");
                let file = files.iter().find(|file| file.path == path);
                if !file.is_some_and(|file| file.text.starts_with("-- ")) {
                    findings.push(Finding::new(&path, 1, "missing, or not begun by its purpose"));
                }
            }
        }
    }
    findings
}

#[test]
fn migrations_are_twins_with_a_way_back() {
    keep(Rule::Migrations, migrations(&tree::files(&["migrations"], &["sql"])));
}

fn found(paths: &[&str]) -> Vec<String> {
    let files: Vec<File> = paths.iter().map(|path| File::planted(path, "-- sql")).collect();
    migrations(&files).iter().map(ToString::to_string).collect()
}

const SQLITE: [&str; 2] =
    ["migrations/sqlite/1_sales/up.sql", "migrations/sqlite/1_sales/down.sql"];

#[test]
fn one_database_alone_is_no_finding() {
    assert_eq!(found(&SQLITE), [""; 0]);
}

#[test]
fn a_planted_step_of_one_database_is_found() {
    let mysql = ["migrations/mysql/2_orders/up.sql", "migrations/mysql/2_orders/down.sql"];
    let paths: Vec<&str> = SQLITE.into_iter().chain(mysql).collect();
    let expected = ["mysql/1_sales", "sqlite/2_orders"]
        .map(|step| format!("migrations/{step}:1: only the other database has this step"));
    assert_eq!(found(&paths), expected);
}

#[test]
fn a_planted_step_without_a_way_back_is_found() {
    let gone = "migrations/sqlite/1_sales/down.sql:1: missing, or not begun by its purpose";
    assert_eq!(found(&SQLITE[..1]), [gone]);
}

#[test]
fn a_planted_foreign_file_is_found() {
    assert_eq!(found(&["migrations/orders.sql"]).len(), 1);
}
