use anyhow::Context;
use floodgate::cli::output::Output;
use serde::Serialize;

use super::{
    backlog, connections, decide, hostile, http, large_audit, many_connections, memory, order_life,
    orders, pipeline, relay, restart, retention, takeover, without_events,
};
use crate::args::BenchArgs;
use crate::harness::Harness;
use crate::machine::Machine;
use crate::million::{self, LargeStart};
use crate::stats::{Goal, Spread, grouped, shown};

macro_rules! goals {
    ($($measure:path, $title:literal, {
        $($id:literal $kind:ident $floor:literal $aim:literal $unit:literal $what:literal;)+
    })+) => {
        /// Every row: id, description, limits (floor and aim) and unit. The first word of a row's
        /// id is its goal.
        const ROWS: &[(&str, &str, Goal, &str)] =
            &[$($(($id, $what, Goal::$kind { floor: $floor, aim: $aim }, $unit)),+),+];

        /// Measures the selected goals; a failure does not stop the others.
        async fn measure_goals(harness: &mut Harness<'_>) -> Vec<Row> {
            let mut rows: Vec<Row> = Vec::new();
            $(
                let mut goals = [$(goal_of($id)),+].to_vec();
                goals.retain(|goal| harness.is_selected(goal));
                goals.dedup();
                let goals = goals.join(", ");
                if !goals.is_empty() {
                    harness.note(&format!("{goals}: {}", $title));
                    let measured = $measure(harness).await;
                    rows.extend(harness.record_failure(&goals, measured).unwrap_or_default());
                }
            )+
            rows.retain(|row| harness.is_selected(goal_of(row.id)));
            rows
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
    decide::one_by_one, "gate decisions", {
        "S3" AtLeast 2.0 6.0 "/s" "gate decisions per second against one EVALSHA each";
    }
    decide::pipelined, "gate decisions, pipelined", {
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
        "S12" AtMost 1.1 1.0 " µs" "p50 at 5 % load, batching against batch = 1";
        "S13" AtMost 5.0 2.0 " µs" "p99 at 70 % of the maximum, open loop";
        "S14" AtLeast 0.90 0.98 "/s" "purchases per second at 3x overload against the peak";
    }
    memory::bytes, "memory of Redis", {
        "S15" AtMost 0.40 0.20 " B" "Redis bytes per accepted buyer";
    }
    connections::connections, "connections that wait", {
        "S16 idle" Count 24.0 12.0 " KiB"
            "memory of one idle connection of 10,000, its socket included";
        "S16 idle rate" AtLeast 0.90 0.98 "/s" "sold-out answers beside these, against alone";
        "S16 streams" Count 24.0 12.0 " KiB"
            "memory of one event stream of 10,000, its socket included";
        "S16 streams rate" AtLeast 0.90 0.98 "/s" "sold-out answers beside these, against alone";
    }
    many_connections::many_connections, "100,000 connections", {
        "many" Count 24.0 12.0 " KiB"
            "memory of one of 100,000 connections to eight processes, its socket included";
    }
    hostile::hostile, "honest buyers beside hostile clients", {
        "hostile" AtLeast 0.80 1.0 " %"
            "honest purchases that succeed beside 5,000 hostile clients, against alone";
        "hostile p99" AtMost 1.2 1.0 " µs" "p99 of these, against alone";
        "hostile server" AtMost 1.2 1.0 " µs"
            "p99 of these, against hostile clients of a server that does nothing";
        "hostile probes" Count 0.0 0.0 "" "probes without an answer within a second beside these";
    }
    takeover::takeover, "crash of a relay", {
        "S17" Count 5.0 1.0 " s"
            "seconds beyond the heartbeat until what a killed relay held is published";
        "S17 recovery" AtLeast 0.90 1.0 "/s" "relay that survives another, against a relay alone";
    }
    large_audit::audit, "audit of a large ledger", {
        "S19" Count 200.0 64.0 " MiB"
            "memory that an audit of 10,000,000 orders adds to the server";
    }
    restart::restart, "restart of Redis", {
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
    backlog::backlog, "a broker that was down", {
        "backlog" Count 150.0 150.0 " B"
            "Redis bytes for each order that waits, request and limit included";
        "backlog drain" AtLeast 0.9 1.0 "/s"
            "the same, drained by one relay, against its steady rate";
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
    retention::purge, "purge of a large sale", {
        "purge" Count 50.0 25.0 " ms" "longest transaction of the purge of 1,000,000 orders";
    }
    without_events::cost, "the cost of order events", {
        "events S8" AtLeast 0.91 1.0 "/s" "S8 against a version without order events";
        "events S11" AtLeast 0.91 1.0 "/s" "S11 against a version without order events";
    }
}

/// A wider range of ratios than this share of the median gets a remark.
const WIDE: f64 = 0.15;
/// A larger share of stolen CPU time gets a remark.
const STOLEN: f64 = 0.02;
/// A larger share of CPU time of processes outside the bench gets a remark.
const OTHERS: f64 = 0.05;

/// One measured row. `yardstick` is the baseline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) product: Spread,
    /// `None`: the goal is a number of its own.
    pub(crate) yardstick: Option<Spread>,
    pub(crate) unit: &'static str,
    /// Spread of the pairs' ratios, not the ratio of the medians.
    pub(crate) ratio: Option<Spread>,
    pub(crate) goal: Goal,
    /// Mean batch sizes of the product, by component.
    pub(crate) batches: Vec<(&'static str, f64)>,
    /// Core-microseconds of the server per operation.
    pub(crate) product_us: f64,
    pub(crate) yardstick_us: Option<f64>,
    /// CPU of the load generator during the product's rounds.
    pub(crate) generator_cores: f64,
    pub(crate) generator_us: f64,
    /// Requests without an answer: product, yardstick.
    pub(crate) incomplete: (u64, u64),
    pub(crate) remark: Option<String>,
}

#[derive(Debug, Serialize)]
struct Table {
    machine: Machine,
    rounds: u32,
    seconds: u64,
    connections: usize,
    rows: Vec<Row>,
    /// Goals that cannot be measured on this machine, with the reason.
    not_measured: Vec<(String, String)>,
    large_start: Option<LargeStart>,
    stolen_max: f64,
    others_max: f64,
    /// Reasons why the table is void.
    void: Vec<String>,
}

/// The goals that `--only` accepts.
pub(crate) fn goals() -> Vec<&'static str> {
    let mut ids: Vec<_> = ROWS.iter().map(|(id, ..)| goal_of(id)).collect();
    ids.dedup();
    ids
}

fn goal_of(id: &'static str) -> &'static str {
    id.split(' ').next().unwrap_or_default()
}

/// Description, limits and unit of a row.
pub(crate) fn goal(id: &str) -> anyhow::Result<(&'static str, Goal, &'static str)> {
    let (_, what, goal, unit) =
        ROWS.iter().find(|(of, ..)| *of == id).with_context(|| format!("no row {id}"))?;
    Ok((what, *goal, unit))
}

/// Measures the selected goals and prints the table; returns false if the table is void.
pub(crate) async fn run(args: &BenchArgs) -> anyhow::Result<bool> {
    let mut harness = Harness::new(args).await?;
    let machine = Machine::inspect(harness.scratch.path())?;
    let rows = measure_goals(&mut harness).await;
    let large_start = if args.skip_million || !args.only.is_empty() {
        None
    } else {
        harness.note("start with a large ledger");
        let start = million::start(&mut harness).await;
        harness.record_failure("start with a large ledger", start)
    };
    let table = Table {
        machine,
        rounds: args.rounds,
        seconds: args.seconds,
        connections: args.connections,
        rows,
        not_measured: harness.not_measured,
        large_start,
        stolen_max: harness.stolen_max,
        others_max: harness.others_max,
        void: harness.void,
    };
    Output::new(args.json).data(&table, || table.markdown())?;
    Ok(table.void.is_empty())
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
        lines.extend(self.large_start.as_ref().map(|start| format!("* {}.", start.summary())));
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
        let [floor, aim] = self.goal.columns();
        let (id, what, unit) = (self.id, self.what, self.unit);
        let none = || "-".to_owned();
        let yardstick = self.yardstick.map(|side| format!("{}{unit}", amount(side.median)));
        let ratio = self
            .ratio
            .map(|Spread { median, min, max }| format!("{median:.2}x ({min:.2} to {max:.2})"));
        let decisive = self.ratio.unwrap_or(self.product).median;
        // Empty if no CPU time was measured.
        let cost = |us: f64| if us > 0.0 { format!("{us:.1}") } else { none() };
        format!(
            "| {id} | {what} | {floor} | {aim} | {}{unit} | {} | {} | {} | {} | {} / {} | {} |",
            amount(self.product.median),
            yardstick.unwrap_or_else(none),
            ratio.unwrap_or_else(none),
            self.goal.verdict(decisive),
            if self.batches.is_empty() { none() } else { shown(&self.batches) },
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
            remarks.push(format!("the pairs differ by {:.0} %", ratio.width() * 100.0));
        }
        if self.incomplete != (0, 0) {
            let (product, yardstick) = self.incomplete;
            remarks.push(format!(
                "requests without an answer: {product} product, {yardstick} yardstick"
            ));
        }
        remarks.extend(self.remark.clone());
        remarks.into_iter().map(|remark| format!("* {}: {remark}.", self.id)).collect()
    }
}

/// Numbers below 100 keep one decimal.
fn amount(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { grouped(number) }
}

#[cfg(test)]
mod tests {
    use crate::stats::{self, Round, Sample};

    #[test]
    fn a_row_has_as_many_columns_as_the_header() {
        let side = |value, server_us| Sample {
            value,
            costs: vec![("floodgate", server_us)],
            incomplete: 1,
            batches: vec![("gate", 31.25), ("ledger", 60.0)],
            ..Sample::default()
        };
        let rounds = [28_000.0, 34_000.0, 36_000.0]
            .map(|value| Round::pair(side(value, 21.0), side(40_000.0, 19.0)));
        let row = stats::row("S1", &rounds, Some("remark".to_owned())).unwrap();
        let line = row.markdown();
        assert_eq!(line.matches('|').count(), 12);
        assert!(line.contains("34,000/s") && line.contains("floor met"), "{line}");
        assert!(line.contains("| gate 31.2, ledger 60.0 | 21.0 / 19.0 |"), "{line}");
        assert_eq!(row.remarks().len(), 3);
    }
}
