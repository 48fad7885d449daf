use std::time::Duration;

use anyhow::{Context, bail};
use chrono::{DateTime, SecondsFormat};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::clock;

/// An audit reads the whole ledger.
const AUDIT_TIMEOUT: Duration = Duration::from_mins(10);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// Sales of a bench run have begun a minute ago and go on for a day.
const BEGUN_MS: i64 = 60 * 1_000;
const LASTS_MS: i64 = 24 * 60 * 60 * 1_000;

/// The admin API of one server.
#[derive(Debug, Clone)]
pub(super) struct Admin {
    client: reqwest::Client,
    base: String,
    token: Option<String>,
}

/// What is sold in a bench run: one SKU.
#[derive(Debug, Clone)]
pub(super) struct BenchSale {
    pub(super) sale_id: String,
    pub(super) sku_id: String,
    pub(super) stock: u32,
    pub(super) policy: Value,
    pub(super) buckets: u16,
}

/// Verdict over the ledger.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Audit {
    pub(super) holds: bool,
    #[serde(default)]
    pub(super) violations: Vec<Violation>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Violation {
    pub(super) invariant: String,
    #[serde(default)]
    pub(super) detail: String,
}

#[derive(Debug, Deserialize)]
struct Funnel {
    stages: Vec<Stage>,
}

#[derive(Debug, Deserialize)]
struct Stage {
    stage: String,
    /// None while it cannot be counted.
    count: Option<u64>,
}

impl Admin {
    /// `base` is `http://host:port` of the internal listener.
    pub(super) fn new(base: &str, token: Option<String>) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(CALL_TIMEOUT).build()?;
        Ok(Self { client, base: base.trim_end_matches('/').to_owned(), token })
    }

    /// Creates a sale and opens it.
    pub(super) async fn open_sale(&self, sale: &BenchSale) -> anyhow::Result<()> {
        self.post("/admin/v1/sales", &sale.body()?, CALL_TIMEOUT).await?;
        let path = format!("/admin/v1/sales/{}/open", sale.sale_id);
        self.post(&path, &json!({}), CALL_TIMEOUT).await?;
        Ok(())
    }

    /// Closes a sale, so that it costs the following rounds nothing.
    pub(super) async fn close_sale(&self, sale: &BenchSale) -> anyhow::Result<()> {
        let path = format!("/admin/v1/sales/{}/close", sale.sale_id);
        self.post(&path, &json!({}), CALL_TIMEOUT).await?;
        Ok(())
    }

    /// Orders of a sale in the ledger.
    pub(super) async fn landed(&self, sale_id: &str) -> anyhow::Result<u64> {
        let path = format!("/admin/v1/sales/{sale_id}/funnel");
        let funnel: Funnel = serde_json::from_value(self.get(&path).await?)?;
        let landed = funnel.stages.iter().find(|stage| stage.stage == "landed");
        let landed = landed.context("the funnel has no stage `landed`")?;
        landed.count.context("the ledger does not answer")
    }

    /// Waits until `wanted` orders have landed, or for `patience`; returns how many have.
    pub(super) async fn await_landed(
        &self,
        sale_id: &str,
        wanted: u64,
        patience: Duration,
    ) -> anyhow::Result<u64> {
        let begin = clock::now_monotonic();
        loop {
            let landed = self.landed(sale_id).await?;
            if landed >= wanted || clock::now_monotonic().duration_since(begin) > patience {
                return Ok(landed);
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }

    /// Waits until there are so many open dead letters, or for as long as a call may take; how many
    /// there are.
    pub(super) async fn await_letters(&self, wanted: u64) -> anyhow::Result<u64> {
        let begin = clock::now_monotonic();
        loop {
            let letters = self.get("/admin/v1/dead-letters?limit=1").await?;
            let open = letters.pointer("/counts/open").and_then(Value::as_u64);
            let open = open.context("dead letters are not counted")?;
            if open >= wanted || clock::now_monotonic().duration_since(begin) > CALL_TIMEOUT {
                return Ok(open);
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }

    /// Checks all invariants, of one sale or of the whole ledger.
    pub(super) async fn audit(&self, sale_id: Option<&str>) -> anyhow::Result<Audit> {
        let mut body = json!({ "repair": false });
        if let (Some(sale_id), Value::Object(members)) = (sale_id, &mut body) {
            members.insert("sale_id".to_owned(), sale_id.into());
        }
        let verdict = self.post("/admin/v1/audit", &body, AUDIT_TIMEOUT).await?;
        serde_json::from_value(verdict).context("unexpected audit verdict")
    }

    /// Everything the server counts, as text.
    pub(super) async fn metrics(&self) -> anyhow::Result<String> {
        let request = self.client.get(format!("{}/metrics", self.base));
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        Ok(request.send().await?.error_for_status()?.text().await?)
    }

    /// Waits until the server says that it is ready.
    pub(super) async fn await_ready(&self, patience: Duration) -> anyhow::Result<()> {
        let begin = clock::now_monotonic();
        loop {
            let answer = self.client.get(format!("{}/readyz", self.base)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            if clock::now_monotonic().duration_since(begin) > patience {
                bail!("the server at {} does not become ready", self.base);
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(self.client.get(format!("{}{path}", self.base)), path).await
    }

    async fn post(&self, path: &str, body: &Value, timeout: Duration) -> anyhow::Result<Value> {
        let request = self.client.post(format!("{}{path}", self.base)).json(body).timeout(timeout);
        self.send(request, path).await
    }

    async fn send(&self, request: reqwest::RequestBuilder, path: &str) -> anyhow::Result<Value> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let failed = || format!("admin call {path}");
        let answer = request.send().await.with_context(failed)?;
        let status = answer.status();
        let text = answer.text().await.with_context(failed)?;
        if !status.is_success() {
            bail!("{}: {status}: {text}", failed());
        }
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }
}

impl BenchSale {
    fn body(&self) -> anyhow::Result<Value> {
        let now = clock::wall_ms();
        Ok(json!({
            "sale_id": self.sale_id,
            "title": "Bench",
            "starts_at": rfc3339(now - BEGUN_MS)?,
            "ends_at": rfc3339(now + LASTS_MS)?,
            "ticket_required": false,
            "skus": [{
                "sku_id": self.sku_id,
                "title": "Bench",
                "price": 9900,
                "initial_stock": self.stock,
                "policy": self.policy,
                "buckets": self.buckets,
                "payment_window_s": LASTS_MS / 1_000,
                "bar_lapsed": false,
            }],
        }))
    }
}

impl Audit {
    /// `holds`, or the first violations.
    pub(super) fn line(&self) -> String {
        if self.holds {
            return "holds".to_owned();
        }
        let shown: Vec<_> = self
            .violations
            .iter()
            .take(5)
            .map(|violation| format!("{} ({})", violation.invariant, violation.detail))
            .collect();
        format!("VIOLATED: {}", shown.join("; "))
    }
}

fn rfc3339(ms: i64) -> anyhow::Result<String> {
    let time = DateTime::from_timestamp_millis(ms).context("time out of range")?;
    Ok(time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        assert_eq!(rfc3339(1_700_000_000_123).unwrap(), "2023-11-14T22:13:20.123Z");
    }

    #[test]
    fn verdicts_are_read() {
        let json =
            r#"{"holds":false,"violations":[{"invariant":"NoOversell","detail":"x"}],"n":1}"#;
        let audit: Audit = serde_json::from_str(json).unwrap();
        assert_eq!(audit.line(), "VIOLATED: NoOversell (x)");
        let audit: Audit = serde_json::from_str(r#"{"holds":true}"#).unwrap();
        assert_eq!(audit.line(), "holds");
    }
}
