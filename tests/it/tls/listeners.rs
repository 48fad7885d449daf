//! TLS of our own listeners, with the commands as clients; and connections that are no HTTP.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use floodgate::net::{HttpCaller, Trust};
use hyper::Method;
use url::Url;

use super::{OTHER_NAME, UNKNOWN_AUTHORITY, assert_says};
use crate::support::certificates::Certificates;
use crate::support::process::{Server, command};
use crate::support::redis_connections::run;
use crate::support::wait::until;

const LIMIT: Duration = Duration::from_secs(10);

/// A server whose listeners both have this certificate.
fn start(folder: &Path, certificates: &Certificates, name: &str) -> Server {
    let [chain, key] = ["crt", "key"].map(|suffix| certificates.file(&format!("{name}.{suffix}")));
    let keys = [
        ("FLOODGATE__HTTP__TLS_CERT_FILE", chain.as_str()),
        ("FLOODGATE__HTTP__TLS_KEY_FILE", key.as_str()),
        ("FLOODGATE__INTERNAL__TLS_CERT_FILE", chain.as_str()),
        ("FLOODGATE__INTERNAL__TLS_KEY_FILE", key.as_str()),
    ];
    Server::start(folder, &keys)
}

fn sale_list(url: &str, ca_file: &str) -> Output {
    let words = ["sale", "list", "--json", "--internal-url", url];
    command(Path::new("/"), &words, &[("FLOODGATE__ADMIN__CA_FILE", ca_file)]).output().unwrap()
}

#[track_caller]
fn refused(output: Output) -> String {
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

async fn get(url: &str, trust: Option<Trust>) -> Option<String> {
    let url = Url::parse(url).unwrap();
    let request = HttpCaller::request(Method::GET, &url);
    let caller = HttpCaller::new(LIMIT, trust);
    let answer = caller.call(&url, request, "".into(), Some(LIMIT)).await.ok()?;
    Some(String::from_utf8(answer.body().to_vec()).unwrap())
}

/// Waits until the metrics at this URL count this many malformed connections.
async fn until_malformed(count: u32, url: &str, trust: Option<Trust>) {
    let line = format!("floodgate_http_malformed_total {count}");
    until("malformed connections", async || {
        let text = get(url, trust.clone()).await?;
        text.lines().any(|one| one == line).then_some(())
    })
    .await;
}

#[test]
fn the_commands_trust_the_listener_by_its_authority_and_name() {
    let (folder, certificates) = (tempfile::tempdir().unwrap(), Certificates::new());
    let server = start(folder.path(), &certificates, "server");
    let ca = certificates.file("ca.crt");
    let url = format!("https://localhost:{}", server.internal.port());
    for url in [&url, &format!("https://{}", server.internal)] {
        let listed = sale_list(url, &ca);
        assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    }
    let other = refused(sale_list(&url, &certificates.file("other.crt")));
    assert_says(&other, &[UNKNOWN_AUTHORITY, "admin.ca_file"]);
    let no_file = refused(sale_list(&url, "/nowhere/ca.crt"));
    assert_says(&no_file, &["admin.ca_file", "/nowhere/ca.crt"]);
    refused(sale_list(&format!("http://{}", server.internal), &ca));

    let folder = tempfile::tempdir().unwrap();
    let odd = start(folder.path(), &certificates, "elsewhere");
    let odd = refused(sale_list(&format!("https://{}", odd.internal), &ca));
    assert_says(&odd, &[OTHER_NAME, "--internal-url"]);
}

#[test]
fn buyers_are_served_over_tls_and_what_is_no_tls_is_counted() {
    let (folder, certificates) = (tempfile::tempdir().unwrap(), Certificates::new());
    let server = start(folder.path(), &certificates, "server");
    let trust = || Some(certificates.trust());
    run(async {
        let sales = format!("https://localhost:{}/v1/sales", server.public.port());
        let answer = get(&sales, trust()).await.unwrap();
        assert!(answer.ends_with("\"sales\":[]}"), "{answer}");
        assert_eq!(get(&sales, Some(certificates.other_trust())).await, None);
        for address in [server.internal, server.public] {
            send(address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        let metrics = format!("https://localhost:{}/metrics", server.internal.port());
        // The client that trusts another authority is no stranger: it said so in TLS.
        until_malformed(2, &metrics, trust()).await;
    });
}

#[test]
fn connections_without_http_are_counted_and_not_logged() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    run(async {
        for _ in 0..50 {
            send(server.public, b"\x16\x03\x01 nonsense\r\n\r\n");
        }
        until_malformed(50, &format!("http://{}/metrics", server.internal), None).await;
    });
    let log = server.log();
    assert!(!log.contains("actix_http") && !log.contains("stream error"), "{log}");
}

fn send(address: SocketAddr, bytes: &[u8]) {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(bytes).unwrap();
    // Until the server has answered or closed: closing first would reset the connection.
    drop(std::io::copy(&mut client, &mut std::io::sink()));
}
