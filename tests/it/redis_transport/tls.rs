//! `rediss://`, in builds with TLS.

use std::process::Command;

use floodgate::redis::transport::ConnectionPurpose;
use redis::Value;

use super::{add, call};
use crate::support::random::number_from_env;
use crate::support::redis_connections::{connection_pool, run};
use crate::support::servers::Port;
use crate::support::servers::redis::Redis;

const PORT: &str = "FLOODGATE_TEST_TLS_PORT";

#[test]
fn a_server_is_trusted_by_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port = Port::claim().unwrap();
    let lines = [
        format!("tls-port {}", port.number()),
        format!("tls-cert-file {}", file("server.crt")),
        format!("tls-key-file {}", file("server.key")),
        format!("tls-ca-cert-file {}", file("ca.crt")),
        "tls-auth-clients no".to_owned(),
    ];
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let redis = Redis::start_with(&lines);
    // The trusted roots are read from the environment, so that a child process is necessary.
    let connect_with = |roots: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "redis_transport::tls::child", "--ignored"]);
        child.env("SSL_CERT_FILE", roots).env(PORT, port.number().to_string());
        child.output().unwrap()
    };
    let output = connect_with(&file("ca.crt"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(redis.text(&["GET", "a"]), "1");

    let output = connect_with(&file("other.crt"));
    let message = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("invalid peer certificate"), "{message}");
}

/// The child process.
#[test]
#[ignore = "run by the test above, with its own trusted roots"]
fn child() {
    let port: u16 = number_from_env(PORT).unwrap();
    run(async {
        let pool = connection_pool(&format!("rediss://localhost:{port}"));
        assert_eq!(call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await, Ok(Value::Int(1)));
    });
}

/// Writes a server's certificate, the authority that signed it, and another authority.
fn certificates(folder: &std::path::Path) {
    let script = "set -e
        new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $new -days 2 -keyout ca.key -out ca.crt -subj /CN=ca
        openssl req -x509 $new -days 2 -keyout other.key -out other.crt -subj /CN=other
        openssl req $new -keyout server.key -out server.csr -subj /CN=localhost
        echo subjectAltName=DNS:localhost > names
        openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
            -extfile names -out server.crt";
    let output = Command::new("sh").args(["-c", script]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
