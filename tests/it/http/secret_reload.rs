//! Secrets of buyers, operators and webhooks, replaced at SIGHUP without a restart.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use floodgate::config::{ConfigSources, Settings};
use floodgate::payment::WebhookVerifier;
use floodgate::runtime::clock::wall_ms;
use reqwest::Client;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value as Json, json};

use super::auth::{SECRET, token};
use crate::support::process::Server;
use crate::support::wait::until;

const NEW_SECRET: &str = "fedcba9876543210fedcba9876543210";
const OLD_WEBHOOK: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Of the test itself; it stays.
const COLLECTOR: &str = "the-token-of-the-collector";
const NEW_WEBHOOK: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A login service with one key of Ed25519.
struct Login {
    kid: &'static str,
    pair: Ed25519KeyPair,
}

impl Login {
    fn new(kid: &'static str, seed: u8) -> Self {
        Self { kid, pair: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap() }
    }

    fn jwk(&self) -> Json {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": self.kid, "use": "sig", "x": x})
    }

    fn token(&self) -> String {
        let part = |json: &Json| URL_SAFE_NO_PAD.encode(json.to_string());
        let header = json!({"alg": "EdDSA", "kid": self.kid});
        let text = format!("{}.{}", part(&header), part(&json!({"sub": "42"})));
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(self.pair.sign(text.as_bytes())))
    }
}

/// A server whose secrets are in files of its folder.
struct Reloaded {
    server: Server,
    client: Client,
    folder: tempfile::TempDir,
}

impl Reloaded {
    fn start(jwks: &Json) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| write(folder.path(), name, text);
        write("secret", SECRET);
        write("jwks", &jwks.to_string());
        write("tokens", &tokens(&["the-old-token-of-ann"]));
        write("webhook", OLD_WEBHOOK);
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let keys = [
            ("FLOODGATE__AUTH__MODE", "jwt".to_owned()),
            ("FLOODGATE__AUTH__JWT_SECRET_FILE", file("secret")),
            ("FLOODGATE__AUTH__JWKS_FILE", file("jwks")),
            ("FLOODGATE__ADMIN__TOKENS_FILE", file("tokens")),
            ("FLOODGATE__PAYMENT__PROVIDER", "demo".to_owned()),
            ("FLOODGATE__PAYMENT__WEBHOOK_SECRETS", file("webhook")),
        ];
        let keys: Vec<(&str, &str)> = keys.iter().map(|(name, it)| (*name, it.as_str())).collect();
        let server = Server::start(folder.path(), &keys);
        Self { server, client: Client::new(), folder }
    }

    fn write(&self, name: &str, text: &str) {
        write(self.folder.path(), name, text);
    }

    /// The status of a buyer's request with this token.
    async fn buyer(&self, token: &str) -> u16 {
        let call = self.client.get(format!("http://{}/v1/orders", self.server.public));
        call.bearer_auth(token).send().await.unwrap().status().as_u16()
    }

    async fn operator(&self, token: &str) -> u16 {
        let call = self.client.get(format!("http://{}/admin/v1/sales", self.server.internal));
        call.bearer_auth(token).send().await.unwrap().status().as_u16()
    }

    async fn webhook(&self, secret: &str) -> u16 {
        let set =
            vec!["payment.provider=demo".to_owned(), format!("payment.webhook_secrets={secret}")];
        let sources = ConfigSources { set, ..ConfigSources::default() };
        let signer = WebhookVerifier::new(&Settings::load(&sources).unwrap().payment, &[]);
        let data = json!({"payment_id": "p", "amount": 1, "currency": "CNY"});
        let body = json!({"type": "other", "data": data}).to_string();
        let call = self.client.post(format!("http://{}/v1/payments/events", self.server.public));
        let headers = signer.sign("evt", body.as_bytes(), wall_ms());
        let call = headers.iter().fold(call, |call, (name, value)| call.header(*name, value));
        call.body(body).send().await.unwrap().status().as_u16()
    }

    async fn reloads(&self, outcome: &str) -> u64 {
        let url = format!("http://{}/metrics", self.server.internal);
        let call = self.client.get(url).bearer_auth(COLLECTOR);
        let answer = call.send().await.unwrap();
        let text = answer.text().await.unwrap();
        let line = format!("floodgate_secret_reloads_total{{outcome=\"{outcome}\"}} ");
        let count = text.lines().find_map(|text| text.strip_prefix(&line));
        count.map_or(0, |count| count.parse().unwrap())
    }

    /// Sends SIGHUP and waits until it is counted.
    async fn reload(&self, outcome: &str) {
        let before = self.reloads(outcome).await;
        self.server.hang_up();
        until("a reload", async || (self.reloads(outcome).await > before).then_some(())).await;
    }
}

fn write(folder: &Path, name: &str, text: &str) {
    let path: PathBuf = folder.join(name);
    std::fs::write(path, text).unwrap();
}

/// A file with these tokens of one operator.
fn tokens(of_ann: &[&str]) -> String {
    let lines = of_ann.iter().map(|token| format!("ann operate {token}\n"));
    lines.chain([format!("collector read {COLLECTOR}")]).collect()
}

fn hs256(secret: &str) -> String {
    token(secret, &json!({"alg": "HS256"}), &json!({"sub": "42"}))
}

#[tokio::test]
async fn secrets_are_replaced_without_a_restart_and_the_old_ones_end() {
    let (old, new) = (Login::new("old", 1), Login::new("new", 2));
    let app = Reloaded::start(&json!({"keys": [old.jwk()]}));
    let operators = ["the-old-token-of-ann", "the-new-token-of-ann"];
    let buyers = [hs256(SECRET), hs256(NEW_SECRET), old.token(), new.token()];
    let webhooks = [OLD_WEBHOOK, NEW_WEBHOOK];
    let statuses = async || {
        let mut statuses = Vec::new();
        for token in &buyers {
            statuses.push(app.buyer(token).await);
        }
        for token in operators {
            statuses.push(app.operator(token).await);
        }
        for secret in webhooks {
            statuses.push(app.webhook(secret).await);
        }
        statuses
    };
    let before: [u16; 8] = [200, 401, 200, 401, 200, 401, 200, 401];
    assert_eq!(statuses().await, before);

    // Both at once: the clients change one after the other.
    app.write("secret", &format!("{SECRET}\n{NEW_SECRET}\n"));
    app.write("jwks", &json!({"keys": [old.jwk(), new.jwk()]}).to_string());
    app.write("tokens", &tokens(&operators));
    assert_eq!(statuses().await, before, "without a signal");
    app.reload("replaced").await;
    assert_eq!(statuses().await, [200, 200, 200, 200, 200, 200, 200, 401]);

    app.write("secret", NEW_SECRET);
    app.write("jwks", &json!({"keys": [new.jwk()]}).to_string());
    app.write("tokens", &tokens(&operators[1..]));
    app.write("webhook", NEW_WEBHOOK);
    app.reload("replaced").await;
    assert_eq!(statuses().await, [401, 200, 401, 200, 401, 200, 401, 200]);
}

#[tokio::test]
async fn one_broken_file_keeps_every_old_secret_and_is_named() {
    let (old, new) = (Login::new("old", 1), Login::new("new", 2));
    let app = Reloaded::start(&json!({"keys": [old.jwk()]}));
    app.write("secret", NEW_SECRET);
    app.write("tokens", &tokens(&["the-new-token-of-ann"]));
    let mut private = new.jwk();
    private["d"] = json!("AQ");
    app.write("jwks", &json!({"keys": [new.jwk(), private]}).to_string());
    app.reload("kept").await;
    assert_eq!(app.buyer(&hs256(SECRET)).await, 200);
    assert_eq!(app.buyer(&hs256(NEW_SECRET)).await, 401);
    assert_eq!((app.buyer(&old.token()).await, app.buyer(&new.token()).await), (200, 401));
    assert_eq!(app.operator("the-old-token-of-ann").await, 200);
    let parts = ["secrets: not replaced", "auth.jwks_file", "key 2", "private key", "remedy"];
    let log = until("the warning", async || {
        let log = app.server.log();
        parts.iter().all(|part| log.contains(part)).then_some(log)
    })
    .await;
    assert!(!log.contains(NEW_SECRET) && !log.contains("the-new-token"), "{log}");

    app.write("jwks", &json!({"keys": [new.jwk()]}).to_string());
    app.reload("replaced").await;
    assert_eq!((app.buyer(&hs256(SECRET)).await, app.buyer(&hs256(NEW_SECRET)).await), (401, 200));
    assert_eq!((app.buyer(&old.token()).await, app.buyer(&new.token()).await), (401, 200));
}
