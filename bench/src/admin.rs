//! What the bench asks a server's admin API.

use std::time::Duration;

use anyhow::{Context, ensure};
use floodgate::cli::admin::AdminClient;
use floodgate::cli::output::{field, list};
use secrecy::SecretString;
use serde_json::{Value as Json, json};

use crate::process::poll;

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// An audit reads the whole ledger.
const AUDIT_TIMEOUT: Duration = Duration::from_mins(10);
const READY_PATIENCE: Duration = Duration::from_mins(2);
/// SKU of every bench sale.
pub(crate) const SKU: &str = "bench";

/// The admin API of one server under test.
#[derive(Debug)]
pub(crate) struct Admin(AdminClient);

impl Admin {
    /// The API at the internal listener `url`.
    pub(crate) fn at(url: &str, token: Option<SecretString>) -> anyhow::Result<Self> {
        Ok(Self(AdminClient::at(url, token)?))
    }

    /// Opens a new sale of [`SKU`].
    pub(crate) async fn open_bench_sale(
        &self,
        sale: &str,
        stock: u32,
        policy: &Json,
        buckets: u16,
    ) -> anyhow::Result<()> {
        let sku = json!({
            "sku_id": SKU,
            "title": "Bench",
            "price": 9900,
            "initial_stock": stock,
            "policy": policy,
            "buckets": buckets,
            "payment_window_s": 86_400,
            "bar_lapsed": false,
        });
        Ok(self.0.open_sale(sale, "Bench", &sku).await?)
    }

    /// Closes a sale, so that it costs the following rounds nothing.
    pub(crate) async fn close_sale(&self, sale: &str) -> anyhow::Result<()> {
        self.0.post(&["sales", sale, "close"], &json!({}), Some(CALL_TIMEOUT)).await?;
        Ok(())
    }

    /// Orders of a sale in the ledger.
    pub(crate) async fn landed(&self, sale: &str) -> anyhow::Result<u64> {
        let funnel = self.0.get(&["sales", sale, "funnel"], Some(CALL_TIMEOUT)).await?;
        let landed = list(&funnel, "stages").iter().find(|stage| field(stage, "stage") == "landed");
        let landed = landed.context("the funnel has no stage `landed`")?.get("count");
        landed.and_then(Json::as_u64).context("the ledger does not answer")
    }

    /// Waits until `wanted` orders have landed, or for `patience`; returns how many have.
    pub(crate) async fn await_landed(
        &self,
        sale: &str,
        wanted: u64,
        patience: Duration,
    ) -> anyhow::Result<u64> {
        let look = async || self.landed(sale).await.map(|landed| (landed, landed >= wanted));
        Ok(poll(patience, look).await?.0)
    }

    /// Waits until there are so many open dead letters, or for as long as a call may take; how many
    /// there are.
    pub(crate) async fn await_letters(&self, wanted: u64) -> anyhow::Result<u64> {
        let look = async || {
            let page = self.0.ask(&["dead-letters"], &[("limit", "1")], Some(CALL_TIMEOUT)).await?;
            let open = page.pointer("/counts/open").and_then(Json::as_u64);
            let open = open.context("dead letters are not counted")?;
            Ok((open, open >= wanted))
        };
        Ok(poll(CALL_TIMEOUT, look).await?.0)
    }

    /// Waits until the server says that it is ready.
    pub(crate) async fn await_ready(&self) -> anyhow::Result<()> {
        let look = async || Ok(((), self.0.text("/readyz", CALL_TIMEOUT).await.is_some()));
        let ((), is_ready) = poll(READY_PATIENCE, look).await?;
        ensure!(is_ready, "the server does not become ready");
        Ok(())
    }

    /// Checks all invariants, of one sale or of the whole ledger: the first violations.
    pub(crate) async fn audit(&self, sale: Option<&str>) -> anyhow::Result<Vec<String>> {
        let body = json!({ "sale_id": sale, "repair": false });
        let verdict = self.0.post(&["audit"], &body, Some(AUDIT_TIMEOUT)).await;
        violations(&verdict.context("audit")?)
    }

    /// Everything the server counts, as text.
    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        self.0.text("/metrics", CALL_TIMEOUT).await.context("the server does not tell its metrics")
    }
}

fn violations(verdict: &Json) -> anyhow::Result<Vec<String>> {
    let holds = verdict.get("holds").and_then(Json::as_bool);
    if holds.context("unexpected audit verdict")? {
        return Ok(Vec::new());
    }
    let shown = |one| format!("{} ({})", field(one, "invariant"), field(one, "detail"));
    let named: Vec<String> = list(verdict, "violations").iter().take(5).map(shown).collect();
    Ok(if named.is_empty() { vec!["without a name".to_owned()] } else { named })
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
