//! A complete server in the test process, on free ports and with its own ledger.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::app::AppThread;
use floodgate::config::{Settings, Tier};
use floodgate::runtime::clock::wall_ms;
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::admin;
use super::servers::mariadb::MariaDb;
use super::servers::rabbitmq::RabbitMq;
use super::servers::redis::Redis;
use super::wait::until;

/// A running server; it stops when the test ends.
pub struct TestApp {
    pub public: SocketAddr,
    pub internal: SocketAddr,
    pub client: Client,
    pub settings: Settings,
    app: AppThread,
    fixture: Option<Stores>,
}

/// The stores of a tier; they must outlive the server.
pub struct Stores {
    _folder: TempDir,
    /// The stock, in tiers `gate` and `pipeline`.
    pub redis: Option<Redis>,
    /// The ledger, where it is not SQLite.
    pub mariadb: Option<MariaDb>,
    /// The broker, in tier `pipeline`.
    pub rabbit: Option<RabbitMq>,
}

/// Settings of a tier on fresh stores: SQLite for single-process tiers, Redis and MariaDB for
/// multi-process tiers.
pub fn fresh_settings(tier: Tier) -> (Settings, Stores) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::with_ledger(&url_of(folder.path().join("ledger.db")));
    settings.tier = tier;
    // Tests that expect time-outs set shorter limits.
    settings.http.answer_deadline_ms = 20_000;
    settings.redis.command_timeout_ms = 10_000;
    // Tests call faster than buyers; those of the limits set them.
    (settings.limits.buyer_per_second, settings.limits.buyer_per_minute) = (0, 0);
    let mut fixture = Stores { _folder: folder, redis: None, mariadb: None, rabbit: None };
    if matches!(tier, Tier::Gate | Tier::Pipeline) {
        let redis = fixture.redis.insert(Redis::start());
        settings.redis.url = redis.url();
        settings.ledger.url = fixture.mariadb.insert(MariaDb::start()).url();
    }
    if tier == Tier::Pipeline {
        settings.amqp.url = fixture.rabbit.insert(RabbitMq::start()).url();
    }
    (settings, fixture)
}

/// Tier `ledger` on MariaDB.
pub fn ledger_on_mariadb() -> (Settings, Stores) {
    let (mut settings, mut fixture) = fresh_settings(Tier::Ledger);
    settings.ledger.url = fixture.mariadb.insert(MariaDb::start()).url();
    (settings, fixture)
}

pub fn url_of(file: PathBuf) -> String {
    format!("sqlite://{}", file.display())
}

impl TestApp {
    /// A tier on fresh stores.
    pub fn fresh(tier: Tier) -> Self {
        Self::on(fresh_settings(tier))
    }

    /// A server that owns its stores.
    pub fn on((settings, fixture): (Settings, Stores)) -> Self {
        let mut app = Self::start(settings);
        app.fixture = Some(fixture);
        app
    }

    /// A server with these settings.
    pub fn start(settings: Settings) -> Self {
        let app = AppThread::start(settings.clone()).unwrap();
        let listening = app.listening();
        let client = Client::builder().pool_max_idle_per_host(256).build().unwrap();
        // A role that does not sell has no public listener: port 1 refuses connections.
        let public = listening.public.unwrap_or_else(|| ([127, 0, 0, 1], 1).into());
        let internal = listening.internal;
        Self { public, internal, client, settings, app, fixture: None }
    }

    /// The Redis of the tier's stock.
    pub fn redis(&self) -> &Redis {
        self.fixture.as_ref().and_then(|fixture| fixture.redis.as_ref()).unwrap()
    }

    /// Shuts the server down gracefully.
    pub fn stop(self) {
        self.app.stop().unwrap();
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.public)
    }

    /// Sends a verb of an operator, and hangs up while `ledger` keeps it waiting for its lock.
    pub async fn hang_up(&self, ledger: &mut SqliteConnection, path: &str, body: &str) {
        let call = format!(
            "POST /admin/v1{path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.internal,
            body.len(),
        );
        ledger.batch_execute("BEGIN IMMEDIATE").unwrap();
        let mut caller = TcpStream::connect(self.internal).await.unwrap();
        caller.write_all(call.as_bytes()).await.unwrap();
        sleep(Duration::from_millis(200)).await;
        drop(caller);
        sleep(Duration::from_millis(200)).await;
        ledger.batch_execute("ROLLBACK").unwrap();
    }

    /// Calls the admin API until the call succeeds, as [`admin::call`]. Without a body: `GET`.
    pub async fn admin(&self, path: &str, body: Option<Json>) -> Json {
        let url = format!("http://{}/admin/v1{path}", self.internal);
        until(path, || async {
            let call = match &body {
                Some(body) => self.client.post(&url).json(body),
                None => self.client.get(&url),
            };
            admin::succeeded(path, call.send().await.unwrap()).await
        })
        .await
    }

    /// Creates and opens a sale of one SKU, `sku`.
    pub async fn open_sale(&self, sale: &str, policy: Json, stock: u32, buckets: u16) {
        self.admin("/sales", Some(sale_body(sale, policy, stock, buckets))).await;
        self.admin(&format!("/sales/{sale}/open"), Some(json!({}))).await;
    }

    /// Sends one purchase.
    pub async fn buy(&self, sale: &str, buyer: u64, body: Json) -> Response {
        let call = self.client.post(self.url(&format!("/v1/buy/{sale}")));
        call.header("x-buyer-id", buyer.to_string()).json(&body).send().await.unwrap()
    }

    /// Sends one purchase and returns the response's status and document.
    pub async fn buy_json(&self, sale: &str, buyer: u64, body: Json) -> (StatusCode, Json) {
        let response = self.buy(sale, buyer, body).await;
        (response.status(), response.json().await.unwrap())
    }

    /// Sends one purchase; if it is queued, polls its status until it succeeds. Returns the last
    /// document.
    pub async fn bought(&self, sale: &str, buyer: u64, body: Json) -> Json {
        let (status, answer) = self.buy_json(sale, buyer, body).await;
        if status == StatusCode::OK {
            return answer;
        }
        assert_eq!((status, &answer["state"]), (StatusCode::ACCEPTED, &json!("queued")));
        let path = format!("/v1/requests/{}", answer["request_id"].as_str().unwrap());
        until("an order", async || {
            let (status, view) = self.get(&path, buyer).await;
            assert_eq!(status, StatusCode::OK, "{view}");
            assert_ne!(view["state"], "failed", "{view}");
            (view["state"] == "success").then_some(view)
        })
        .await
    }

    /// Requests a new request id.
    pub async fn request_id(&self, sale: &str, buyer: u64) -> String {
        let call = self.client.post(self.url(&format!("/v1/sales/{sale}/request-ids")));
        let call = call.header("x-buyer-id", buyer.to_string()).json(&json!({"sku_id": "sku"}));
        let json: Json = call.send().await.unwrap().json().await.unwrap();
        json["request_id"].as_str().unwrap_or_else(|| panic!("{json}")).to_owned()
    }

    /// Reads a public path as a buyer.
    pub async fn get(&self, path: &str, buyer: u64) -> (StatusCode, Json) {
        let call = self.client.get(self.url(path)).header("x-buyer-id", buyer.to_string());
        let response = call.send().await.unwrap();
        (response.status(), response.json().await.unwrap())
    }

    /// Asserts that no audit finds a violation, and repeats the audit until it can evaluate every
    /// invariant: the last accepted requests may still be in flight.
    pub async fn assert_audit_holds(&self) -> Json {
        until("an audit of every invariant", || async {
            let report = self.admin("/audit", Some(json!({}))).await;
            assert!(report["holds"] == true, "{report:#}");
            (report["could_tell"] == true).then(|| {
                admin::assert_all_hold(&report);
                report
            })
        })
        .await
    }

    /// As [`admin::stage`].
    pub async fn stage(&self, sale: &str, stage: &str) -> u64 {
        admin::stage(self.internal, sale, stage).await
    }
}

/// The document with which an operator creates a sale of one SKU, `sku`.
pub fn sale_body(sale: &str, policy: Json, stock: u32, buckets: u16) -> Json {
    let at = |ms: i64| chrono::DateTime::from_timestamp_millis(ms).unwrap().to_rfc3339();
    json!({
        "sale_id": sale, "title": "A sale", "ticket_required": false,
        "starts_at": at(wall_ms() - 1_000), "ends_at": at(wall_ms() + 3_600_000),
        "skus": [{
            "sku_id": "sku", "title": "A SKU", "price": 100, "initial_stock": stock,
            "policy": policy, "buckets": buckets, "payment_window_s": 900, "bar_lapsed": false,
        }],
    })
}
