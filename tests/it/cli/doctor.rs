//! `floodgate doctor` on stacks with exactly one fault: it names the fault and the remedy.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::process::{Server, command};
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use serde_json::Value as Json;
use tempfile::TempDir;

/// The output of the doctor.
#[derive(Debug)]
pub struct Diagnosis {
    pub exit: Option<i32>,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, serde::Deserialize)]
pub struct Finding {
    pub check: String,
    pub status: String,
    pub detail: String,
    pub remedy: String,
}

/// A stack to examine: a folder with a ledger, and configuration keys.
pub struct Stack {
    pub folder: TempDir,
    keys: Vec<(String, String)>,
}

impl Stack {
    /// With an up-to-date SQLite ledger.
    pub fn new(keys: &[(&str, &str)]) -> Self {
        let stack = Self::unmigrated(keys);
        let migrated = stack.run(&["migrate"]);
        assert!(migrated.status.success(), "{migrated:?}");
        stack
    }

    /// Without migration of the ledger that the keys name.
    pub fn unmigrated(keys: &[(&str, &str)]) -> Self {
        let keys = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self { folder: tempfile::tempdir().unwrap(), keys: keys.collect() }
    }

    /// With another value of a configuration key.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.keys.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn keys(&self) -> Vec<(&str, &str)> {
        self.keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    pub fn run(&self, words: &[&str]) -> Output {
        command(self.path(), words, &self.keys()).output().unwrap()
    }

    /// Runs the doctor. Findings about slow servers become `ok`.
    pub fn examine(&self) -> Diagnosis {
        Diagnosis::read(&self.run(&["doctor", "--json"]))
    }
}

impl Diagnosis {
    fn read(output: &Output) -> Self {
        let report: Json = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let mut findings: Vec<Finding> =
            serde_json::from_value(report["findings"].clone()).unwrap();
        // The speed of a server depends on the load of this machine.
        let slow = |finding: &&mut Finding| {
            let slow_details = ["answers in", "its disk was too slow"];
            finding.status == "warn"
                && slow_details.iter().any(|words| finding.detail.contains(words))
        };
        findings.iter_mut().filter(slow).for_each(|finding| finding.status = "ok".to_owned());
        Self { exit: output.status.code(), findings }
    }

    /// The findings whose check name begins with `prefix`.
    pub fn about(&self, prefix: &str) -> Vec<&Finding> {
        self.findings.iter().filter(|finding| finding.check.starts_with(prefix)).collect()
    }

    /// Requires at least one finding about `prefix`, all of them `ok`, and exit code 0.
    pub fn assert_ok(&self, prefix: &str) {
        let about = self.about(prefix);
        assert!(!about.is_empty(), "no check of {prefix}: {self:#?}");
        for finding in about {
            assert_eq!(finding.status, "ok", "{finding:#?}");
        }
        assert_eq!(self.exit, Some(0), "{self:#?}");
    }

    /// The only finding about `prefix` that is not `ok`. Requires its status, a remedy and the
    /// matching exit code.
    pub fn only_problem(&self, prefix: &str, status: &str) -> &Finding {
        let problems: Vec<_> =
            self.about(prefix).into_iter().filter(|finding| finding.status != "ok").collect();
        let [finding] = problems.as_slice() else {
            panic!("{} problems: {problems:#?}", problems.len())
        };
        assert_eq!(finding.status, status, "{finding:#?}");
        assert!(finding.remedy.len() > 10, "{finding:#?}");
        assert_eq!(self.exit, Some(i32::from(status == "fail")), "{self:#?}");
        finding
    }
}

#[test]
fn a_right_ledger_file_passes() {
    Stack::new(&[]).examine().assert_ok("ledger file");
}

#[test]
fn an_empty_ledger_file_is_refused_as_serve_refuses_it() {
    let stack = Stack::unmigrated(&[]);
    std::fs::write(stack.path().join("ledger.db"), "").unwrap();
    let diagnosis = stack.examine();
    let finding = diagnosis.only_problem("ledger file", "fail");
    assert!(finding.detail.contains("is empty"), "{finding:#?}");
    assert!(finding.remedy.contains("backup"), "{finding:#?}");
    let served = stack.run(&["serve"]);
    assert_eq!(served.status.code(), Some(4), "{served:?}");
}

#[test]
fn a_server_with_another_ledger_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let internal = server.internal.to_string();
    let keys = [("FLOODGATE__INTERNAL__BIND", internal.as_str())];
    let diagnosis = Stack::new(&keys).examine();
    let finding = diagnosis.only_problem("ledger lock", "warn");
    assert!(finding.detail.contains("has another ledger"), "{finding:#?}");
    let own = command(folder.path(), &["doctor", "--json"], &keys).output().unwrap();
    Diagnosis::read(&own).assert_ok("ledger lock");
}

/// `migrate` refuses it, too.
#[test]
fn the_database_of_another_program_is_named_by_its_tables() {
    let stack = Stack::unmigrated(&[]);
    let path = stack.path().join("ledger.db");
    let mut conn = SqliteConnection::establish(path.to_str().unwrap()).unwrap();
    conn.batch_execute("CREATE TABLE bookmarks (id INTEGER)").unwrap();
    let diagnosis = stack.examine();
    let finding = diagnosis.only_problem("ledger file", "fail");
    assert!(finding.detail.contains("(tables: bookmarks)"), "{finding:#?}");
    assert!(!finding.remedy.contains("migrate"), "{finding:#?}");
}

#[test]
fn a_ledger_file_that_is_deleted_under_its_server_is_reported() {
    let stack = Stack::unmigrated(&[]);
    stack.examine().assert_ok("ledger file");
    let held = std::fs::File::create(stack.path().join("ledger.db.lock")).unwrap();
    held.lock().unwrap();
    let diagnosis = stack.examine();
    let finding = diagnosis.only_problem("ledger file", "fail");
    assert!(finding.remedy.contains("do not stop the server"), "{finding:#?}");
    // The lock may be deleted with it.
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for file in ["ledger.db", "ledger.db-wal", "ledger.db.lock"] {
        std::fs::remove_file(folder.path().join(file)).unwrap();
    }
    let internal = server.internal.to_string();
    let keys = [("FLOODGATE__INTERNAL__BIND", internal.as_str())];
    let found = command(folder.path(), &["doctor", "--json"], &keys).output().unwrap();
    let diagnosis = Diagnosis::read(&found);
    let finding = diagnosis.only_problem("ledger file", "fail");
    assert!(finding.remedy.contains("do not stop the server"), "{finding:#?}");
}

/// Also a healthy server's, seen from another folder than the one it works in.
#[test]
fn a_relative_path_is_not_a_deleted_file() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let relative = ("FLOODGATE__LEDGER__URL", "sqlite://./ledger.db");
    let server = Server::start(folder.path(), &[relative]);
    let internal = server.internal.to_string();
    let keys = [relative, ("FLOODGATE__INTERNAL__BIND", internal.as_str())];
    let examine = |folder: &Path| {
        Diagnosis::read(&command(folder, &["doctor", "--json"], &keys).output().unwrap())
    };
    examine(folder.path()).assert_ok("ledger file");
    let diagnosis = examine(elsewhere.path());
    let finding = diagnosis.only_problem("ledger file", "warn");
    assert!(finding.remedy.contains("run it in the server's working directory"), "{finding:#?}");
}

#[test]
fn a_ledger_whose_path_serve_refuses_is_reported() {
    let stack = Stack::new(&[]);
    let [file, second] = ["ledger.db", "second.db"].map(|name| stack.path().join(name));
    std::fs::hard_link(&file, second).unwrap();
    for words in ["a second name (a hard link)", "is a link to /nowhere/at/all"] {
        let diagnosis = stack.examine();
        let finding = diagnosis.only_problem("ledger file", "fail");
        assert!(finding.detail.contains(words), "{finding:#?}");
        let served = stack.run(&["serve"]);
        assert_eq!(served.status.code(), Some(4), "{served:?}");
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", &file).unwrap();
    }
}

#[test]
fn a_token_that_the_running_server_refuses_is_reported() {
    const TOKEN: &str = "FLOODGATE__ADMIN__TOKEN";
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[(TOKEN, "the-token-of-the-server")]);
    let internal = server.internal.to_string();
    let examine = |token: &str| {
        let keys = [(TOKEN, token), ("FLOODGATE__INTERNAL__BIND", internal.as_str())];
        Diagnosis::read(&command(folder.path(), &["doctor", "--json"], &keys).output().unwrap())
    };
    examine("the-token-of-the-server").assert_ok("admin token");
    let diagnosis = examine("the-token-of-somebody");
    let finding = diagnosis.only_problem("admin token", "fail");
    assert!(finding.remedy.contains("admin.token_file"), "{finding:#?}");
}

#[test]
fn a_ledger_file_that_may_only_be_read_is_reported() {
    let stack = Stack::new(&[]);
    let file = stack.path().join("ledger.db");
    std::fs::set_permissions(file, Permissions::from_mode(0o400)).unwrap();
    // Without this capability the permissions of files bind root, too.
    let mut doctor = Command::new("setpriv");
    doctor.args(["--bounding-set=-dac_override", "--inh-caps=-dac_override"]);
    let bound = command(stack.path(), &["doctor", "--json"], &stack.keys());
    doctor.arg(bound.get_program()).args(bound.get_args()).current_dir(stack.path()).env_clear();
    doctor.envs(bound.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let diagnosis = Diagnosis::read(&doctor.output().unwrap());
    let finding = diagnosis.only_problem("ledger file", "fail");
    assert!(finding.detail.contains("cannot be opened"), "{finding:#?}");
    assert!(finding.remedy.contains("read and write"), "{finding:#?}");
}

#[test]
fn a_ledger_file_that_lacks_a_migration_is_reported() {
    let stack = Stack::new(&[]);
    // Stays connected, so that the log stays: `migrate` refuses a file without log and schema as
    // that of another program.
    let _other = revert_migrations(&stack.path().join("ledger.db"));
    let diagnosis = stack.examine();
    let finding = diagnosis.only_problem("ledger file", "fail");
    assert!(finding.detail.contains("0001_create_schema"), "{finding:#?}");
    assert!(finding.remedy.contains("floodgate migrate"), "{finding:#?}");
    assert!(stack.run(&["migrate"]).status.success());
    stack.examine().assert_ok("ledger file");
}

fn revert_migrations(file: &Path) -> SqliteConnection {
    let down = include_str!("../../../migrations/sqlite/0001_create_schema/down.sql");
    let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
    conn.batch_execute(&format!("{down} DELETE FROM __diesel_schema_migrations")).unwrap();
    conn
}
