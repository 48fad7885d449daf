//! A process whose log has no reader any more: a frozen terminal, a log shipper that hangs.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;

use crate::support::process::{Server, command};

/// More lines than may wait: each request logs a few at level `trace`.
const REQUESTS: usize = 4_000;

/// A server whose log is a full pipe, and the pipe.
fn unread(folder: &Path, keys: &[(&str, &str)]) -> (Server, File) {
    let log = folder.join("log");
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
    let mut pipe = OpenOptions::new();
    pipe.read(true).write(true).custom_flags(nonblocking);
    let mut pipe = pipe.open(&log).unwrap();
    while pipe.write(b"\n").is_ok() {}

    let serve = command(folder, &["serve"], keys);
    let mut unread = Command::new("/bin/sh");
    unread.args(["-c", "exec \"$0\" \"$@\" 2>log"]).arg(serve.get_program());
    unread.args(serve.get_args()).current_dir(folder).env_clear();
    unread.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    (Server::from_command(unread), pipe)
}

#[test]
fn nothing_waits_for_the_reader_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, pipe) = unread(folder.path(), &[("FLOODGATE__LOG__FILTER", "trace")]);
    let serve = || {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let client = reqwest::Client::new();
            for _ in 0..REQUESTS {
                let answer = client.get(format!("http://{}/v1/sales", server.public)).send().await;
                assert_eq!(answer.unwrap().status(), 200);
            }
        });
    };
    serve();
    // A reader that is back reads that it missed some.
    let log = BufReader::new(File::open(folder.path().join("log")).unwrap());
    let lost = log.lines().map(Result::unwrap).find(|line| line.contains("lines were lost"));
    assert!(lost.is_some());

    serve();
    server.terminate();
    assert!(server.wait().success());
    drop(pipe);
}

#[test]
fn a_process_that_gives_up_ends_although_its_log_has_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [
        ("FLOODGATE__TIER", "ledger"),
        ("FLOODGATE__FAULTS__PANIC_IN", "stock_refresher"),
        ("FLOODGATE__FAULTS__PANIC_PERCENT", "100"),
        ("FLOODGATE__SUPERVISOR__BACKOFF_MAX_MS", "100"),
        ("FLOODGATE__SHUTDOWN__DEADLINE_MS", "2000"),
    ];
    let (mut server, _pipe) = unread(folder.path(), &keys);
    assert_eq!(server.wait().code(), Some(6));
}
