//! What the events of orders cost: S8 and S11 of this bench next to those of an older one, from a
//! version without order events, in turn.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use floodgate::cli::output::{field, list};
use serde_json::Value as Json;

use crate::harness::Harness;
use crate::stats::{Round, Sample, grouped, row};
use crate::table::Row;

/// The goals that place orders: in batches on the ledger, and over HTTP.
const GOALS: [(&str, &str, &str); 2] =
    [("S8", "events S8", "mariadb"), ("S11", "events S11", "floodgate")];

/// The cost of events; not measured without `--without-events`.
pub(crate) async fn cost(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let Some(older) = &harness.args.without_events else {
        let why = "needs --without-events FILE, a floodgate-bench of a version without them";
        harness.not_measured.push(("events".to_owned(), why.to_owned()));
        return Ok(Vec::new());
    };
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut rounds = [Vec::new(), Vec::new()];
    for number in 1..=harness.args.rounds {
        let (with, without) = (measured(harness, &own)?, measured(harness, older)?);
        for ((id, _, process), rounds) in GOALS.iter().zip(&mut rounds) {
            let pair = (sample(&with, id, process)?, sample(&without, id, process)?);
            let [value, reference] = [pair.0.value, pair.1.value].map(grouped);
            harness.note(&format!("round {number}: {id} {value}/s, {reference}/s without events"));
            rounds.push(Round::pair(pair.0, pair.1));
        }
    }
    let remark = format!("without events: {}", older.display());
    let rows = GOALS.iter().zip(&rounds);
    rows.map(|((_, id, _), rounds)| row(id, rounds, Some(remark.clone()))).collect()
}

/// The table of one round of a bench, as JSON.
fn measured(harness: &Harness<'_>, bench: &Path) -> anyhow::Result<Json> {
    let args = harness.args;
    let only = GOALS.map(|(id, ..)| id).join(",");
    let mut command = Command::new(bench);
    command.args(["--table", "--json", "--rounds", "1", "--only", &only]);
    command.args(["--seconds", &args.seconds.to_string()]);
    command.args(["--connections", &args.connections.to_string()]);
    command.arg("--directory").arg(args.parent());
    let output = command.output().with_context(|| format!("cannot run {}", bench.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {errors}", bench.display());
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The product's rate in a goal of a table, with the cost of the process that was measured.
fn sample(table: &Json, id: &str, process: &'static str) -> anyhow::Result<Sample> {
    let row = list(table, "rows").iter().find(|row| field(row, "id") == id);
    let row = row.with_context(|| format!("{id} was not measured"))?;
    let number = |pointer| row.pointer(pointer).and_then(Json::as_f64);
    let value = number("/product/median").context("a row without a number")?;
    let costs = number("/product_us").map(|us| (process, us)).into_iter().collect();
    Ok(Sample { costs, ..Sample::of(value) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_and_costs_are_read_from_the_table_of_another_bench() {
        let table = json!({"rows": [
            {"id": "S9", "product": {"median": 1.0}, "product_us": 2.0},
            {"id": "S8", "product": {"median": 60_000.0}, "product_us": 12.5},
        ]});
        let found = sample(&table, "S8", "mariadb").unwrap();
        assert_eq!((found.value, found.costs), (60_000.0, vec![("mariadb", 12.5)]));
        assert!(sample(&table, "S11", "floodgate").is_err());
    }
}
