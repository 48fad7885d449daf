use anyhow::Result;
use floodgate::cli::output::Output;
use serde::Serialize;

use super::{
    connections, gate, hostile, http, large_ledger, order_life, orders, pipeline, relay,
    relay_faults,
};
use crate::args::BenchFlags;
use crate::harness::{Findings, Harness};
use crate::meter::Machine;
use crate::stats::{
    Figures, Goal, GoalKind, Results, Round, RoundSample, Spread, amount, medians, shown,
};

macro_rules! goals {
    ($($measure:path, $title:literal, {
        $($id:literal $kind:ident $floor:literal $aim:literal $unit:literal $what:literal;)+
    })+) => {
        /// Every row: id, description, limits (floor and aim) and unit. The first word of a row's
        /// id is its goal.
        const ROWS: &[(&str, &str, Goal, &str)] = &[$($((
            $id,
            $what,
            Goal { kind: GoalKind::$kind, floor: $floor, aim: $aim },
            $unit,
        )),+),+];

        /// Measures the selected goals; a failure does not stop the others.
        async fn measure_goals(harness: &mut Harness) {
            $(measure(harness, &[$($id),+], $title, $measure).await;)+
        }
    };
}

goals! {
    http::sold_out, "sold-out answers", {
        "S1" AtLeast 0.85 0.95 "/s" "sold-out answers per second";
        "S1 cpu" AtMost 1.1 1.0 " µs" "core-µs per sold-out answer";
    }
    http::commands, "commands for sold-out answers", {
        "S2" Count 10.0 0.0 "" "Redis commands per 100,000 sold-out answers";
    }
    gate::one_by_one, "gate decisions", {
        "S3" AtLeast 2.0 6.0 "/s" "gate decisions per second against one EVALSHA each";
    }
    gate::pipelined, "gate decisions, pipelined", {
        "S4" AtLeast 1.5 4.0 "/s" "the same against a pipeline of 16";
    }
    http::purchases, "purchases, tier gate", {
        "S5" AtLeast 0.50 0.70 "/s" "purchases per second, tier gate, orders in MariaDB";
    }
    relay::relay, "outbox to broker", {
        "S6" AtLeast 0.90 1.0 "/s" "relay, one order in each message, against a raw publish loop";
        "S7" AtLeast 5.0 15.0 "/s" "relay, orders in messages of 64, against the same";
    }
    orders::ledger, "orders in MariaDB", {
        "S8" AtLeast 20.0 60.0 "/s" "orders per second in MariaDB, against one transaction each";
        "S9" AtLeast 0.60 0.85 "/s" "the same against a raw multi-row loader";
    }
    pipeline::end_to_end, "HTTP to ledger", {
        "S10" AtLeast 6.0 12.0 "/s"
            "orders committed per second, tier pipeline, against everything one by one";
        "S20" Count 80.0 50.0 " µs" "core-µs of one committed order, all server processes together";
    }
    http::durable, "durable purchases", {
        "S11" AtLeast 0.55 0.75 "/s" "durable purchases per second";
    }
    http::light_load, "light load", {
        "S12" AtMost 1.1 1.0 " µs" "p50 at 5 % load, batching against batch = 1";
    }
    http::heavy_load, "heavy load", {
        "S13" AtMost 5.0 2.0 " µs" "p99 at 70 % of the maximum, open loop";
    }
    http::overload, "overload", {
        "S14" AtLeast 0.90 0.98 "/s" "purchases per second at 3x overload against the peak";
    }
    connections::connections, "connections that wait", {
        "S16 idle" Count 24.0 12.0 " KiB"
            "memory of one idle connection of 10,000, its socket included";
        "S16 idle rate" AtLeast 0.90 0.98 "/s" "sold-out answers beside these, against alone";
        "S16 streams" Count 24.0 12.0 " KiB"
            "memory of one event stream of 10,000, its socket included";
        "S16 streams rate" AtLeast 0.90 0.98 "/s" "sold-out answers beside these, against alone";
    }
    connections::many_connections, "100,000 connections", {
        "many" Count 24.0 12.0 " KiB"
            "memory of one of 100,000 connections to eight processes, its socket included";
    }
    hostile::hostile, "honest buyers beside hostile clients", {
        "hostile" AtLeast 0.80 1.0 " %"
            "honest purchases that succeed beside 5,000 hostile clients, against alone";
        "hostile p99" AtMost 1.2 1.0 " µs" "p99 of these, against alone";
        "hostile probes" Count 0.0 0.0 "" "probes without an answer within a second beside these";
    }
    relay_faults::takeover, "crash of a relay", {
        "S17" Count 5.0 1.0 " s"
            "seconds beyond the heartbeat until what a killed relay held is published";
        "S17 recovery" AtLeast 0.90 1.0 "/s" "relay that survives another, against a relay alone";
    }
    large_ledger::audit, "audit of a large ledger", {
        "S19" Count 200.0 64.0 " MiB"
            "memory that an audit of 10,000,000 orders adds to the server";
    }
    relay_faults::redis_restart, "restart of Redis", {
        "S23" Count 10.0 3.0 " s"
            "seconds from a kill of Redis until a purchase is accepted again, orders waiting";
    }
    pipeline::poison, "malformed messages", {
        "poison" AtLeast 0.90 0.98 "/s"
            "orders committed per second among malformed messages, against none of these";
    }
    pipeline::sustained, "HTTP to ledger, without a break", {
        "sustained" Number 10_000.0 20_000.0 "/s"
            "orders committed per second, tier pipeline, without a break";
    }
    relay_faults::broker_down, "a broker that was down", {
        "backlog drain" AtLeast 0.9 1.0 "/s"
            "1,000,000 orders that waited, drained by one relay, against its steady rate";
    }
    order_life::due, "orders due at once", {
        "due" Count 60.0 15.0 " s"
            "seconds from the last of 100,000 deadlines until every unit is back";
        "due sales" AtLeast 0.80 0.85 "/s" "sales while these orders end, against the rate before";
    }
    order_life::feed, "order events", {
        "feed" Number 5_000.0 10_000.0 "/s" "order events per second, numbered and read";
        "feed broker" Number 5_000.0 10_000.0 "/s" "the same, published to the exchange";
    }
    order_life::purge, "purge of a large sale", {
        "purge" Count 50.0 25.0 " ms" "longest transaction of the purge of 1,000,000 orders";
    }
    large_ledger::start, "start with a large ledger", {
        "start" Count 5.0 5.0 " s"
            "seconds until a killed server with 1,000,000 orders is ready again";
        "start memory" Count 300.0 300.0 " MiB" "resident memory of this server";
    }
}

/// A wider range of ratios than this share of the median gets a remark.
const WIDE: f64 = 0.15;
/// A generator that uses more cores gets a remark: it is one thread, and may be the limit.
const BUSY: f64 = 0.9;
/// A larger share of stolen CPU time gets a remark.
const STOLEN: f64 = 0.02;
/// A larger share of CPU time of processes outside the bench gets a remark.
const OTHERS: f64 = 0.05;

/// Measures the selected ones of these rows, which one function measures together.
async fn measure(
    harness: &mut Harness,
    rows: &[&'static str],
    title: &str,
    measured: impl AsyncFnOnce(&mut Harness) -> Result<()>,
) {
    let rows: Vec<_> = rows.iter().filter(|id| harness.is_selected(goal_of(id))).collect();
    let mut goals: Vec<_> = rows.iter().map(|id| goal_of(id)).collect();
    goals.dedup();
    let goals = goals.join(", ");
    if goals.is_empty() {
        return;
    }
    harness.note(&format!("{goals}: {title}"));
    if let Err(error) = measured(harness).await {
        harness.record_failure(&goals, &error);
        harness.results.retain(|id, _| !rows.contains(&id));
    }
}

/// One measured row. `yardstick` is the baseline.
#[derive(Debug, Clone, Serialize)]
struct Row {
    id: &'static str,
    what: &'static str,
    product: Spread,
    /// `None`: the goal is a number of its own.
    yardstick: Option<Spread>,
    unit: &'static str,
    /// Spread of the pairs' ratios, not the ratio of the medians.
    ratio: Option<Spread>,
    goal: Goal,
    verdict: &'static str,
    /// Mean batch sizes of the product, by component.
    batches: Figures,
    /// Core-microseconds of the server per operation.
    product_us: f64,
    yardstick_us: Option<f64>,
    /// CPU of the load generator: product, yardstick.
    generator_cores: (f64, f64),
    generator_us: (f64, f64),
    /// Requests without an answer, or of an unknown outcome: product, yardstick.
    incomplete: (u64, u64),
    remark: Option<String>,
}

#[derive(Debug, Serialize)]
struct Table {
    machine: Machine,
    rounds: u32,
    seconds: u64,
    connections: usize,
    rows: Vec<Row>,
    #[serde(flatten)]
    findings: Findings,
}

/// The goals that `--only` accepts.
pub fn goals() -> Vec<&'static str> {
    let mut ids: Vec<_> = ROWS.iter().map(|(id, ..)| goal_of(id)).collect();
    ids.dedup();
    ids
}

fn goal_of(id: &'static str) -> &'static str {
    id.split(' ').next().unwrap_or_default()
}

/// Measures the selected goals and prints the table; returns false if the table is void.
pub async fn run(args: BenchFlags) -> Result<bool> {
    let mut harness = Harness::new(args).await?;
    let machine = Machine::inspect(harness.scratch.path())?;
    measure_goals(&mut harness).await;
    let selected = ROWS.iter().filter(|(id, ..)| harness.is_selected(goal_of(id)));
    let rows = selected.filter_map(|(id, ..)| Row::of(id, harness.results.get(id)?)).collect();
    let args = harness.args;
    let table = Table {
        machine,
        rounds: args.rounds,
        seconds: args.seconds,
        connections: args.connections,
        rows,
        findings: harness.findings,
    };
    Output::new(args.json).data(&table, || table.markdown())?;
    Ok(table.findings.void.is_empty())
}

impl Table {
    fn markdown(&self) -> String {
        let mut lines = vec![
            format!("Machine: {}.", self.machine.summary()),
            format!(
                "{} pairs of {} s each, {} connections (open loops 8 times as many); medians, \
                 ratios with their range over the pairs.",
                self.rounds, self.seconds, self.connections
            ),
            String::new(),
            "| id | goal | floor | aim | product | yardstick | ratio | verdict | mean batch | \
             core-µs product / yardstick | generator product / yardstick |"
                .to_owned(),
            "|---|---|---|---|---|---|---|---|---|---|---|".to_owned(),
        ];
        lines.extend(self.rows.iter().map(Row::markdown));
        let missing = self.findings.not_measured.iter();
        lines.extend(
            missing.map(|(id, why)| format!("| {id} | NOT MEASURED: {why} | | | | | | | | | |")),
        );
        lines.push(String::new());
        lines.extend(self.rows.iter().flat_map(Row::remarks));
        if self.findings.stolen_max > STOLEN {
            let percent = self.findings.stolen_max * 100.0;
            lines.push(format!("* neighbours took up to {percent:.1} % of the machine's time."));
        }
        if self.findings.others_max > OTHERS {
            let percent = self.findings.others_max * 100.0;
            lines.push(format!("* other processes took up to {percent:.0} % of a measurement."));
        }
        match self.findings.void.as_slice() {
            [] => lines.push("* every audit holds.".to_owned()),
            reasons => lines.extend(reasons.iter().map(|why| format!("* **VOID**: {why}."))),
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

impl Row {
    /// Condenses the rounds of a row; `None` without rounds.
    fn of(id: &str, Results { rounds, remark }: &Results) -> Option<Self> {
        let (id, what, goal, unit) = *ROWS.iter().find(|(of, ..)| *of == id)?;
        let product = |value: fn(&RoundSample) -> f64| {
            Spread::of(rounds.iter().map(|round| value(&round.product)))
        };
        let baseline = |value: fn(&RoundSample) -> f64| {
            Spread::of(rounds.iter().filter_map(|round| round.baseline.as_ref().map(value)))
        };
        let yardstick = baseline(|side| side.value);
        let compared: Option<Vec<f64>> = rounds.iter().map(Round::compared).collect();
        let compared = compared.and_then(Spread::of);
        let median = |spread: Option<Spread>| spread.map_or(0.0, |spread| spread.median);
        Some(Self {
            id,
            what,
            product: product(|side| side.value)?,
            yardstick,
            unit,
            ratio: yardstick.and(compared),
            goal,
            verdict: compared.map_or("void", |all| goal.verdict(all.median)),
            batches: medians(rounds.iter().map(|round| round.product.batches.clone())),
            product_us: median(product(RoundSample::server_us)),
            yardstick_us: baseline(RoundSample::server_us).map(|spread| spread.median),
            generator_cores: (
                median(product(|side| side.own_cores)),
                median(baseline(|side| side.own_cores)),
            ),
            generator_us: (
                median(product(|side| side.own_us)),
                median(baseline(|side| side.own_us)),
            ),
            incomplete: (
                rounds.iter().map(|round| round.product.incomplete).sum(),
                rounds.iter().filter_map(|round| Some(round.baseline.as_ref()?.incomplete)).sum(),
            ),
            remark: remark.clone(),
        })
    }

    fn markdown(&self) -> String {
        let [floor, aim] = self.goal.columns();
        let (id, what, unit) = (self.id, self.what, self.unit);
        let none = || "-".to_owned();
        let yardstick = self.yardstick.map(|side| amount(side.median, unit));
        let ratio = self
            .ratio
            .map(|Spread { median, min, max }| format!("{median:.2}x ({min:.2} to {max:.2})"));
        // Empty if no CPU time was measured.
        let cost = |us: f64| if us > 0.0 { format!("{us:.1}") } else { none() };
        let generator = |us: f64, cores: f64| {
            if us > 0.0 { format!("{us:.1} µs, {cores:.2} cores") } else { none() }
        };
        format!(
            "| {id} | {what} | {floor} | {aim} | {} | {} | {} | {} | {} | {} / {} | {} / {} |",
            amount(self.product.median, unit),
            yardstick.unwrap_or_else(none),
            ratio.unwrap_or_else(none),
            self.verdict,
            if self.batches.is_empty() { none() } else { shown(&self.batches) },
            cost(self.product_us),
            self.yardstick_us.map_or_else(none, cost),
            generator(self.generator_us.0, self.generator_cores.0),
            generator(self.generator_us.1, self.generator_cores.1),
        )
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(ratio) = self.ratio.filter(|ratio| ratio.width() > WIDE) {
            remarks.push(format!("the pairs differ by {:.0} %", ratio.width() * 100.0));
        }
        if self.incomplete != (0, 0) {
            let (product, yardstick) = self.incomplete;
            remarks.push(format!(
                "requests of an unknown outcome: {product} product, {yardstick} yardstick"
            ));
        }
        let (product, yardstick) = self.generator_cores;
        for (side, cores) in [("product", product), ("yardstick", yardstick)] {
            if cores > BUSY {
                remarks.push(format!("the generator of the {side} used {cores:.2} cores"));
            }
        }
        remarks.extend(self.remark.clone());
        remarks.into_iter().map(|remark| format!("* {}: {remark}.", self.id)).collect()
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
