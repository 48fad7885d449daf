//! A server behind nginx with `deploy/nginx.conf`: buyers buy and follow their requests, bodies and
//! claimed addresses are kept out.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use floodgate::config::{AuthMode, JwtKeys, Tier};
use reqwest::{Client, Response};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use testkit::{Port, Process};

use super::read;
use crate::http::auth::{SECRET, token};
use crate::support::TestApp;
use crate::support::app::fresh_settings;
use crate::support::python::text;
use crate::support::wait::until;

/// nginx in the foreground; ends with the test.
struct Nginx {
    _process: Process,
    client: Client,
    port: Port,
    _folder: TempDir,
}

/// The frame around the file, as in Debian's `/etc/nginx/nginx.conf`, with all paths in `folder`.
fn frame(folder: &Path) -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {}/{kind};", folder.display()));
    format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\n\
         events {{ }}\nhttp {{ access_log off; {}\ninclude {at}/site.conf; }}\n",
        temporary.join(" "),
        at = folder.display(),
    )
}

/// A key and a certificate for it, which no one has signed.
fn certificate(folder: &Path) {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=shop"]);
    let output = command.args(["-newkey", "rsa:2048", "-keyout", "key", "-out", "cert"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

impl Nginx {
    /// Forwards to a public listener; `more` is added to the file.
    fn before(public: SocketAddr, more: &str) -> Self {
        let (folder, port) = (TempDir::new().unwrap(), Port::claim().unwrap());
        let at = folder.path();
        certificate(at);
        let site = read("nginx.conf")
            .replace("127.0.0.1:8080", &public.to_string())
            .replace("listen 443 ", &format!("listen 127.0.0.1:{} ", port.number()))
            .replace("listen [::]:443 ", "# ")
            .replace("/etc/ssl/certs/shop.example.pem", &at.join("cert").display().to_string())
            .replace("/etc/ssl/private/shop.example.key", &at.join("key").display().to_string());
        std::fs::write(at.join("nginx.conf"), frame(at)).unwrap();
        let nginx = |more: &[&str]| {
            let mut command = testkit::command("nginx");
            command.args(["-p", &at.display().to_string(), "-c", "nginx.conf"]).args(more);
            command
        };
        std::fs::write(at.join("site.conf"), &site).unwrap();
        let output = nginx(&["-t"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        // What is tested is the way behind TLS, which the client of the tests does not speak.
        let is_kept = |line: &&str| !line.trim_start().starts_with("ssl_");
        let lines: Vec<_> = site.lines().filter(is_kept).collect();
        let plain = lines.join("\n").replace(" ssl http2;", ";");
        std::fs::write(at.join("site.conf"), format!("{plain}\n{more}\n")).unwrap();
        let process = Process::spawn(nginx(&[]), at).unwrap();
        Self { _process: process, client: Client::new(), port, _folder: folder }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port.number())
    }
}

#[tokio::test]
async fn buyers_buy_through_the_proxy() {
    let (mut settings, _stores) = fresh_settings(Tier::Memory);
    settings.auth.mode = AuthMode::Jwt;
    settings.auth.jwt_keys = JwtKeys::of_secret(SECRET);
    settings.http.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
    let app = TestApp::start(settings);
    app.open_sale("sale", json!({"kind": "one_per_buyer"}), 5, 1).await;
    let nginx = Nginx::before(app.public, "");
    let page = until("nginx", async || nginx.client.get(nginx.url("/")).send().await.ok()).await;
    assert_eq!(page.status(), 200);

    let claims = json!({"sub": "42", "exp": 4_102_444_800_i64});
    let bearer = token(SECRET, &json!({"alg": "HS256", "typ": "JWT"}), &claims);
    let buy = async |body: Vec<u8>| -> Response {
        let call = nginx.client.post(nginx.url("/v1/buy/sale")).bearer_auth(&bearer);
        let call = call.header("content-type", "application/json");
        // A claim that the proxy drops.
        call.header("x-forwarded-for", "203.0.113.9").body(body).send().await.unwrap()
    };
    let bought = buy(br#"{"sku_id": "sku", "quantity": 1}"#.to_vec()).await;
    assert_eq!(bought.status(), 200);
    let bought: Json = bought.json().await.unwrap();
    assert_eq!(bought["order"]["buyer_id"], "42");

    let id = bought["request_id"].as_str().unwrap();
    let events = nginx.client.get(nginx.url(&format!("/v1/requests/{id}/events")));
    let events = events.bearer_auth(&bearer).send().await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    assert!(events.text().await.unwrap().contains("event: state"));

    assert_eq!(buy(vec![b' '; 70_000]).await.status(), 413, "nginx refuses it");
    for internal in ["/livez", "/metrics", "/admin/v1/stats", "/ops/"] {
        let answer = nginx.client.get(nginx.url(internal)).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{internal}");
    }
}

/// A customer of IPv6 has as many addresses as it likes, of one network.
#[tokio::test]
async fn connections_are_counted_by_ipv4_address_or_ipv6_network() {
    let (unused, port) = (Port::claim().unwrap(), Port::claim().unwrap());
    // Answers what it counts by, for the address that the caller claims.
    let more = format!(
        "server {{ listen {}; set_real_ip_from 127.0.0.1; real_ip_header X-Client; \
         location / {{ return 200 $client_network; }} }}",
        port.addr()
    );
    let nginx = Nginx::before(unused.addr(), &more);
    let url = format!("http://{}/", port.addr());
    for (client, counted_by) in [
        ("203.0.113.9", &[203_u8, 0, 113, 9][..]),
        // As text this byte would end a line.
        ("203.0.10.10", &[203, 0, 10, 10]),
        ("2001:db8::1", &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0]),
        ("2001:db8:0:0:5:6:7:8", &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0]),
        ("2001:db8:0:a::1", &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 10]),
    ] {
        let answer = until("nginx", async || {
            nginx.client.get(&url).header("x-client", client).send().await.ok()
        });
        let bytes = answer.await.bytes().await.unwrap();
        assert_eq!(bytes[..], *counted_by, "{client}");
    }
}
