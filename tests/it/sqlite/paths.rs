//! Paths that no ledger can have: the error says what to do, and no file is made.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use floodgate::db::sqlite::{OpenOptions, SqliteLedger};

/// The error of opening and of migrating a ledger, which is the same.
fn refused(path: &Path) -> String {
    let options = OpenOptions::new(path);
    let answers =
        [SqliteLedger::open(&options).map(drop), SqliteLedger::migrate(&options).map(drop)];
    let [opened, migrated] = answers.map(|answer| answer.unwrap_err().to_string());
    assert_eq!(opened, migrated);
    opened
}

/// Such as that of a volume which is not mounted.
#[test]
fn a_link_to_a_missing_file_is_never_replaced_by_a_new_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let (volume, link) = (directory.path().join("volume"), directory.path().join("ledger.db"));
    symlink(volume.join("ledger.db"), &link).unwrap();
    let error = refused(&link);
    assert!(
        error.contains("is a link to") && error.contains("which is missing: mount it"),
        "{error}"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "only the link");

    fs::create_dir(&volume).unwrap();
    let migrated = |path: &Path| SqliteLedger::migrate(&OpenOptions::new(path)).unwrap();
    assert!(!migrated(&volume.join("ledger.db")).is_empty());
    assert!(migrated(&link).is_empty(), "it leads to that ledger");
    assert!(link.is_symlink());
}

#[test]
fn a_path_that_is_too_long_for_the_files_beside_it_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut folder = directory.path().to_owned();
    while folder.as_os_str().len() < 300 {
        folder.push("d".repeat(100));
    }
    fs::create_dir_all(&folder).unwrap();
    let name = |bytes| directory.path().join("n".repeat(bytes));
    let whole = |bytes: usize| folder.join("n".repeat(bytes - folder.as_os_str().len() - 1));
    for (longest, too_long) in [(name(243), name(244)), (whole(500), whole(501))] {
        SqliteLedger::migrate(&OpenOptions::new(longest)).unwrap();
        let error = refused(&too_long);
        assert!(error.contains("too long: shorten ledger.url"), "{error}");
    }
}
