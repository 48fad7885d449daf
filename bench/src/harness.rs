//! What all goals of one table share, and what is measured of one server under test.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use floodgate::cli::output::Output;
use loadgen::{Answer, BuyRequest, Load, Pace, Report, Until, call, run};
use serde::Serialize;
use testkit::{Folder, MissingProgram};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin::{Admin, DAY_S, SKU};
use crate::args::BenchFlags;
use crate::meter::{Metered, Named, metered};
use crate::process::ServerChild;
use crate::stats::{Results, Round, RoundSample, amount, grouped};

/// Stock that no round can sell out.
pub const ENDLESS: u32 = 1_000_000_000;
/// Connections of an open loop as a multiple of the closed loop's, so that a queue forms in the
/// server and not in the generator.
const OPEN_LOOP_CONNECTIONS: usize = 8;
/// How long a request of an open loop may wait for a connection.
const LATE_LIMIT: Duration = Duration::from_secs(1);
pub const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The state that all goals of one table share: the baseline server, numbers that are used once,
/// and the reasons why the table is void.
pub struct Harness {
    pub args: BenchFlags,
    // Dropped first: the process ends before its directory is removed.
    pub baseline: ServerChild,
    pub scratch: Folder,
    next: Cell<u64>,
    /// What was measured, by the id of its row.
    pub results: BTreeMap<&'static str, Results>,
    pub findings: Findings,
}

/// What is shown beside the rows.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    /// Goals that cannot be measured on this machine, with the reason.
    pub not_measured: Vec<(String, String)>,
    /// Largest share of the machine's CPU time that the hypervisor gave to others in a measurement.
    pub stolen_max: f64,
    /// Largest share of it that other processes of this machine used.
    pub others_max: f64,
    /// Reasons why the table is void.
    pub void: Vec<String>,
}

/// A server under test with a ledger of its own.
pub struct Product {
    // Dropped in this order: the server ends before its directory is removed.
    pub server: ServerChild,
    pub admin: Admin,
    /// Redis, RabbitMQ and MariaDB processes of the server.
    pub backends: Vec<Named>,
    _scratch: Folder,
}

/// One load run and its costs.
pub struct Measured {
    pub report: Report,
    pub metered: Metered,
}

impl Harness {
    pub async fn new(args: BenchFlags) -> Result<Self> {
        let scratch = testkit::folder(&args.parent())?;
        Ok(Self {
            args,
            baseline: ServerChild::baseline(scratch.path()).await?,
            scratch,
            next: Cell::new(1),
            results: BTreeMap::new(),
            findings: Findings::default(),
        })
    }

    /// Starts a server on an empty ledger, with `changes` to its configuration.
    pub async fn product(&self, changes: &[String]) -> Result<Product> {
        let scratch = testkit::folder(&self.args.parent())?;
        let server = ServerChild::serve(scratch.path(), changes).await?;
        let admin = server.ready().await?;
        Ok(Product { server, admin, backends: Vec::new(), _scratch: scratch })
    }

    /// A round's number of operations: all of them by default, fewer in short rounds.
    pub fn up_to(&self, operations: u64) -> u64 {
        (operations / 4 * self.args.seconds).min(operations)
    }

    pub async fn sale(&self, product: &Product, stock: u32) -> Result<String> {
        let sale = self.new_name();
        product.admin.open_sale(&sale, stock, DAY_S).await?;
        Ok(sale)
    }

    pub fn new_name(&self) -> String {
        format!("bench-{}", self.new_number())
    }

    /// The first of more ids than one round can use; all stay far below 63 bits.
    fn new_buyers(&self) -> u64 {
        self.new_number() * 1_000_000_000
    }

    fn new_number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// A closed loop of one round, with buyers that no other request of this table uses. `path_id`
    /// is the sale, or for the baseline the size of its answers in bytes.
    pub fn load(&self, server: &ServerChild, path_id: &str) -> Load {
        let buy = BuyRequest::new(server.public, path_id, SKU, 1);
        Load {
            until: Until::Elapsed(self.args.round()),
            connections: self.args.connections,
            ..Load::new(server.public, buy.by_unique_buyers(self.new_buyers()))
        }
    }

    /// Sends this number of purchases, as fast as the connections go, each of a new buyer. Fails
    /// unless 99 % of them are accepted.
    pub async fn fill(&self, server: &ServerChild, sale: &str, orders: u64) -> Result<Report> {
        let (until, progress) = (Until::Requests(orders), Some("filling"));
        let report = run(Load { until, progress, ..self.load(server, sale) }).await?;
        let accepted = newly_accepted(&report);
        ensure!(
            accepted >= orders - orders / 100,
            "{sale}: {accepted} of {orders} purchases were accepted"
        );
        Ok(report)
    }

    pub fn open(load: Load, per_second: f64) -> Load {
        Load {
            pace: Pace::Open { per_second, late_limit: LATE_LIMIT },
            connections: load.connections * OPEN_LOOP_CONNECTIONS,
            ..load
        }
    }

    /// Sends one purchase. Returns status and body size of the answer, `None` without an answer
    /// and if the outcome is unknown.
    pub async fn try_one(&self, server: &ServerChild, path_id: &str) -> Option<(u16, usize)> {
        let mut request = Vec::new();
        let buy = BuyRequest::new(server.public, path_id, SKU, 1);
        buy.write(self.new_buyers(), None, &mut request);
        let answer = async {
            let mut connection = TcpStream::connect(server.public).await.ok()?;
            call(&mut connection, &request).await.ok()
        };
        let (status, body) = timeout(ANSWER_TIMEOUT, answer).await.ok()??;
        let is_unknown = Answer { status, replayed: false, body: &body }.is_unknown();
        (!is_unknown).then_some((status, body.len()))
    }

    /// Runs `load` against the product, or against the baseline.
    pub async fn measure(&mut self, product: Option<&Product>, load: Load) -> Result<Measured> {
        let loading = Box::pin(async { Ok(run(load).await?) });
        let (report, metered) = if let Some(product) = product {
            self.observe(product, loading).await?
        } else {
            self.meter(&[("yardstick", self.baseline.id())], loading).await?
        };
        Ok(Measured { report, metered })
    }

    /// Does `work`, and measures costs and mean batch sizes of the product.
    pub async fn observe<T>(
        &mut self,
        product: &Product,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, Metered)> {
        let before = product.admin.metrics().await?;
        let processes = [vec![("floodgate", product.server.id())], product.backends.clone()];
        let (done, mut metered) = self.meter(&processes.concat(), work).await?;
        metered.batches = product.admin.metrics().await?.batches_since(&before);
        Ok((done, metered))
    }

    /// Does `work` and measures it, see [`metered`]; updates the largest disturbances.
    pub async fn meter<T>(
        &mut self,
        processes: &[Named],
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, Metered)> {
        let (done, metered) = metered(processes, work).await?;
        self.findings.stolen_max = self.findings.stolen_max.max(metered.stolen);
        self.findings.others_max = self.findings.others_max.max(metered.others);
        Ok((done, metered))
    }

    /// Checks a product round: the table is void unless all accepted orders are committed and the
    /// audit holds. `accepted` is the sale's total so far.
    pub async fn check(&mut self, admin: &Admin, sale: &str, accepted: u64) -> Result<()> {
        let committed = admin.await_committed(sale, accepted, COMMIT_TIMEOUT).await?;
        let violations = admin.audit(Some(sale)).await?;
        self.findings.void.extend(faults(sale, accepted, committed, &violations));
        Ok(())
    }

    /// Voids the table for this reason unless the condition holds.
    pub fn void_unless(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.findings.void.push(why());
        }
    }

    /// Audits a sale or the whole ledger: the table is void unless the audit holds.
    pub async fn audit(&mut self, admin: &Admin, sale: Option<&str>) -> Result<()> {
        let violations = admin.audit(sale).await?;
        self.void_on_violations(sale.unwrap_or("the whole ledger"), &violations);
        Ok(())
    }

    /// Voids the table if an audit found violations.
    pub fn void_on_violations(&mut self, sale: &str, violations: &[String]) {
        self.findings.void.extend(faults(sale, 0, 0, violations));
    }

    /// Adds a round to a row that compares product and baseline.
    pub fn pair(
        &mut self,
        id: &'static str,
        product: impl Into<RoundSample>,
        baseline: impl Into<RoundSample>,
    ) {
        self.add(id, Round { product: product.into(), baseline: Some(baseline.into()) });
    }

    /// Adds a round to a row that is a number of its own.
    pub fn number(&mut self, id: &'static str, product: impl Into<RoundSample>) {
        self.add(id, Round { product: product.into(), baseline: None });
    }

    fn add(&mut self, id: &'static str, round: Round) {
        self.note(&format!("{id}: {}", round.summary()));
        self.void_unless(round.compared().is_some(), || {
            format!("{id}: nothing to compare, {}", round.summary())
        });
        self.results.entry(id).or_default().rounds.push(round);
    }

    /// Sets the remark of a row; the last one is shown.
    pub fn remark(&mut self, id: &'static str, remark: String) {
        self.note(&format!("{id}: {remark}"));
        self.results.entry(id).or_default().remark = Some(remark);
    }

    pub fn note(&self, message: &str) {
        Output::new(self.args.json).note(message);
    }

    /// Records a failure as a reason why the table is void; a missing program only leaves out these
    /// goals.
    pub fn record_failure(&mut self, goals: &str, error: &anyhow::Error) {
        let Findings { not_measured, void, .. } = &mut self.findings;
        match error.downcast_ref::<MissingProgram>() {
            Some(missing) => not_measured.push((goals.to_owned(), missing.to_string())),
            None => void.push(format!("{goals}: {error:#}")),
        }
    }

    /// Whether `--only` selects this goal, or is absent.
    pub fn is_selected(&self, goal: &str) -> bool {
        let only = &self.args.only;
        only.is_empty() || only.iter().any(|wanted| wanted == goal)
    }
}

/// Why a run is void. Purchases with an unknown outcome may be committed too: more orders than
/// acknowledgements are valid, fewer are not.
pub fn faults(sale: &str, accepted: u64, committed: u64, violations: &[String]) -> Vec<String> {
    let is_lost = committed < accepted;
    let lost = is_lost.then(|| format!("{sale}: {accepted} accepted, only {committed} committed"));
    let is_violated = !violations.is_empty();
    let violated = is_violated.then(|| format!("{sale}: audit {}", violations.join("; ")));
    lost.into_iter().chain(violated).collect()
}

impl Product {
    /// Orders that the server has committed since its start.
    pub async fn placed(&self) -> Result<u64> {
        Ok(self.admin.metrics().await?.count("floodgate_orders_placed_total"))
    }
}

impl Measured {
    pub fn rate(&self) -> f64 {
        self.report.per_second(self.report.answered)
    }

    /// Accepted purchases per second.
    pub fn goodput(&self) -> f64 {
        self.report.per_second(self.report.succeeded())
    }

    /// First-time accepted purchases, without replays.
    pub fn accepted(&self) -> u64 {
        newly_accepted(&self.report)
    }

    /// Core-microseconds of the server per answer.
    pub fn server_us(&self) -> f64 {
        self.metered.server_us(self.report.answered)
    }

    /// Growth of the server's memory per accepted order, in bytes.
    pub fn growth(&self) -> f64 {
        let (before, after) = self.metered.resident;
        (after as f64 - before as f64) / self.accepted().max(1) as f64
    }

    pub fn summary(&self) -> String {
        let Report { unsent, transport_errors, unknown, .. } = self.report;
        format!(
            "{:>9}/s, p50 {}, p99 {}, {:.1} core-µs, {unsent} unsent, {} unknown",
            grouped(self.rate()),
            amount(self.report.p50_us(), " µs"),
            amount(self.report.p99_us(), " µs"),
            self.server_us(),
            transport_errors + unknown,
        )
    }

    /// The sample of a round, with `value` as the compared value.
    pub fn sample(&self, value: f64) -> RoundSample {
        RoundSample {
            incomplete: self.report.unsent + self.report.transport_errors + self.report.unknown,
            ..self.metered.sample(value, self.report.answered)
        }
    }
}

pub fn newly_accepted(report: &Report) -> u64 {
    report.succeeded().saturating_sub(report.replayed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_order_voids_the_run() {
        let is_valid =
            |committed, violations: &[String]| faults("sale", 10, committed, violations).is_empty();
        assert!(is_valid(10, &[]));
        assert!(is_valid(11, &[]));
        assert!(!is_valid(9, &[]));
        assert!(!is_valid(10, &["NoOversell".to_owned()]));
    }
}
