use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use floodgate::cli::output::Output;
use loadgen::{BuyRequest, Load, Outcome, Pace, Report, Until, run};
use tempfile::TempDir;

use crate::admin::{Admin, SKU};
use crate::args::BenchArgs;
use crate::meter::{Meter, Metered, Named};
use crate::private::Missing;
use crate::process::{ServerChild, scratch};
use crate::stats::Sample;

/// Stock that no round can sell.
pub(crate) const ENDLESS: u32 = 1_000_000_000;
/// Connections of an open loop as a multiple of the closed loop's, so that a queue forms in the
/// server and not in the generator.
const OPEN_LOOP_CONNECTIONS: usize = 8;
/// How long a request of an open loop may wait for a connection.
const LATE_LIMIT: Duration = Duration::from_secs(1);
pub(crate) const LANDING_PATIENCE: Duration = Duration::from_secs(30);

/// What all goals of one table share: the yardstick, numbers never used twice, and doubts.
#[derive(Debug)]
pub(crate) struct Lab<'a> {
    pub(crate) args: &'a BenchArgs,
    // Ends before its folder is removed.
    pub(crate) yardstick: ServerChild,
    pub(crate) scratch: TempDir,
    next_buyer: Cell<u64>,
    next_sale: Cell<u64>,
    /// Why the table does not count; empty when it does.
    pub(crate) void: Vec<String>,
    /// Goals that cannot be measured on this machine, and why.
    pub(crate) not_measured: Vec<(String, String)>,
    /// Largest share of the machine's time that neighbours took during a measurement.
    pub(crate) stolen_max: f64,
    /// Largest share of it that this machine's other processes took.
    pub(crate) others_max: f64,
}

/// A server under test with a ledger of its own.
#[derive(Debug)]
pub(crate) struct Product {
    // Dropped in this order: the server ends before its directory is removed.
    pub(crate) server: ServerChild,
    pub(crate) admin: Admin,
    /// Processes behind the server, by name.
    pub(crate) behind: Vec<Named>,
    _scratch: TempDir,
}

/// One load run and what it cost both sides.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) report: Report,
    pub(crate) metered: Metered,
    /// Mean sizes of batches, by who made them.
    pub(crate) batches: Vec<(&'static str, f64)>,
}

impl<'a> Lab<'a> {
    pub(crate) async fn new(args: &'a BenchArgs) -> anyhow::Result<Self> {
        let scratch = scratch(args.directory.as_deref())?;
        Ok(Self {
            args,
            yardstick: ServerChild::yardstick(scratch.path(), args.workers).await?,
            scratch,
            next_buyer: Cell::new(1),
            next_sale: Cell::new(1),
            void: Vec::new(),
            not_measured: Vec::new(),
            stolen_max: 0.0,
            others_max: 0.0,
        })
    }

    /// Starts a server on an empty ledger, with `changes` to its configuration.
    pub(crate) async fn product(&self, changes: &[(&str, &str)]) -> anyhow::Result<Product> {
        let scratch = scratch(self.args.directory.as_deref())?;
        let mut settings = self.args.settings();
        settings.extend(changes.iter().map(|(key, value)| ((*key).into(), (*value).into())));
        let server = ServerChild::serve(scratch.path(), &settings).await?;
        let admin = server.admin()?;
        admin.await_ready().await?;
        Ok(Product { server, admin, behind: Vec::new(), _scratch: scratch })
    }

    /// Opens a new sale; its id.
    pub(crate) async fn sale(&self, product: &Product, stock: u32) -> anyhow::Result<String> {
        let sale = format!("bench-{}", self.next_sale.replace(self.next_sale.get() + 1));
        let (policy, buckets) = (&self.args.policy, self.args.buckets);
        product.admin.open_bench_sale(&sale, stock, policy, buckets).await?;
        Ok(sale)
    }

    /// A closed loop of one round at a server, by buyers that no other request of this table uses.
    /// The yardstick answers as many bytes as `path_id` says.
    pub(crate) fn load(&self, server: &ServerChild, path_id: &str) -> Load {
        // More than any round can send, and far from the 63 bits an id may have.
        let first = self.next_buyer.replace(self.next_buyer.get() + 1_000_000_000);
        let source = BuyRequest::new(server.public, path_id, SKU, 1).by_unique_buyers(first);
        Load {
            until: Until::Elapsed(self.args.round()),
            connections: self.args.connections,
            threads: self.args.threads,
            ..Load::new(server.public, source)
        }
    }

    /// Turns a load into an open loop.
    pub(crate) fn open(load: Load, per_second: f64) -> Load {
        Load {
            pace: Pace::Open { per_second, late_limit: LATE_LIMIT },
            connections: load.connections * OPEN_LOOP_CONNECTIONS,
            ..load
        }
    }

    /// Sends one purchase and tells status and size of its answer; `None`: no answer came.
    pub(crate) async fn try_one(
        &self,
        server: &ServerChild,
        path_id: &str,
    ) -> anyhow::Result<Option<(u16, usize)>> {
        let seen = Arc::new(parking_lot::Mutex::new(None));
        let found = seen.clone();
        let load = Load {
            until: Until::Requests(1),
            connections: 1,
            observer: Some(Arc::new(move |_, outcome: &Outcome<'_>| {
                if let Outcome::Answered(answer) = outcome {
                    *found.lock() = Some((answer.status, answer.body.len()));
                }
            })),
            ..self.load(server, path_id)
        };
        run(load).await?;
        let seen = *seen.lock();
        Ok(seen)
    }

    /// Runs `load` against the product, or against the yardstick.
    pub(crate) async fn measure(
        &mut self,
        product: Option<&Product>,
        load: Load,
    ) -> anyhow::Result<Measured> {
        let processes = product.map_or(vec![("yardstick", self.yardstick.id())], Product::all);
        let admin = product.map(|product| &product.admin);
        let before = Batches::of(admin).await?;
        let meter = Meter::start(&processes)?;
        let report = run(load).await?;
        let metered = self.stop(meter)?;
        Ok(Measured { report, metered, batches: Batches::of(admin).await?.since(&before) })
    }

    /// Ends a measurement and remembers what disturbed it.
    pub(crate) fn stop(&mut self, meter: Meter) -> anyhow::Result<Metered> {
        let metered = meter.stop()?;
        self.stolen_max = self.stolen_max.max(metered.stolen);
        self.others_max = self.others_max.max(metered.others);
        Ok(metered)
    }

    /// After a product round: all acknowledged orders must be in the ledger and the audit must
    /// hold, or the table is void. `accepted` is the sale's total so far.
    pub(crate) async fn check(
        &mut self,
        admin: &Admin,
        sale: &str,
        accepted: u64,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let landed = admin.await_landed(sale, accepted, patience).await?;
        self.require(landed >= accepted, || {
            format!("{sale}: {accepted} accepted, only {landed} landed")
        });
        let violations = admin.audit(Some(sale)).await?;
        self.require_none(sale, &violations);
        Ok(())
    }

    /// The table is void for this reason, unless it holds.
    pub(crate) fn require(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.void.push(why());
        }
    }

    /// The table is void where an audit found something.
    pub(crate) fn require_none(&mut self, sale: &str, violations: &[String]) {
        self.require(violations.is_empty(), || format!("{sale}: audit {}", violations.join("; ")));
    }

    /// Tells on standard error what happens.
    pub(crate) fn say(&self, message: &str) {
        Output::new(self.args.json).note(message);
    }

    /// Turns a failure into a reason why the table does not count; where a program is missing, into
    /// one why these goals are not in it.
    pub(crate) fn keep_going<T>(&mut self, what: &str, done: anyhow::Result<T>) -> Option<T> {
        match done {
            Ok(done) => return Some(done),
            Err(error) => match error.downcast_ref::<Missing>() {
                Some(missing) => self.not_measured.push((what.to_owned(), missing.to_string())),
                None => self.void.push(format!("{what}: {error:#}")),
            },
        }
        None
    }

    /// Whether any of these goals is to be measured.
    pub(crate) fn wants(&self, ids: &[&str]) -> bool {
        let only = &self.args.only;
        only.is_empty() || only.iter().any(|wanted| ids.contains(&wanted.as_str()))
    }
}

impl Product {
    /// The server, whose work counts, and what is behind it.
    pub(crate) fn all(&self) -> Vec<Named> {
        [vec![("floodgate", self.server.id())], self.behind.clone()].concat()
    }
}

impl ServerChild {
    /// The admin API of this server.
    pub(crate) fn admin(&self) -> anyhow::Result<Admin> {
        let Some(internal) = self.internal else { bail!("the yardstick has no admin API") };
        Admin::at(&format!("http://{internal}"), None)
    }
}

impl Measured {
    /// Answers per second.
    pub(crate) fn rate(&self) -> f64 {
        self.report.per_second(self.report.answered)
    }

    /// Successful answers per second.
    pub(crate) fn goodput(&self) -> f64 {
        self.report.per_second(self.report.succeeded())
    }

    /// Purchases that were accepted for the first time.
    pub(crate) fn accepted(&self) -> u64 {
        newly_accepted(&self.report)
    }

    /// Core-microseconds of the server for each answer.
    pub(crate) fn server_us(&self) -> f64 {
        self.metered.each(self.report.answered).first().map_or(0.0, |(_, us)| *us)
    }

    /// A side of a round, of which `value` is compared.
    pub(crate) fn sample(&self, value: f64) -> Sample {
        Sample {
            incomplete: self.report.unsent + self.report.transport_errors,
            batches: self.batches.clone(),
            ..self.metered.sample(value, self.report.answered)
        }
    }
}

pub(crate) fn newly_accepted(report: &Report) -> u64 {
    report.succeeded().saturating_sub(report.replayed)
}

/// The value of a metric without labels; 0 where there is none.
pub(crate) fn number(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}

/// How many requests there were in batches and how many batches, since the server was started.
#[derive(Debug, Default)]
pub(crate) struct Batches([(f64, f64); 2]);

/// Who makes batches, and the histogram of their sizes.
const BATCHES: [(&str, &str); 2] =
    [("gate", "floodgate_gate_batch_size"), ("ledger", "floodgate_writer_batch_size")];

impl Batches {
    /// Those until now; the yardstick has none.
    pub(crate) async fn of(admin: Option<&Admin>) -> anyhow::Result<Self> {
        let Some(admin) = admin else { return Ok(Self::default()) };
        Ok(Self::read(&admin.metrics().await?))
    }

    fn read(metrics: &str) -> Self {
        let number = |name: String| number(metrics, &name);
        Self(
            BATCHES
                .map(|(_, name)| (number(format!("{name}_sum")), number(format!("{name}_count")))),
        )
    }

    /// The mean sizes since an earlier look.
    pub(crate) fn since(&self, earlier: &Self) -> Vec<(&'static str, f64)> {
        let mut means = Vec::new();
        for ((now, then), (who, _)) in self.0.iter().zip(&earlier.0).zip(BATCHES) {
            let batches = now.1 - then.1;
            if batches > 0.0 {
                means.push((who, (now.0 - then.0) / batches));
            }
        }
        means
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_those_of_the_round() {
        let seen = |requests: u32, batches: u32| {
            Batches::read(&format!(
                "# TYPE floodgate_gate_batch_size histogram\n\
                 floodgate_gate_batch_size_sum {requests}.0\n\
                 floodgate_gate_batch_size_count {batches}\n\
                 floodgate_gate_batch_size_bucket{{le=\"1.0\"}} 7\n"
            ))
        };
        assert_eq!(seen(700, 30).since(&seen(100, 10)), [("gate", 30.0)]);
        assert_eq!(seen(100, 10).since(&seen(100, 10)), []);
    }
}
