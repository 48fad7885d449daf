use serde::Serialize;

use super::BenchArgs;
use super::lab::Lab;
use super::machine::Machine;
use super::million::{self, LargeStart};
use super::scratch::Scratch;
use super::stats::{Goal, Spread, grouped};
use super::{
    backlog, decide, gate, goals, memory, orders, overload, pipeline, poison, relay, takeover,
};
use crate::cli::output::Output;

/// Every goal of the table.
pub(super) const GOALS: [&str; 19] = [
    "S1",
    "S2",
    "S3",
    "S4",
    "S5",
    "S6",
    "S7",
    "S8",
    "S9",
    "S10",
    "S11",
    "S12",
    "S13",
    "S14",
    "S15",
    "S17",
    "poison",
    "sustained",
    "backlog",
];

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
    /// `None`: the goal is a number.
    pub(super) yardstick: Option<Spread>,
    pub(super) unit: &'static str,
    /// Of the pairs' ratios, not of the medians.
    pub(super) ratio: Option<Spread>,
    pub(super) goal: Goal,
    /// Mean sizes of the product's batches, by who made them.
    pub(super) batches: Vec<(&'static str, f64)>,
    /// Core-microseconds of the server for each operation.
    pub(super) product_us: f64,
    pub(super) yardstick_us: Option<f64>,
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
    /// Goals that cannot be measured on this machine, and why.
    not_measured: Vec<(String, String)>,
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
    let large_start = if args.skip_million || !args.only.is_empty() {
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
        not_measured: lab.not_measured,
        large_start,
        stolen_max: lab.stolen_max,
        others_max: lab.others_max,
        void: lab.void,
    };
    Output::new(args.json).data(&table, || table.markdown())?;
    Ok(table.void.is_empty())
}

/// A goal that fails voids the table, but the others are still shown.
async fn measure_goals(lab: &mut Lab<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    macro_rules! measure {
        ($($id:literal),+; $what:literal, $goal:path) => {
            if lab.wants(&[$($id),+]) {
                lab.say(concat!($($id, " "),+, $what));
                let measured = $goal(lab).await;
                let ids = [$($id),+].into_iter().filter(|id| lab.wants(&[id]));
                let ids: Vec<&str> = ids.collect();
                rows.extend(lab.keep_going(&ids.join(", "), measured).unwrap_or_default());
            }
        };
    }
    measure!("S1"; "sold-out answers", goals::sold_out);
    measure!("S2"; "commands for sold-out answers", gate::commands);
    measure!("S3"; "gate decisions", decide::one_by_one);
    measure!("S4"; "gate decisions, pipelined", decide::pipelined);
    measure!("S5"; "purchases, tier gate", gate::purchases);
    measure!("S6", "S7"; "outbox to broker", relay::relay);
    measure!("S8", "S9"; "orders in MariaDB", orders::ledger);
    measure!("S10"; "HTTP to ledger", pipeline::end_to_end);
    measure!("S11", "S12", "S13", "S14"; "durable purchases", embedded);
    measure!("S15"; "memory of Redis", memory::bytes);
    measure!("S17"; "death of a relay", takeover::takeover);
    measure!("poison"; "malformed messages", poison::poison);
    measure!("sustained"; "HTTP to ledger, without a break", pipeline::sustained);
    measure!("backlog"; "a broker that was down", backlog::backlog);
    rows.retain(|row| lab.wants(&[row.id.split(' ').next().unwrap_or_default()]));
    rows
}

/// The goals that are relative to the maximum of durable purchases.
async fn embedded(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let (row, maximum) = goals::accepted(lab).await?;
    let mut rows = vec![row];
    if lab.wants(&["S12"]) {
        lab.say("S12 light load");
        let measured = goals::light_load(lab, maximum).await;
        rows.extend(lab.keep_going("S12", measured));
    }
    if lab.wants(&["S13"]) {
        lab.say("S13 heavy load");
        let measured = goals::heavy_load(lab, maximum).await;
        rows.extend(lab.keep_going("S13", measured));
    }
    if lab.wants(&["S14"]) {
        lab.say("S14 overload");
        let measured = overload::goodput(lab, maximum).await;
        rows.extend(lab.keep_going("S14", measured));
    }
    Ok(rows)
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
            "| id | goal | floor | aim | product | yardstick | ratio | verdict | mean batch | \
             core-µs product / yardstick | generator |"
                .to_owned(),
            "|---|---|---|---|---|---|---|---|---|---|---|".to_owned(),
        ];
        lines.extend(self.rows.iter().map(Row::markdown));
        lines.extend(
            self.not_measured
                .iter()
                .map(|(id, why)| format!("| {id} | NOT MEASURED: {why} | | | | | | | | | |")),
        );
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
        for (id, why) in &self.not_measured {
            lines.push(format!("* **NOT MEASURED**: {id}: {why}."));
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
        let (id, what, unit) = (self.id, self.what, self.unit);
        let none = || "-".to_owned();
        let yardstick = self.yardstick.map(|side| format!("{}{unit}", amount(side.median)));
        let ratio = self
            .ratio
            .map(|Spread { median, min, max }| format!("{median:.2}x ({min:.2} to {max:.2})"));
        let judged = self.ratio.unwrap_or(self.product).median;
        let batches: Vec<_> =
            self.batches.iter().map(|(name, size)| format!("{name} {size:.1}")).collect();
        format!(
            "| {id} | {what} | {floor} | {aim} | {}{unit} | {} | {} | {} | {} | {} / {} | {} |",
            amount(self.product.median),
            yardstick.unwrap_or_else(none),
            ratio.unwrap_or_else(none),
            self.goal.verdict(judged),
            if batches.is_empty() { none() } else { batches.join(", ") },
            cost(self.product_us),
            self.yardstick_us.map_or_else(none, cost),
            match self.generator_us {
                0.0 => none(),
                us => format!("{us:.1} µs, {:.2} cores", self.generator_cores),
            },
        )
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(ratio) = self.ratio.filter(|ratio| ratio.width() > WIDE) {
            let percent = ratio.width() * 100.0;
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

/// Nothing where no time was measured.
fn cost(us: f64) -> String {
    if us > 0.0 { format!("{us:.1}") } else { "-".to_owned() }
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
            yardstick: Some(Spread { median: 40_000.0, ..spread }),
            unit: "/s",
            ratio: Some(spread),
            goal: Goal::AtLeast { floor: 0.8, aim: 0.92 },
            batches: vec![("gate", 31.25), ("ledger", 60.0)],
            product_us: 21.0,
            yardstick_us: Some(19.0),
            generator_cores: 0.4,
            generator_us: 6.0,
            incomplete: (2, 0),
            remark: Some("remark".to_owned()),
        };
        let line = row.markdown();
        assert_eq!(line.matches('|').count(), 12);
        assert!(line.contains("34,000/s") && line.contains("floor met"), "{line}");
        assert!(line.contains("| gate 31.2, ledger 60.0 |"), "{line}");
        assert_eq!(row.remarks().len(), 3);
    }
}
