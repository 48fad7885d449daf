//! A process whose log has no reader: a frozen terminal, a log shipper that hangs.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Command;

use crate::support::process::{Server, command};

/// More lines than may wait: each request logs a few at this level.
const REQUESTS: usize = 4_000;

#[test]
fn nothing_waits_for_the_reader_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let serve = command(folder.path(), &["serve"], &[("FLOODGATE__LOG__FILTER", "trace")]);
    // The process holds both ends of its log.
    let mut unread = Command::new("sh");
    unread.args(["-c", "mkfifo log && exec \"$0\" \"$@\" 2<>log"]).arg(serve.get_program());
    unread.args(serve.get_args()).current_dir(folder.path()).env_clear();
    unread.env("PATH", "/usr/bin:/bin");
    unread.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut server = Server::from_command(unread);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = reqwest::Client::new();
        for _ in 0..REQUESTS {
            let answer = client.get(format!("http://{}/v1/sales", server.public)).send().await;
            assert_eq!(answer.unwrap().status(), 200);
        }
    });

    // A reader that is back reads that it missed some.
    let log = BufReader::new(File::open(folder.path().join("log")).unwrap());
    let lost = log.lines().map(Result::unwrap).find(|line| line.contains("lines were lost"));
    assert!(lost.is_some());
    // Without it again.
    server.terminate();
    assert!(server.wait().success());
}
