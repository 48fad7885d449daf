use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use super::BenchArgs;
use super::admin::{Admin, BenchSale};
use super::child::ServerChild;
use super::private::Missing;
use super::probe::Measured;
use super::scratch::Scratch;
use crate::cli::output::Output;
use crate::load::{BuyRequest, Load, Outcome, Pace, Report, RequestSource, Until, run};

/// SKU of every bench sale.
const SKU: &str = "bench";
/// Connections of an open loop as a multiple of the closed loop's, so that a queue forms in the
/// server and not in the generator.
const OPEN_LOOP_CONNECTIONS: usize = 8;
/// How long a request of an open loop may wait for a connection.
const LATE_LIMIT: Duration = Duration::from_secs(1);
const READY_PATIENCE: Duration = Duration::from_mins(1);
const LANDING_PATIENCE: Duration = Duration::from_secs(30);

/// What all goals of one table share: the yardstick, numbers never used twice, and doubts.
#[derive(Debug)]
pub(super) struct Lab<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) yardstick: ServerChild,
    next_buyer: AtomicU64,
    next_sale: AtomicU64,
    /// Why the table does not count; empty when it does.
    pub(super) void: Vec<String>,
    /// Goals that cannot be measured on this machine, and why.
    pub(super) not_measured: Vec<(String, String)>,
    /// Largest share of the machine's time that neighbours took during a measurement.
    pub(super) stolen_max: f64,
    /// Largest share of it that this machine's other processes took.
    pub(super) others_max: f64,
}

/// A server under test with a ledger of its own.
#[derive(Debug)]
pub(super) struct Product {
    // Dropped in this order: the server ends before its directory is removed.
    pub(super) server: ServerChild,
    pub(super) admin: Admin,
    _scratch: Scratch,
}

impl<'a> Lab<'a> {
    pub(super) fn new(args: &'a BenchArgs) -> anyhow::Result<Self> {
        Ok(Self {
            args,
            yardstick: ServerChild::yardstick(args.workers)?,
            next_buyer: AtomicU64::new(1),
            next_sale: AtomicU64::new(1),
            void: Vec::new(),
            not_measured: Vec::new(),
            stolen_max: 0.0,
            others_max: 0.0,
        })
    }

    /// Starts a server on an empty ledger, with `changes` to its configuration.
    pub(super) async fn product(&self, changes: &[(&str, &str)]) -> anyhow::Result<Product> {
        let scratch = Scratch::new(self.args.directory.as_deref())?;
        let mut settings = self.args.settings();
        settings.extend(changes.iter().map(|(key, value)| ((*key).into(), (*value).into())));
        let server = ServerChild::serve(scratch.path(), &settings)?;
        let admin = server.admin()?;
        admin.await_ready(READY_PATIENCE).await?;
        Ok(Product { server, admin, _scratch: scratch })
    }

    /// Opens a new sale.
    pub(super) async fn sale(&self, product: &Product, stock: u32) -> anyhow::Result<BenchSale> {
        let number = self.next_sale.fetch_add(1, Ordering::Relaxed);
        let sale = BenchSale {
            sale_id: format!("bench-{number}"),
            sku_id: SKU.to_owned(),
            stock,
            policy: self.args.policy.json(),
            buckets: self.args.buckets,
        };
        product.admin.open_sale(&sale).await?;
        Ok(sale)
    }

    /// A closed loop of one round against the product.
    pub(super) fn closed(&self, product: &Product, sale: &BenchSale) -> Load {
        self.load(&product.server, &sale.sale_id)
    }

    /// A closed loop of one round against the yardstick, which answers `bytes` bytes.
    pub(super) fn closed_yardstick(&self, bytes: usize) -> Load {
        self.load(&self.yardstick, &bytes.to_string())
    }

    /// Turns a load into an open loop.
    pub(super) fn open(load: Load, per_second: f64) -> Load {
        Load {
            pace: Pace::Open { per_second, late_limit: LATE_LIMIT },
            connections: load.connections * OPEN_LOOP_CONNECTIONS,
            ..load
        }
    }

    fn load(&self, server: &ServerChild, path_id: &str) -> Load {
        Load {
            until: Until::Elapsed(self.args.round()),
            connections: self.args.connections,
            threads: self.args.threads,
            ..Load::new(server.public, self.source(server, path_id))
        }
    }

    /// Purchases by buyers that no other request of this table uses.
    fn source(&self, server: &ServerChild, path_id: &str) -> RequestSource {
        // More than any round can send, and far from the 63 bits an id may have.
        let first = self.next_buyer.fetch_add(1_000_000_000, Ordering::Relaxed);
        BuyRequest::new(server.public, path_id, SKU, 1).by_unique_buyers(first)
    }

    /// Sends one purchase and tells status and size of its answer.
    pub(super) async fn try_one(
        &self,
        product: &Product,
        sale: &BenchSale,
    ) -> anyhow::Result<(u16, usize)> {
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
            ..self.closed(product, sale)
        };
        run(load).await?;
        let seen = *seen.lock();
        seen.context("the server does not answer a purchase")
    }

    /// Runs `load` for a second without counting it.
    pub(super) async fn warm_up(load: Load) -> anyhow::Result<()> {
        run(Load { until: Until::Elapsed(Duration::from_secs(1)), ..load }).await?;
        Ok(())
    }

    /// After a product round: all acknowledged orders must be in the ledger and the audit must
    /// hold, or the table is void. `accepted` is the sale's total so far.
    pub(super) async fn check(
        &mut self,
        product: &Product,
        sale: &BenchSale,
        accepted: u64,
    ) -> anyhow::Result<()> {
        let id = &sale.sale_id;
        let landed = product.admin.await_landed(id, accepted, LANDING_PATIENCE).await?;
        if landed < accepted {
            self.void.push(format!("{id}: {accepted} accepted, only {landed} landed"));
        }
        let audit = product.admin.audit(Some(id)).await?;
        if !audit.holds {
            self.void.push(format!("{id}: audit {}", audit.line()));
        }
        Ok(())
    }

    /// Tells on standard error what happens.
    pub(super) fn say(&self, message: &str) {
        Output::new(self.args.json).note(message);
    }

    /// Turns a failure into a reason why the table does not count; where a program is missing, into
    /// one why these goals are not in it.
    pub(super) fn keep_going<T>(&mut self, what: &str, done: anyhow::Result<T>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                match error.downcast_ref::<Missing>() {
                    Some(missing) => self.not_measured.push((what.to_owned(), missing.to_string())),
                    None => self.void.push(format!("{what}: {error:#}")),
                }
                None
            }
        }
    }

    /// Remembers what disturbed a measurement.
    pub(super) fn note(&mut self, measured: &Measured) {
        self.disturbed(measured.stolen, measured.others);
    }

    /// Remembers what share of a measurement neighbours and other processes took.
    pub(super) fn disturbed(&mut self, stolen: f64, others: f64) {
        self.stolen_max = self.stolen_max.max(stolen);
        self.others_max = self.others_max.max(others);
    }

    /// Whether any of these goals is to be measured.
    pub(super) fn wants(&self, ids: &[&str]) -> bool {
        let only = &self.args.only;
        only.is_empty() || only.iter().any(|wanted| ids.contains(&wanted.as_str()))
    }
}

impl ServerChild {
    /// The admin API of this server.
    pub(super) fn admin(&self) -> anyhow::Result<Admin> {
        let Some(internal) = self.internal else { bail!("the yardstick has no admin API") };
        Admin::new(&format!("http://{internal}"), None)
    }
}

/// Purchases that were accepted for the first time.
pub(super) fn newly_accepted(report: &Report) -> u64 {
    report.succeeded().saturating_sub(report.replayed)
}
