//! A ledger file that cannot be opened: the error names cause and remedy. A full disk loses no
//! order.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Error, ErrorClass, Ledger, OrderWriter, SaleStore};
use tempfile::TempDir;

use crate::support::migrations;
use crate::support::offers::{ANY, intent, offer, orders, run};

/// A directory with a closed ledger of one SKU and 300 orders.
fn closed_ledger() -> (TempDir, OpenOptions) {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    run(async {
        let ledger = SqliteLedger::open(&options).unwrap();
        let sku = offer(&ledger, "sale", ANY, 1_000).await;
        let batch = (1..=300).map(|number| intent(&sku, number, number, 1)).collect();
        assert!(ledger.place(batch).await.unwrap().is_some());
        ledger.close().await;
    });
    assert!(!with_suffix(&options.path, "-wal").exists(), "a closed ledger is one file");
    (directory, options)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Asserts that opening fails with an error that contains all `words`: for writing and, with
/// `readers_too`, for reading. The file stays unchanged.
#[track_caller]
fn assert_refused(options: &OpenOptions, readers_too: bool, words: &[&str]) {
    let before = fs::read(&options.path).ok();
    let mut answers = vec![SqliteLedger::open(options)];
    if readers_too {
        answers.push(SqliteLedger::open_for_reading(options));
    }
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(matches!(error, Error::CannotOpen { .. }), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Down);
        for word in words {
            assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
        }
    }
    assert_eq!(fs::read(&options.path).ok(), before, "the file is unchanged");
}

fn tamper(path: &Path, sql: &str) {
    SqliteConnection::establish(path.to_str().unwrap()).unwrap().batch_execute(sql).unwrap();
}

#[test]
fn a_missing_directory_is_refused() {
    let options = OpenOptions::new("/nowhere/at/all/ledger.db");
    assert_refused(&options, false, &["/nowhere/at/all", "create it", "ledger.url"]);
}

#[test]
fn a_missing_file_is_made_only_when_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::new(directory.path().join("ledger.db"));
    options.create = false;
    assert_refused(&options, true, &["there is no ledger", "ledger.url"]);
    assert!(!options.path.exists());

    options.create = true;
    let ledger = SqliteLedger::open(&options).unwrap();
    assert_eq!(
        SqliteLedger::schema_status(&options).unwrap().applied.len(),
        migrations::all("sqlite").len()
    );
    run(ledger.close());
    let mut names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["ledger.db", "ledger.db.lock"], "no other file is left");
    options.create = false;
    SqliteLedger::open(&options).unwrap();
}

#[test]
fn only_the_owner_can_read_the_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    let ledger = SqliteLedger::open(&options).unwrap();
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let path = with_suffix(&options.path, suffix);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    run(ledger.close());
}

#[test]
fn a_file_name_like_a_url_is_a_file_name() {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("50%?mode=memory#1 ä.db"));
    let ledger = SqliteLedger::open(&options).unwrap();
    run(ledger.close());
    assert!(options.path.exists());
    SqliteLedger::open_for_reading(&options).unwrap();
}

#[test]
fn a_directory_in_the_place_of_the_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    fs::create_dir(&options.path).unwrap();
    assert_refused(&options, true, &["not a file", "ledger.url"]);
}

#[test]
fn nothing_is_written_to_a_file_that_was_deleted() {
    let (_directory, options) = closed_ledger();
    run(async {
        let ledger = SqliteLedger::open(&options).unwrap();
        ledger.ping().await.unwrap();
        fs::remove_file(&options.path).unwrap();
        fs::remove_file(with_suffix(&options.path, "-wal")).unwrap();
        let refused = |error: Error| {
            assert!(matches!(error, Error::CannotOpen { .. }), "{error:?}");
            assert!(error.to_string().contains("was deleted or replaced"), "{error}");
        };
        // A thread opens its connection with its first job.
        for _ in 0..=options.readers {
            refused(ledger.ping().await.unwrap_err());
        }
        refused(ledger.next_token("any").await.unwrap_err());
        // The orders can still be copied, and another file is no remedy.
        let deleted = format!("{} (deleted)", options.path.display());
        let open = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|it| it.ok()?.path().read_link().ok());
        assert!(open.into_iter().any(|file| file.as_os_str() == deleted.as_str()));
        fs::write(&options.path, "another").unwrap();
        refused(ledger.next_token("any").await.unwrap_err());
        ledger.close().await;
    });
}

#[test]
fn a_second_process_is_refused_while_the_first_runs() {
    let (_directory, options) = closed_ledger();
    let first = SqliteLedger::open(&options).unwrap();
    let number = std::process::id().to_string();
    assert_refused(&options, false, &["another floodgate process", &number, "stop that one"]);
    SqliteLedger::open_for_reading(&options).unwrap();
    run(first.close());
    SqliteLedger::open(&options).unwrap();
}

#[test]
fn another_name_of_an_open_ledger_is_refused() {
    let (directory, options) = closed_ledger();
    let link = OpenOptions::new(directory.path().join("link.db"));
    std::os::unix::fs::symlink(&options.path, &link.path).unwrap();
    let ledger = SqliteLedger::open(&options).unwrap();
    let error = SqliteLedger::open(&link).unwrap_err().to_string();
    assert!(error.contains(&format!("number {}", std::process::id())), "{error}");
    run(ledger.close());
    run(SqliteLedger::open(&link).unwrap().close());
    let second = OpenOptions::new(directory.path().join("second.db"));
    fs::hard_link(&options.path, &second.path).unwrap();
    assert_refused(&second, false, &["second name", "remove one"]);
}

#[test]
fn the_database_of_another_program_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    for table in ["users", "orders"] {
        let options = OpenOptions::new(directory.path().join(format!("{table}.db")));
        tamper(&options.path, &format!("CREATE TABLE {table} (id INTEGER)"));
        let found = format!("(tables: {table})");
        assert_refused(&options, true, &["no ledger", &found, "set ledger.url"]);
        assert!(!with_suffix(&options.path, "-wal").exists());
    }
    let options = OpenOptions::new(directory.path().join("log.db"));
    let mut other = SqliteConnection::establish(options.path.to_str().unwrap()).unwrap();
    other.batch_execute("PRAGMA journal_mode = WAL; CREATE TABLE carts (id INTEGER)").unwrap();
    assert_refused(&options, true, &["no ledger", "(tables: carts)", "set ledger.url"]);
}

#[test]
fn a_read_only_file_or_directory_is_refused() {
    let (directory, options) = closed_ledger();
    set_readonly(&options.path, true);
    assert_refused(&options, false, &["read-only", "make it writable"]);
    SqliteLedger::open_for_reading(&options).expect("a read-only file may be read");
    set_readonly(&options.path, false);
    set_readonly(directory.path(), true);
    assert_refused(&options, false, &["read-only", "make it writable"]);
    set_readonly(directory.path(), false);
    SqliteLedger::open(&options).unwrap();
}

fn set_readonly(path: &Path, readonly: bool) {
    let mut permissions = fs::metadata(path).unwrap().permissions();
    permissions.set_readonly(readonly);
    fs::set_permissions(path, permissions).unwrap();
}

#[test]
fn garbage_is_not_a_ledger() {
    let (_directory, options) = closed_ledger();
    fs::write(&options.path, "This file is no database at all. ".repeat(1_000)).unwrap();
    assert_refused(&options, true, &["not a ledger", "backup"]);
}

#[test]
fn an_emptied_file_is_refused() {
    let (_directory, options) = closed_ledger();
    File::create(&options.path).unwrap();
    assert_refused(&options, true, &["is empty", "backup"]);
    let log = with_suffix(&options.path, "-wal");
    fs::write(&log, "all that is left").unwrap();
    assert_refused(&options, true, &["is empty", "backup"]);
    assert_eq!(fs::read(&log).unwrap(), b"all that is left");
}

#[test]
fn a_file_that_lost_its_end_is_refused() {
    let (_directory, options) = closed_ledger();
    let whole = fs::metadata(&options.path).unwrap().len();
    for length in [whole - 1, whole - 4_096, whole / 2, 4_096, 60, 20] {
        File::options().write(true).open(&options.path).unwrap().set_len(length).unwrap();
        let word = if length < 100 { "damaged" } else { "cut off" };
        assert_refused(&options, true, &[word, "backup"]);
    }
}

#[test]
fn damaged_pages_are_refused() {
    let (_directory, options) = closed_ledger();
    let mut bytes = fs::read(&options.path).unwrap();
    bytes[100..].fill(0xA5);
    fs::write(&options.path, bytes).unwrap();
    assert_refused(&options, true, &["damaged", "backup"]);
}

#[test]
fn damage_deep_inside_is_found_by_the_check_of_every_page() {
    let (_directory, options) = closed_ledger();
    SqliteLedger::check_pages(&options).unwrap();
    let mut bytes = fs::read(&options.path).unwrap();
    let last = bytes.len() - 4_096;
    bytes[last..].fill(0xA5);
    fs::write(&options.path, bytes).unwrap();
    let error = SqliteLedger::check_pages(&options).unwrap_err();
    assert!(error.to_string().contains("damaged or cut off: restore it from a backup"), "{error}");
}

#[test]
fn a_log_without_its_file_is_refused() {
    let (_directory, options) = closed_ledger();
    fs::rename(&options.path, with_suffix(&options.path, "-wal")).unwrap();
    assert_refused(&options, true, &["missing", "-wal", "put it back"]);
}

#[test]
fn a_newer_schema_is_refused_and_an_older_one_is_brought_up_to_date() {
    let (_directory, options) = closed_ledger();
    tamper(
        &options.path,
        "INSERT INTO __diesel_schema_migrations (version) VALUES ('9999'); \
         PRAGMA journal_mode = WAL",
    );
    assert_refused(&options, true, &["version 9999", "versions up to 0001", "newer", "backup"]);
    let status = SqliteLedger::schema_status(&options).unwrap();
    assert_eq!(status.unknown, ["9999"]);

    // Stays connected, so that the log stays: a file without log and schema is refused as that of
    // another program.
    let mut other = SqliteConnection::establish(options.path.to_str().unwrap()).unwrap();
    let down = include_str!("../../../migrations/sqlite/0001_create_schema/down.sql");
    other.batch_execute(&format!("{down} DELETE FROM __diesel_schema_migrations")).unwrap();
    let status = SqliteLedger::schema_status(&options).unwrap();
    assert_eq!((status.pending, status.unknown), (migrations::all("sqlite"), Vec::new()));
    let error = SqliteLedger::open_for_reading(&options).unwrap_err();
    assert!(error.to_string().contains("floodgate migrate"), "{error}");

    let ledger = SqliteLedger::open(&options).unwrap();
    assert_eq!(SqliteLedger::schema_status(&options).unwrap().pending, Vec::<String>::new());
    assert_eq!(run(ledger.next_token("process")).unwrap(), 1);
}

#[test]
fn another_program_that_holds_a_lock_is_named() {
    let (_directory, mut options) = closed_ledger();
    options.busy_timeout_ms = 20;
    let mut shell = SqliteConnection::establish(options.path.to_str().unwrap()).unwrap();
    shell.batch_execute("BEGIN EXCLUSIVE").unwrap();
    let error = SqliteLedger::open(&options).unwrap_err();
    assert!(error.to_string().contains("another program holds a lock"), "{error}");
    shell.batch_execute("ROLLBACK").unwrap();
    SqliteLedger::open(&options).unwrap();
}

#[test]
fn a_busy_file_is_retried() {
    let (_directory, mut options) = closed_ledger();
    options.busy_timeout_ms = 20;
    run(async {
        let ledger = SqliteLedger::open(&options).unwrap();
        let sku = ledger.sales().await.unwrap().remove(0).skus.remove(0);
        let mut shell = SqliteConnection::establish(options.path.to_str().unwrap()).unwrap();
        shell.batch_execute("BEGIN IMMEDIATE").unwrap();
        let error = ledger.place(vec![intent(&sku, 501, 501, 1)]).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Retry, "{error}");
        assert_eq!(orders(&ledger, sku.no).await.len(), 300, "readers do not wait");
        shell.batch_execute("ROLLBACK").unwrap();
        let placed = ledger.place(vec![intent(&sku, 501, 501, 1)]).await.unwrap();
        assert!(placed.is_some());
    });
}

#[test]
fn a_full_disk_refuses_orders_and_loses_none() {
    let (_directory, mut options) = closed_ledger();
    let used_kib = fs::metadata(&options.path).unwrap().len() / 1_024;
    options.size_max_kib = used_kib + 16;
    run(async {
        let ledger = SqliteLedger::open(&options).unwrap();
        let sku = ledger.sales().await.unwrap().remove(0).skus.remove(0);
        let mut placed = 300;
        let error = loop {
            let next = (placed + 1..=placed + 10).map(|n| intent(&sku, 1_000_000 - n, n, 1));
            match ledger.place(next.collect()).await {
                Ok(written) => assert!(written.is_some()),
                Err(error) => break error,
            }
            placed += 10;
            assert!(placed < 1_000, "the limit was never reached");
        };
        assert_eq!(error.class(), ErrorClass::Down, "{error}");
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert_eq!(orders(&ledger, sku.no).await.len() as u64, placed);
        assert_eq!(u64::from(ledger.available(sku.no).await.unwrap()), 1_000 - placed);
        let again = ledger.place((1..=300).map(|n| intent(&sku, n, n, 1)).collect()).await;
        assert!(again.unwrap().is_none(), "existing orders are still found");
        ledger.close().await;

        options.size_max_kib = 0;
        let ledger = SqliteLedger::open(&options).unwrap();
        let next = (placed + 1..=placed + 10).map(|n| intent(&sku, 1_000_000 - n, n, 1));
        assert!(ledger.place(next.collect()).await.unwrap().is_some());
    });
}

#[test]
fn a_reader_beside_a_running_writer_sees_its_commits_and_writes_nothing() {
    let (_directory, options) = closed_ledger();
    run(async {
        let writer = SqliteLedger::open(&options).unwrap();
        let sku = writer.sales().await.unwrap().remove(0).skus.remove(0);
        let reader = SqliteLedger::open_for_reading(&options).unwrap();
        assert_eq!(orders(&reader, sku.no).await.len(), 300);
        writer.place(vec![intent(&sku, 501, 501, 1)]).await.unwrap();
        assert_eq!(orders(&reader, sku.no).await.len(), 301);
        let error = reader.place(vec![intent(&sku, 502, 502, 1)]).await.unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        assert!(reader.secret("never made").await.is_err());
        writer.place(vec![intent(&sku, 503, 503, 1)]).await.unwrap();
        reader.close().await;
        writer.close().await;
    });
}

#[test]
fn an_audit_of_a_stopped_ledger_needs_no_writer() {
    let (_directory, options) = closed_ledger();
    let before = fs::read(&options.path).unwrap();
    run(async {
        let reader = SqliteLedger::open_for_reading(&options).unwrap();
        let sku = reader.sales().await.unwrap().remove(0).skus.remove(0);
        assert_eq!(orders(&reader, sku.no).await.len(), 300);
        reader.close().await;
    });
    assert_eq!(fs::read(&options.path).unwrap(), before);
    SqliteLedger::open(&options).unwrap();
}
