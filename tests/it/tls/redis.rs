//! `rediss://`, `rediss+sentinel://` and `rediss+cluster://`.

use std::time::Duration;

use floodgate::redis::transport::{ConnectionOptions, ConnectionPool, ConnectionPurpose};
use redis::{Cmd, Value};

use super::{OTHER_NAME, UNKNOWN_AUTHORITY, assert_says};
use crate::support::certificates::Certificates;
use crate::support::redis_connections::{options, run};
use crate::support::servers::Port;
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

/// Lines of `redis.conf` for TLS on this port, with the certificate of this name.
fn tls_lines(certificates: &Certificates, name: &str, port: u16) -> Vec<String> {
    let file = |suffix: &str| certificates.file(&format!("{name}.{suffix}"));
    vec![
        format!("tls-port {port}"),
        format!("tls-cert-file {}", file("crt")),
        format!("tls-key-file {}", file("key")),
        format!("tls-ca-cert-file {}", certificates.file("ca.crt")),
        "tls-auth-clients no".to_owned(),
    ]
}

fn start(certificates: &Certificates, name: &str) -> (Redis, Port) {
    let port = Port::claim().unwrap();
    let lines = tls_lines(certificates, name, port.number());
    (Redis::start_with(&texts(&lines)), port)
}

fn texts(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).collect()
}

fn pool(options: ConnectionOptions) -> ConnectionPool {
    ConnectionPool::new(options).unwrap()
}

/// Reads the role of the master of a key.
async fn role(pool: &ConnectionPool) -> Result<Value, String> {
    let connection = pool.connection(ConnectionPurpose::Hot, "key").await;
    let connection = connection.map_err(|error| error.to_string())?;
    let mut command = Cmd::new();
    command.arg("ROLE");
    let answers = connection.call(vec![command]).await.map_err(|error| error.to_string())?;
    Ok(answers.into_iter().next().unwrap().unwrap())
}

#[test]
fn one_server_is_trusted_by_its_authority_and_name() {
    let certificates = Certificates::new();
    let ((_redis, port), (_odd, odd_port)) =
        (start(&certificates, "server"), start(&certificates, "elsewhere"));
    run(async {
        let of = |port: u16, trust| ConnectionOptions {
            trust: Some(trust),
            connect_timeout: Duration::from_secs(5),
            ..options(&format!("rediss://localhost:{port}"))
        };
        role(&pool(of(port.number(), certificates.trust()))).await.unwrap();

        let refused = role(&pool(of(port.number(), certificates.other_trust()))).await.unwrap_err();
        assert_says(&refused, &[UNKNOWN_AUTHORITY, "redis.ca_file"]);
        let refused = role(&pool(of(odd_port.number(), certificates.trust()))).await.unwrap_err();
        assert_says(&refused, &[OTHER_NAME, "redis.url"]);

        let plain = Redis::start();
        let options = ConnectionOptions {
            connect_timeout: Duration::from_millis(500),
            ..of(plain.port(), certificates.trust())
        };
        let refused = role(&pool(options)).await.unwrap_err();
        assert_says(&refused, &["no TLS at this port"]);
    });
}

#[test]
fn sentinels_and_their_master_are_encrypted() {
    let certificates = Certificates::new();
    let (_master, master_port) = start(&certificates, "server");
    let port = Port::claim().unwrap();
    let mut lines = tls_lines(&certificates, "server", port.number());
    lines.push("tls-replication yes".to_owned());
    lines.push(format!("sentinel monitor shop 127.0.0.1 {} 1", master_port.number()));
    let _sentinel = Redis::sentinel(&texts(&lines));
    let url = format!("rediss+sentinel://localhost:{}/shop", port.number());
    run(async {
        let trusting =
            pool(ConnectionOptions { trust: Some(certificates.trust()), ..options(&url) });
        until("the master", async || role(&trusting).await.ok()).await;
        let trust = Some(certificates.other_trust());
        let refused = role(&pool(ConnectionOptions { trust, ..options(&url) })).await.unwrap_err();
        assert_says(&refused, &[UNKNOWN_AUTHORITY, "redis.ca_file"]);
    });
}

#[test]
fn a_cluster_is_encrypted() {
    let certificates = Certificates::new();
    let (port, bus) = (Port::claim().unwrap(), Port::claim().unwrap());
    let mut lines = tls_lines(&certificates, "server", port.number());
    lines.push("cluster-enabled yes".to_owned());
    lines.push("tls-cluster yes".to_owned());
    lines.push(format!("cluster-port {}", bus.number()));
    let node = Redis::start_with(&texts(&lines));
    node.cmd(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let url = format!("rediss+cluster://localhost:{}", port.number());
    run(async {
        let trusting =
            pool(ConnectionOptions { trust: Some(certificates.trust()), ..options(&url) });
        until("the cluster", async || role(&trusting).await.ok()).await;
        let trust = Some(certificates.other_trust());
        let refused = role(&pool(ConnectionOptions { trust, ..options(&url) })).await.unwrap_err();
        assert_says(&refused, &[UNKNOWN_AUTHORITY, "redis.ca_file"]);
    });
}
