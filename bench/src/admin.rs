//! The admin API calls of the bench, and the metrics of a server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodgate::cli::admin::AdminClient;
use floodgate::cli::output::{field, list};
use serde_json::{Value as Json, json};

use crate::process::poll;
use crate::stats::{Figures, whole};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// An audit reads the whole ledger.
const AUDIT_TIMEOUT: Duration = Duration::from_mins(10);
const READY_TIMEOUT: Duration = Duration::from_mins(2);
/// SKU of every bench sale.
pub const SKU: &str = "bench";
/// Orders are due after this time, in seconds, unless they are to end.
pub const DAY_S: u64 = 86_400;

/// The admin API of one server under test.
pub struct Admin(AdminClient);

impl Admin {
    /// The API at the internal listener `url`, with the token of this file.
    pub fn at(url: &str, token_file: Option<&Path>) -> Result<Self> {
        let token = token_file.map(std::fs::read_to_string).transpose()?;
        let token = token.map(|token| token.trim().into());
        Ok(Self(AdminClient::at(url, token, Path::new(""))?))
    }

    /// Opens a new sale of [`SKU`] in one bucket, whose orders are due after `window_s`; 0 = never.
    pub async fn open_sale(&self, sale: &str, stock: u32, window_s: u64) -> Result<()> {
        let sku = json!({
            "sku_id": SKU,
            "title": "Bench",
            "price": 9900,
            "initial_stock": stock,
            "policy": { "kind": "one_per_buyer" },
            "buckets": 1,
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

    pub async fn metrics(&self) -> Result<MetricsText> {
        let text = self.0.text("/metrics", CALL_TIMEOUT).await;
        text.map(MetricsText).context("the server does not serve its metrics")
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

/// All metrics of a server at one moment, in the text format.
pub struct MetricsText(String);

/// The components that batch, and the histograms of their batch sizes.
const BATCHES: [(&str, &str); 2] =
    [("gate", "floodgate_gate_batch_size"), ("ledger", "floodgate_writer_batch_size")];

impl MetricsText {
    /// A counter without labels; 0 if it is missing.
    pub fn count(&self, name: &str) -> u64 {
        whole(self.number(name))
    }

    fn number(&self, name: &str) -> f64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }

    /// The mean batch sizes since an earlier reading, of the components that had batches.
    pub fn batches_since(&self, earlier: &Self) -> Figures {
        let mean = |(component, name): (&'static str, &str)| {
            let [requests, batches] = ["sum", "count"].map(|part| {
                let name = format!("{name}_{part}");
                self.number(&name) - earlier.number(&name)
            });
            (batches > 0.0).then(|| (component, requests / batches))
        };
        BATCHES.into_iter().filter_map(mean).collect()
    }
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

    #[test]
    fn batches_are_those_of_the_round() {
        let read = |requests: u32, batches: u32| {
            MetricsText(format!(
                "# TYPE floodgate_gate_batch_size histogram\n\
                 floodgate_gate_batch_size_sum {requests}.0\n\
                 floodgate_gate_batch_size_count {batches}\n\
                 floodgate_gate_batch_size_bucket{{le=\"1.0\"}} 7\n"
            ))
        };
        assert_eq!(read(700, 30).batches_since(&read(100, 10)), [("gate", 30.0)]);
        assert_eq!(read(100, 10).batches_since(&read(100, 10)), []);
        assert_eq!(read(1, 30).count("floodgate_gate_batch_size_count"), 30);
    }
}
