//! Flow step 11/12: ledger and gates -> verdict.
//!
//! Reads everything and believes nothing: every order of the ledger is streamed past the
//! [`Checker`] in one read transaction per SKU, every order is looked up at its gate, and sums are
//! compared. Memory does not grow with the number of orders. It writes nothing.
//!
//! While a sale is running, gates and ledger are read at slightly different instants. What can only
//! be judged at rest (`StockConserved`, `CompensatedOnce`, requests that ended nowhere) is judged
//! when the gates stood still during the reading, and is named in the notes otherwise.

use serde::Serialize;
use tokio::sync::mpsc;

use crate::db::{self, AuditRow, Ledger};
use crate::domain::invariants::{Checker, FailureFacts, GateFacts, GateView, Violation};
use crate::domain::{InvariantId, Order, Phase, RequestStatus, Sale, SaleId, Sku, SkuNo};
use crate::outbox;
use crate::stock::{self, Stock};
use crate::tier::Pipeline;

use self::queued::QueuedRequests;

mod queued;

/// How many orders are compared with the gates at a time.
const CHUNK: usize = 512;

/// How often a SKU is read again when its gates did not stand still.
const READINGS_MAX: u32 = 3;

/// Why an audit could not tell.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No sale of that name.
    #[error("no sale has the id {0}")]
    UnknownSale(SaleId),
    /// The ledger could not be read.
    #[error("the ledger could not be read")]
    Ledger(#[from] db::Error),
    /// The gates could not be read.
    #[error("the gates could not be read")]
    Stock(#[from] stock::Error),
    /// The outbox could not be read.
    #[error("the outbox could not be read")]
    Outbox(#[from] outbox::Error),
}

/// What an audit reads.
#[derive(Clone, Copy)]
pub struct AuditSources<'a> {
    /// Where orders are true.
    pub ledger: &'a dyn Ledger,
    /// What gates know; without it only the ledger is judged.
    pub stock: Option<&'a dyn Stock>,
    /// What is between them, in tier `pipeline`.
    pub pipeline: Option<&'a Pipeline>,
}

/// What an audit found.
#[derive(Debug, Clone, Serialize)]
pub struct AuditReport {
    /// Whether every invariant that was judged holds.
    pub holds: bool,
    /// Whether every invariant could be judged.
    pub could_tell: bool,
    /// When it was read, epoch milliseconds.
    pub checked_at_ms: i64,
    /// Orders read.
    pub num_orders: u64,
    /// Dead letters of the whole ledger that are open or parked: ends of their requests.
    pub num_dead_letters: u64,
    /// Broken invariants found.
    pub num_violations: u64,
    /// The first of them, in detail.
    pub violations: Vec<Violation>,
    /// Which invariants were judged, and on what evidence.
    pub judged: Vec<AuditBasis>,
    /// What could not be judged, and why; and what was not judged because it does not matter any
    /// more.
    pub notes: Vec<String>,
}

/// How an audit knows.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AuditBasis {
    /// The invariant.
    pub invariant: InvariantId,
    /// What was read and compared.
    pub evidence: &'static str,
}

/// What each invariant is judged by.
pub const EVIDENCE: [(InvariantId, &str); 9] = [
    (
        InvariantId::NoOversell,
        "units left + units of live orders = initial stock, per SKU, in one read transaction; no \
         order of a SKU that no sale has",
    ),
    (
        InvariantId::OneOrderPerRequest,
        "request ids of all orders of the ledger, grouped and counted without their index",
    ),
    (InvariantId::LimitHeld, "live orders and units per buyer against the policy and quota rows"),
    (
        InvariantId::NothingLost,
        "every success of the gates against the ledger; request ids both ordered and failed; in \
         tier pipeline every overdue request against outbox, queues and dead letters",
    ),
    (
        InvariantId::StockConserved,
        "units and buyers of the gates against the ledger; every order looked up at its gate",
    ),
    (
        InvariantId::StatusMonotone,
        "every success that the gates report against the ledger's orders",
    ),
    (
        InvariantId::CompensatedOnce,
        "units that the gates gave back against the ledger's recorded failures",
    ),
    (InvariantId::Drains, "age of the oldest unsettled request that is no dead letter"),
    (InvariantId::Fenced, "opening of every order against the openings of its sale"),
];

/// Invariants that need the gates.
const OF_THE_GATES: [InvariantId; 4] = [
    InvariantId::StockConserved,
    InvariantId::StatusMonotone,
    InvariantId::CompensatedOnce,
    InvariantId::Drains,
];

/// Audits one sale or all of them. Without a stock only the ledger is judged.
pub async fn audit(
    stock: Option<&dyn Stock>,
    ledger: &dyn Ledger,
    sale: Option<&SaleId>,
    now_ms: i64,
) -> Result<AuditReport, Error> {
    audit_all(AuditSources { ledger, stock, pipeline: None }, sale, now_ms).await
}

/// Audits one sale or all of them, with everything that can be read.
pub async fn audit_all(
    sources: AuditSources<'_>,
    sale: Option<&SaleId>,
    now_ms: i64,
) -> Result<AuditReport, Error> {
    let AuditSources { ledger, stock, pipeline } = sources;
    let sales: Vec<Sale> = ledger
        .sales()
        .await?
        .into_iter()
        .filter(|known| sale.is_none_or(|wanted| known.id == *wanted))
        .collect();
    if let (Some(wanted), true) = (sale, sales.is_empty()) {
        return Err(Error::UnknownSale(wanted.clone()));
    }
    let (checker, notes, could_tell) = (Checker::default(), Vec::new(), stock.is_some());
    let mut run = AuditRun { stock, pipeline, ledger, now_ms, checker, notes, could_tell };
    for (sale, sku) in sales.iter().flat_map(|sale| sale.skus.iter().map(move |sku| (sale, sku))) {
        run.sku(sale, sku).await?;
    }
    run.over_all().await?;
    let letters = ledger.count_dead_letters().await?;
    Ok(run.report(letters.open + letters.parked))
}

struct AuditRun<'a> {
    stock: Option<&'a dyn Stock>,
    pipeline: Option<&'a Pipeline>,
    ledger: &'a dyn Ledger,
    now_ms: i64,
    checker: Checker,
    notes: Vec<String>,
    could_tell: bool,
}

impl AuditRun<'_> {
    /// Audits one SKU; where its gates cannot be read, the ledger alone. One SKU in this state does
    /// not keep the others from being judged.
    async fn sku(&mut self, sale: &Sale, sku: &Sku) -> Result<(), Error> {
        let error = match self.judge(sku).await {
            Err(Error::Stock(error)) if is_of_one_sku(&error) => error,
            judged => return judged,
        };
        let note = format!("sku {}: {error}; its orders were not compared with its gates", sku.no);
        // The buckets of a sale that ended long ago are not loaded again.
        if sale.phase == Phase::Closed {
            self.notes.push(format!("{note}, which sell nothing any more"));
        } else {
            self.not_told(note);
        }
        let stock = self.stock.take();
        let judged = self.judge(sku).await;
        self.stock = stock;
        judged
    }

    /// Notes what could not be judged.
    fn not_told(&mut self, note: String) {
        self.could_tell = false;
        self.notes.push(note);
    }

    /// Judges what belongs to no single SKU, or to none that a sale has.
    async fn over_all(&mut self) -> Result<(), Error> {
        let found = self.ledger.anomalies_over_all().await?;
        for (request, num_orders) in found.duplicate_requests {
            self.checker.duplicate_request(request, num_orders);
        }
        for unknown in found.unknown_skus {
            self.checker.unknown_sku(unknown.sku, unknown.num_orders, unknown.num_failures);
        }
        Ok(())
    }

    async fn judge(&mut self, sku: &Sku) -> Result<(), Error> {
        for reading in 1..=READINGS_MAX {
            let before = self.gate_facts(sku.no).await?;
            let mut checker = Checker::default();
            let failures = self.read(sku, before.is_some(), &mut checker).await?;
            let after = self.gate_facts(sku.no).await?;
            let is_last = reading == READINGS_MAX;
            if before != after && !is_last {
                continue;
            }
            let queued = self.read_queued(sku, after).await?;
            let stood_still = before == after && after == self.gate_facts(sku.no).await?;
            let gates = after.map(|gates| queued.apart_from(gates));
            let at_rest = stood_still && gates.is_none_or(|gates| gates.num_unsettled == 0);
            if !at_rest && !is_last {
                continue;
            }
            let lost = stood_still && queued.misses_any() && self.way_is_empty(sku).await?;
            if lost {
                queued.report_lost(sku, &mut checker);
            } else if !at_rest {
                let why = match gates {
                    Some(gates) if stood_still => queued.why_not_at_rest(gates.num_unsettled),
                    _ => "the gates did not stand still: ask again when the sale is paused".into(),
                };
                self.not_told(format!(
                    "sku {}: StockConserved and CompensatedOnce were not judged, because {why}",
                    sku.no
                ));
            }
            checker.end(gates.map(|gates| in_motion(gates, at_rest)), failures, self.now_ms);
            self.anomalies(sku, &mut checker).await?;
            self.checker.absorb(checker);
            return Ok(());
        }
        Ok(())
    }

    /// The requests that wait, where there are any.
    async fn read_queued(
        &self,
        sku: &Sku,
        gates: Option<GateFacts>,
    ) -> Result<QueuedRequests, Error> {
        match (self.stock, gates) {
            (Some(stock), Some(gates)) if gates.num_unsettled > 0 => self.queued(stock, sku).await,
            _ => Ok(QueuedRequests::default()),
        }
    }

    async fn gate_facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error> {
        Ok(match self.stock {
            Some(stock) => stock.facts(sku).await?,
            None => None,
        })
    }

    /// Streams the SKU's rows past the checker.
    async fn read(
        &self,
        sku: &Sku,
        ask_gates: bool,
        checker: &mut Checker,
    ) -> Result<FailureFacts, Error> {
        let (sender, mut rows) = mpsc::channel::<AuditRow>(4 * CHUNK);
        let visit = Box::new(move |row| sender.blocking_send(row).is_ok());
        let scan = self.ledger.scan_audit(sku.no, visit);
        let check = async {
            let mut failures = FailureFacts::default();
            let mut chunk = Vec::with_capacity(CHUNK);
            while rows.recv_many(&mut chunk, CHUNK).await > 0 {
                let mut orders = Vec::with_capacity(chunk.len());
                for row in chunk.drain(..) {
                    match row {
                        AuditRow::Sku(facts, of_failures) => {
                            failures = of_failures;
                            checker.begin(facts);
                        }
                        AuditRow::Order(order) => orders.push(order),
                    }
                }
                self.check_orders(sku.no, ask_gates, &orders, checker).await?;
            }
            Ok::<_, Error>(failures)
        };
        let (scanned, failures) = tokio::join!(scan, check);
        scanned?;
        failures
    }

    async fn check_orders(
        &self,
        sku: SkuNo,
        ask_gates: bool,
        orders: &[Order],
        checker: &mut Checker,
    ) -> Result<(), Error> {
        let Some(stock) = self.stock.filter(|_| ask_gates) else {
            for order in orders {
                checker.order(order, None);
            }
            return Ok(());
        };
        let asked = orders.iter().map(|order| (order.request, order.buyer)).collect();
        let standings = stock.standings(sku, asked).await?;
        for (order, standing) in orders.iter().zip(standings) {
            let says = match standing {
                Some(RequestStatus::Ordered { .. }) => GateView::Ordered,
                Some(RequestStatus::Queued) => GateView::Queued,
                Some(RequestStatus::Failed(_)) => GateView::Failed,
                None => GateView::Unknown,
            };
            checker.order(order, Some(says));
        }
        Ok(())
    }

    async fn anomalies(&self, sku: &Sku, checker: &mut Checker) -> Result<(), Error> {
        let found = self.ledger.anomalies(sku.no).await?;
        for request in found.orders_and_failures {
            checker.order_and_failure(request);
        }
        for (buyer, owned, live) in found.wrong_quotas {
            checker.wrong_quota(sku.no, buyer, owned, live);
        }
        Ok(())
    }

    fn report(mut self, num_dead_letters: u64) -> AuditReport {
        if self.stock.is_none() {
            self.notes.push(
                "no server was asked: StockConserved, StatusMonotone, CompensatedOnce and Drains \
                 compare the ledger with running gates and were not judged"
                    .to_owned(),
            );
        }
        let judged = EVIDENCE
            .into_iter()
            .filter(|(id, _)| self.stock.is_some() || !OF_THE_GATES.contains(id))
            .map(|(invariant, evidence)| AuditBasis { invariant, evidence })
            .collect();
        let num_orders = self.checker.num_orders();
        let (violations, num_violations) = self.checker.finish();
        AuditReport {
            holds: num_violations == 0,
            could_tell: self.could_tell,
            checked_at_ms: self.now_ms,
            num_orders,
            num_dead_letters,
            num_violations,
            violations,
            judged,
            notes: self.notes,
        }
    }
}

/// Whether the gates of other SKUs may be readable all the same.
fn is_of_one_sku(error: &stock::Error) -> bool {
    match error {
        stock::Error::NotLoaded(_)
        | stock::Error::HalfWritten { .. }
        | stock::Error::Fenced { .. }
        | stock::Error::Damaged { .. } => true,
        stock::Error::Unavailable { .. } | stock::Error::Unknown { .. } => false,
    }
}

/// Gates that moved during the reading are only judged by what holds at any instant: one unsettled
/// request is enough for the checker to leave the sums alone.
fn in_motion(mut gates: GateFacts, at_rest: bool) -> GateFacts {
    if !at_rest {
        gates.num_unsettled = gates.num_unsettled.max(1);
    }
    gates
}
