//! A process that may open fewer files than `http.connections_max` needs.

use std::net::TcpStream;
use std::process::Command;

use crate::support::process::{Server, command};
use crate::support::wait::{until, until_true};

/// What one process may open.
const FILES: usize = 120;

/// `command` with another limit of open files.
fn limited(command: &Command) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--nofile={FILES}:{FILES}")).arg(command.get_program());
    limited.args(command.get_args()).env_clear();
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.current_dir(command.get_current_dir().unwrap());
    limited
}

#[test]
fn connections_leave_files_for_probes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::from_command(limited(&command(folder.path(), &["serve"], &[])));
    let connect = |_| TcpStream::connect(server.public).unwrap();
    let connections: Vec<TcpStream> = (0..2 * FILES).map(connect).collect();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let url = format!("http://{}/readyz", server.internal);
        until("an answer to a probe", async || {
            let status = reqwest::get(&url).await.ok()?.status();
            status.is_success().then_some(())
        })
        .await;
    });
    drop(connections);
    until_true("the warning", || server.log().contains("too few open files"));
    let log = server.log();
    assert!(!log.contains("Too many open files"), "{log}");
}

/// Each worker needs some files: the threads of the public listener cannot be started.
#[test]
fn a_listener_that_cannot_start_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let serve = command(folder.path(), &["serve"], &[("FLOODGATE__HTTP__WORKERS", "64")]);
    let ended = limited(&serve).output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(70), "{text}");
    assert!(text.contains("the operating system refused a listener"), "{text}");
}
