//! The admin API calls of the bench.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodgate::cli::admin::AdminClient;
use floodgate::cli::output::{field, list};
use serde_json::{Value as Json, json};

use crate::metrics::Metrics;
use crate::process::poll;

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// An audit reads the whole ledger.
const AUDIT_TIMEOUT: Duration = Duration::from_mins(10);
const READY_TIMEOUT: Duration = Duration::from_mins(2);
/// SKU of every bench sale.
pub const SKU: &str = "bench";
/// Orders are due after this time, in seconds, unless they are to end.
pub const DAY_S: u64 = 86_400;

/// The admin API of one server under test.
#[derive(Debug)]
pub struct Admin(AdminClient);

impl Admin {
    /// The API at the internal listener of an own server.
    pub fn at(internal: SocketAddr) -> Result<Self> {
        Self::at_url(&format!("http://{internal}"), None)
    }

    /// The API at the internal listener `url`, with the token of this file.
    pub fn at_url(url: &str, token_file: Option<&Path>) -> Result<Self> {
        let token = token_file.map(std::fs::read_to_string).transpose()?;
        let token = token.map(|token| token.trim().into());
        Ok(Self(AdminClient::at(url, token, Path::new(""))?))
    }

    /// Opens a new sale of [`SKU`] whose orders are due after `window_s`; 0 = never.
    pub async fn open_sale(
        &self,
        sale: &str,
        stock: u32,
        buckets: u16,
        window_s: u64,
    ) -> Result<()> {
        let sku = json!({
            "sku_id": SKU,
            "title": "Bench",
            "price": 9900,
            "initial_stock": stock,
            "policy": { "kind": "one_per_buyer" },
            "buckets": buckets,
            "payment_window_s": window_s,
            "bar_lapsed": false,
        });
        Ok(self.0.open_sale(sale, "Bench", &[sku]).await?)
    }

    /// Closes a sale, so that it does not slow down the following rounds.
    pub async fn close_sale(&self, sale: &str) -> Result<()> {
        self.0.post(&["sales", sale, "close"], &json!({}), Some(CALL_TIMEOUT)).await?;
        Ok(())
    }

    /// Committed orders of a sale: stage `committed` of its funnel.
    pub async fn committed(&self, sale: &str) -> Result<u64> {
        self.stage(sale, "committed").await
    }

    /// Units of a sale that are left in the ledger, and in the buckets.
    pub async fn left(&self, sale: &str) -> Result<(u64, u64)> {
        let in_ledger = self.stage(sale, "left").await?;
        let sale = self.0.get(&["sales", sale], Some(CALL_TIMEOUT)).await?;
        let in_buckets = sale.pointer("/skus/0/stock_left").and_then(Json::as_u64);
        Ok((in_ledger, in_buckets.context("a SKU without stock_left")?))
    }

    async fn stage(&self, sale: &str, name: &str) -> Result<u64> {
        let funnel = self.0.get(&["sales", sale, "funnel"], Some(CALL_TIMEOUT)).await?;
        let stage = list(&funnel, "stages").iter().find(|stage| field(stage, "stage") == name);
        let count =
            stage.with_context(|| format!("the funnel has no stage `{name}`"))?.get("count");
        count.and_then(Json::as_u64).context("a store does not answer")
    }

    /// Waits until `wanted` orders are committed, at most `timeout`; returns how many are.
    pub async fn await_committed(&self, sale: &str, wanted: u64, timeout: Duration) -> Result<u64> {
        let check = async || self.committed(sale).await.map(|count| (count, count >= wanted));
        Ok(poll(timeout, check).await?.0)
    }

    /// Waits until nothing of a closed sale is under way, at most `timeout`; returns whether it is.
    pub async fn await_archivable(&self, sale: &str, timeout: Duration) -> Result<bool> {
        let check = async || {
            let waiting = self.0.get(&["sales", sale, "archive"], Some(AUDIT_TIMEOUT)).await?;
            let open = waiting.get("open").and_then(Json::as_array).context("no list of ends")?;
            Ok(((), open.is_empty()))
        };
        Ok(poll(timeout, check).await?.1)
    }

    /// Waits until there are `wanted` open dead letters, at most [`CALL_TIMEOUT`]; returns how many
    /// there are.
    pub async fn await_dead_letters(&self, wanted: u64) -> Result<u64> {
        let check = async || {
            let page = self.0.ask(&["dead-letters"], &[("limit", "1")], Some(CALL_TIMEOUT)).await?;
            let open = page.pointer("/counts/open").and_then(Json::as_u64);
            let open = open.context("dead letters are not counted")?;
            Ok((open, open >= wanted))
        };
        Ok(poll(CALL_TIMEOUT, check).await?.0)
    }

    /// Waits until the server is ready.
    pub async fn await_ready(&self) -> Result<()> {
        let check = async || Ok(((), self.probe("/readyz", CALL_TIMEOUT).await));
        let ((), is_ready) = poll(READY_TIMEOUT, check).await?;
        ensure!(is_ready, "the server does not become ready");
        Ok(())
    }

    /// Whether a path of the internal listener answers 2xx in time.
    pub async fn probe(&self, path: &str, within: Duration) -> bool {
        self.0.text(path, within).await.is_some()
    }

    /// Audits one sale or the whole ledger, until every invariant could be checked; returns the
    /// first violations.
    pub async fn audit(&self, sale: Option<&str>) -> Result<Vec<String>> {
        let body = json!({ "sale_id": sale, "repair": false });
        let check = async || {
            let verdict = self.0.post(&["audit"], &body, Some(AUDIT_TIMEOUT)).await;
            let verdict = verdict.context("audit")?;
            let could_tell = verdict.get("could_tell") == Some(&json!(true));
            Ok((verdict, could_tell))
        };
        let (verdict, could_tell) = poll(CALL_TIMEOUT, check).await?;
        ensure!(could_tell, "not every invariant could be checked: {:?}", verdict.get("notes"));
        violations(&verdict)
    }

    pub async fn metrics(&self) -> Result<Metrics> {
        let text = self.0.text("/metrics", CALL_TIMEOUT).await;
        text.map(Metrics).context("the server does not serve its metrics")
    }
}

fn violations(verdict: &Json) -> Result<Vec<String>> {
    let holds = verdict.get("holds").and_then(Json::as_bool);
    if holds.context("unexpected audit verdict")? {
        return Ok(Vec::new());
    }
    let text = |one| format!("{} ({})", field(one, "invariant"), field(one, "detail"));
    let named: Vec<String> = list(verdict, "violations").iter().take(5).map(text).collect();
    Ok(if named.is_empty() { vec!["unnamed violation".to_owned()] } else { named })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read() {
        let found = json!([{ "invariant": "NoOversell", "detail": "x" }]);
        let verdict = json!({ "holds": false, "violations": found, "n": 1 });
        assert_eq!(violations(&verdict).unwrap(), ["NoOversell (x)"]);
        assert_eq!(violations(&json!({ "holds": true })).unwrap(), [""; 0]);
        assert_eq!(violations(&json!({ "holds": false })).unwrap().len(), 1);
        assert!(violations(&json!({})).is_err());
    }
}
