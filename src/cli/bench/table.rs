use serde::Serialize;

use super::BenchArgs;
use super::goals;
use super::lab::Lab;
use super::machine::Machine;
use super::million::{self, LargeStart};
use super::overload;
use super::scratch::Scratch;
use super::stats::{Goal, Spread, grouped};
use crate::cli::output::Output;

/// A range of ratios wider than this share of the median is pointed out.
const WIDE: f64 = 0.15;
/// A share of time taken by neighbours above this is pointed out.
const STOLEN: f64 = 0.02;
/// The same for processes on this machine that have no part in the bench.
const OTHERS: f64 = 0.05;

/// One goal, measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) product: Spread,
    pub(super) yardstick: Spread,
    pub(super) unit: &'static str,
    /// Of the pairs' ratios, not of the medians.
    pub(super) ratio: Spread,
    pub(super) goal: Goal,
    /// Core-microseconds of the server for each answer.
    pub(super) product_us: f64,
    pub(super) yardstick_us: f64,
    /// What the generator itself used during the product's rounds.
    pub(super) generator_cores: f64,
    pub(super) generator_us: f64,
    /// Requests without an answer: product, yardstick.
    pub(super) incomplete: (u64, u64),
    pub(super) remark: Option<String>,
}

/// The whole table.
#[derive(Debug, Serialize)]
struct Table {
    machine: Machine,
    rounds: u32,
    seconds: u64,
    connections: usize,
    rows: Vec<Row>,
    large_start: Option<LargeStart>,
    stolen_max: f64,
    others_max: f64,
    /// Why the table does not count; empty when it does.
    void: Vec<String>,
}

/// Measures every goal and prints the table; false when it is void.
pub(super) async fn run(args: &BenchArgs) -> anyhow::Result<bool> {
    let scratch = Scratch::new(args.directory.as_deref())?;
    let machine = Machine::look(scratch.path())?;
    let mut lab = Lab::new(args)?;
    let rows = measure_goals(&mut lab).await;
    let large_start = if args.skip_million {
        None
    } else {
        lab.say("start with a large ledger");
        let start = million::start(&mut lab).await;
        lab.keep_going("start with a large ledger", start)
    };
    let table = Table {
        machine,
        rounds: args.rounds,
        seconds: args.seconds,
        connections: args.connections,
        rows,
        large_start,
        stolen_max: lab.stolen_max,
        others_max: lab.others_max,
        void: lab.void,
    };
    Output::new(args.json).data(&table, || table.markdown())?;
    Ok(table.void.is_empty())
}

/// A goal that cannot be measured voids the table, but the others are still shown.
async fn measure_goals(lab: &mut Lab<'_>) -> Vec<Row> {
    lab.say("S1: sold-out answers");
    let measured = goals::sold_out(lab).await;
    let mut rows = lab.keep_going("S1", measured).unwrap_or_default();
    lab.say("S11: durable purchases");
    let measured = goals::accepted(lab).await;
    let Some((row, maximum)) = lab.keep_going("S11", measured) else { return rows };
    rows.push(row);
    lab.say("S12: light load");
    let measured = goals::light_load(lab, maximum).await;
    rows.extend(lab.keep_going("S12", measured));
    lab.say("S13: heavy load");
    let measured = goals::heavy_load(lab, maximum).await;
    rows.extend(lab.keep_going("S13", measured));
    lab.say("S14: overload");
    let measured = overload::goodput(lab, maximum).await;
    rows.extend(lab.keep_going("S14", measured));
    rows
}

impl Table {
    fn markdown(&self) -> String {
        let mut lines = vec![
            format!("Machine: {}.", self.machine.line()),
            format!(
                "{} pairs of {} s each, {} connections (open loops 8 times as many); medians, \
                 ratios with their range over the pairs.",
                self.rounds, self.seconds, self.connections
            ),
            String::new(),
            "| id | goal | floor | aim | product | yardstick | ratio | verdict | core-µs product \
             / yardstick | generator |"
                .to_owned(),
            "|---|---|---|---|---|---|---|---|---|---|".to_owned(),
        ];
        lines.extend(self.rows.iter().map(Row::markdown));
        lines.push(String::new());
        lines.extend(self.rows.iter().flat_map(Row::remarks));
        if let Some(start) = &self.large_start {
            lines.push(format!("* {}.", start.line()));
        }
        if self.stolen_max > STOLEN {
            let percent = self.stolen_max * 100.0;
            lines.push(format!("* neighbours took up to {percent:.1} % of the machine's time."));
        }
        if self.others_max > OTHERS {
            let percent = self.others_max * 100.0;
            lines.push(format!("* other processes took up to {percent:.0} % of a measurement."));
        }
        match self.void.as_slice() {
            [] => lines.push("* every audit holds.".to_owned()),
            reasons => lines.extend(reasons.iter().map(|why| format!("* **VOID**: {why}."))),
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

impl Row {
    fn markdown(&self) -> String {
        let (floor, aim) = self.goal.columns();
        let Spread { median, min, max } = self.ratio;
        let (id, what, unit) = (self.id, self.what, self.unit);
        format!(
            "| {id} | {what} | {floor} | {aim} | {}{unit} | {}{unit} | {median:.2}x ({min:.2} to \
             {max:.2}) | {} | {:.1} / {:.1} | {:.1} µs, {:.2} cores |",
            amount(self.product.median),
            amount(self.yardstick.median),
            self.goal.verdict(median),
            self.product_us,
            self.yardstick_us,
            self.generator_us,
            self.generator_cores,
        )
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.ratio.width() > WIDE {
            let percent = self.ratio.width() * 100.0;
            remarks.push(format!("* {}: the pairs differ by {percent:.0} %.", self.id));
        }
        if self.incomplete != (0, 0) {
            let (product, yardstick) = self.incomplete;
            remarks.push(format!(
                "* {}: requests without an answer: {product} product, {yardstick} yardstick.",
                self.id
            ));
        }
        if let Some(remark) = &self.remark {
            remarks.push(format!("* {}: {remark}.", self.id));
        }
        remarks
    }
}

/// Small numbers keep a decimal.
fn amount(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { grouped(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_columns_as_the_header() {
        let spread = Spread { median: 0.85, min: 0.7, max: 0.9 };
        let row = Row {
            id: "S1",
            what: "answers",
            product: Spread { median: 34_000.0, ..spread },
            yardstick: Spread { median: 40_000.0, ..spread },
            unit: "/s",
            ratio: spread,
            goal: Goal::AtLeast { floor: 0.8, aim: 0.92 },
            product_us: 21.0,
            yardstick_us: 19.0,
            generator_cores: 0.4,
            generator_us: 6.0,
            incomplete: (2, 0),
            remark: Some("remark".to_owned()),
        };
        let line = row.markdown();
        assert_eq!(line.matches('|').count(), 11);
        assert!(line.contains("34,000/s") && line.contains("floor met"), "{line}");
        assert_eq!(row.remarks().len(), 3);
    }
}
