//! Flow step 11/12: ledger and buckets -> verdict.
//!
//! The audit checks every invariant from the stored data: it streams every order of the ledger to
//! the [`Checker`], in one read transaction per SKU, looks every order up in its bucket, and
//! compares sums. Memory does not grow with the number of orders.
//!
//! A difference becomes a violation only if a second read of the same stores, some seconds later,
//! finds it too: during a sale, every order is for a moment in one store and not yet in the other.
//! [`Repairer`] acts on violations; without it the audit writes nothing.
//!
//! During a sale, buckets and ledger are read at slightly different instants. Checks that require
//! quiescence (`StockConserved`, `CompensatedOnce`, lost requests) run only if the buckets did not
//! change during the reading; otherwise a note names them.

use std::time::Duration;

use crate::db::{self, AuditRow, Ledger};
use crate::domain::invariants::{BucketFacts, BucketView, Checker, Violation};
use crate::domain::{Order, RecordState, RetentionState, Sale, SaleId, Sku, SkuNo};
use crate::outbox;
use crate::runtime::clock::rfc3339;
use crate::services::lost_requests;
use crate::services::rebuild::for_each_chunk;
use crate::services::sales::SalesError;
use crate::stock::{self, Stock};
use crate::tier::Pipeline;

pub mod answers;
mod queued;
mod repair;
mod report;
mod service;

pub use repair::Repairer;
pub use report::{AuditBasis, AuditReport, EVIDENCE, RepairReport};
use report::{NEED_BUCKETS, VerdictCounts};
pub use service::{AuditJob, AuditRequest, AuditService, RepairMode};

/// Orders that are compared with the buckets in one call.
const CHUNK: usize = 512;

/// Attempts to read a SKU without a change of its buckets.
const READINGS_MAX: u32 = 3;

/// Why an audit failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no sale has the id {0}")]
    UnknownSale(SaleId),
    #[error("the ledger could not be read")]
    Ledger(#[from] db::Error),
    #[error("the buckets could not be read")]
    Stock(#[from] stock::Error),
    #[error("the outbox could not be read")]
    Outbox(#[from] outbox::Error),
    #[error("the buckets could not be loaded")]
    Load(#[from] SalesError),
    #[error(transparent)]
    Submit(#[from] lost_requests::Error),
    #[error("another audit runs in this installation with repairs, or in this process")]
    Running,
}

/// The stores that an audit reads.
#[derive(Clone, Copy)]
pub struct AuditSources<'a> {
    pub ledger: &'a dyn Ledger,
    /// Without it only the ledger is checked.
    pub stock: Option<&'a dyn Stock>,
    /// Outbox and broker, in tier `pipeline`.
    pub pipeline: Option<&'a Pipeline>,
    /// Time between the two reads.
    pub recheck: Duration,
}

/// Audits one sale, or all sales, without outbox and broker. Without a stock only the ledger is
/// checked.
pub async fn audit(
    stock: Option<&dyn Stock>,
    ledger: &dyn Ledger,
    sale: Option<&SaleId>,
    now_ms: i64,
) -> Result<AuditReport, Error> {
    audit_all(AuditSources { ledger, stock, pipeline: None, recheck: Duration::ZERO }, sale, now_ms)
        .await
}

/// Audits one sale, or all sales, with all given stores.
pub async fn audit_all(
    sources: AuditSources<'_>,
    sale: Option<&SaleId>,
    now_ms: i64,
) -> Result<AuditReport, Error> {
    let mut run = AuditRun::read(sources, sale, None, now_ms).await?;
    if run.checker.num_violations() > 0 {
        tokio::time::sleep(sources.recheck).await;
        let later_ms = i64::try_from(sources.recheck.as_millis()).unwrap_or(i64::MAX);
        let later_ms = now_ms.saturating_add(later_ms);
        let second = AuditRun::read(sources, sale, Some(&run.checker), later_ms).await?;
        run.confirm(second);
    }
    let dead_letters = sources.ledger.count_dead_letters().await?;
    let reports = sources.ledger.num_unmatched_events().await?;
    Ok(run.report(dead_letters.open + dead_letters.parked, reports))
}

/// A sale whose rows are deleted, or are being deleted.
fn describe_purged(sale: &Sale) -> String {
    let Sale { id, retention, .. } = sale;
    let digest = retention.digest.map_or_else(String::new, |digest| digest.to_string());
    let how_far = match retention.state {
        RetentionState::Purged => "is purged",
        _ => "is half purged (`floodgate sale purge` continues)",
    };
    format!("sale {id} {how_far} and was not judged: its archive has the digest {digest}")
}

struct AuditRun<'a> {
    sources: AuditSources<'a>,
    now_ms: i64,
    checker: Checker,
    notes: Vec<String>,
    could_tell: bool,
    /// SKUs of dormant sales, without buckets.
    num_dormant: u32,
}

impl<'a> AuditRun<'a> {
    /// Compares the stores once: all that is wanted, or what `first` may have violations of. Each
    /// read lists the sales, because one may be purged between them.
    async fn read(
        sources: AuditSources<'a>,
        wanted: Option<&SaleId>,
        first: Option<&Checker>,
        now_ms: i64,
    ) -> Result<Self, Error> {
        let mut sales = sources.ledger.sales().await?;
        if let Some(wanted) = wanted {
            sales.retain(|stored| stored.id == *wanted);
            if sales.is_empty() {
                return Err(Error::UnknownSale(wanted.clone()));
            }
        }
        let purged = sales.extract_if(.., |sale| sale.retention.is_purged());
        let purged: Vec<String> = purged.map(|sale| describe_purged(&sale)).collect();
        let (checker, notes, could_tell) =
            (Checker::default(), Vec::new(), sources.stock.is_some());
        let mut run = Self { sources, now_ms, checker, notes, could_tell, num_dormant: 0 };
        for sale in &sales {
            for sku in &sale.skus {
                if first.is_none_or(|first| first.may_concern(sku.no)) {
                    run.audit_sku(sale, sku).await?;
                }
            }
        }
        if run.num_dormant > 0 {
            run.notes.push(format!(
                "{} SKUs of sales that ended more than a day ago are not loaded now: their orders \
                 were judged by the ledger alone",
                run.num_dormant
            ));
        }
        for violation in sources.ledger.anomalies_across_skus().await? {
            run.checker.report(violation);
        }
        run.notes.extend(purged);
        Ok(run)
    }

    /// Keeps what a second read found, too.
    fn confirm(&mut self, second: Self) {
        let num_gone = self.checker.confirm(&second.checker);
        if num_gone > 0 {
            let after = self.sources.recheck.as_millis();
            self.notes.push(format!("{num_gone} differences were gone {after} ms later"));
        }
        self.could_tell &= second.could_tell;
        let new = second.notes.into_iter().filter(|note| !self.notes.contains(note));
        self.notes.extend(new.collect::<Vec<_>>());
    }
}

impl AuditRun<'_> {
    /// Audits one SKU. If its buckets cannot be read, only the ledger is checked, and the audit
    /// continues with the other SKUs.
    async fn audit_sku(&mut self, sale: &Sale, sku: &Sku) -> Result<(), Error> {
        if !sale.has_buckets() {
            return self.check_sku(sku, None).await;
        }
        let error = match self.check_sku(sku, self.sources.stock).await {
            // Other SKUs may be readable.
            Err(Error::Stock(
                error @ (stock::Error::NotLoaded(_)
                | stock::Error::HalfWritten { .. }
                | stock::Error::Fenced { .. }
                | stock::Error::Damaged { .. }),
            )) => error,
            checked => return checked,
        };
        let note = format!("orders of sku {} were not compared with its buckets: {error}", sku.no);
        match error {
            // Nothing was accepted before the start, and the buckets are loaded shortly before it.
            stock::Error::NotLoaded(_) if self.now_ms < sale.starts_at_ms => {}
            // Dormant sales are loaded again one after another.
            stock::Error::NotLoaded(_) if sale.is_dormant(self.now_ms) => self.num_dormant += 1,
            _ if sale.is_dormant(self.now_ms) => {
                self.notes.push(format!("{note}; the buckets sell nothing any more"));
            }
            _ => self.note_unchecked(note),
        }
        self.check_sku(sku, None).await
    }

    /// Adds a note on a check that should have run and could not.
    fn note_unchecked(&mut self, note: String) {
        self.could_tell = false;
        self.notes.push(note);
    }

    /// Compares the ledger with `stock`; without it only the ledger is checked.
    async fn check_sku(&mut self, sku: &Sku, stock: Option<&dyn Stock>) -> Result<(), Error> {
        for reading in 1..=READINGS_MAX {
            let before = bucket_facts(stock, sku.no).await?;
            let mut checker = Checker::default();
            self.check_rows(sku, stock, &mut checker).await?;
            let after = bucket_facts(stock, sku.no).await?;
            let is_last = reading == READINGS_MAX;
            if before != after && !is_last {
                continue;
            }
            let queued = self.queued_requests(sku, stock, after).await?;
            let is_stable = before == after && after == bucket_facts(stock, sku.no).await?;
            let buckets = after.map(|buckets| queued.without_dead_letters(buckets));
            let is_quiescent =
                is_stable && buckets.is_none_or(|buckets| buckets.num_unsettled == 0);
            if !is_quiescent && !is_last {
                continue;
            }
            let is_lost =
                is_stable && queued.has_overdue() && self.check_pipeline_empty(sku).await?;
            if is_lost {
                queued.report_lost(sku, &mut checker);
            } else if !is_quiescent {
                let why = match buckets {
                    Some(buckets) if is_stable => queued.why_not_quiescent(buckets.num_unsettled),
                    _ => {
                        "the buckets did not stand still: ask again when the sale is paused".into()
                    }
                };
                self.note_unchecked(format!(
                    "sku {}: StockConserved and CompensatedOnce were not judged, because {why}",
                    sku.no
                ));
            }
            // Of buckets that changed during the reading only what holds at any instant is checked:
            // with an unsettled request the checker skips the sums.
            let num_min = u64::from(!is_quiescent);
            let buckets = buckets.zip(before).map(|(buckets, before)| {
                let num_unsettled = buckets.num_unsettled.max(num_min);
                // Orders that were settled later may have been committed after the rows were read.
                let num_ordered = buckets.num_ordered.min(before.num_ordered);
                BucketFacts { num_unsettled, num_ordered, ..buckets }
            });
            checker.end(buckets, self.now_ms);
            for violation in self.sources.ledger.anomalies(sku.no).await? {
                checker.report(violation);
            }
            if let Some((lender, loan)) = buckets.and_then(|buckets| buckets.open_loan) {
                checker.report(Violation::open_transfer(sku.no, lender, loan));
            }
            self.checker.absorb(checker);
            return Ok(());
        }
        Ok(())
    }

    /// Streams the rows of the SKU to the checker.
    async fn check_rows(
        &self,
        sku: &Sku,
        stock: Option<&dyn Stock>,
        checker: &mut Checker,
    ) -> Result<(), Error> {
        let scan = |visit| self.sources.ledger.scan_audit(sku.no, visit);
        for_each_chunk(scan, async |rows| {
            let mut orders = Vec::with_capacity(rows.len());
            for row in rows {
                match row {
                    AuditRow::Sku(facts) => checker.begin(facts),
                    AuditRow::Order(order) => orders.push(order),
                }
            }
            for orders in orders.chunks(CHUNK) {
                check_orders(sku.no, stock, orders, checker).await?;
            }
            Ok(())
        })
        .await
    }

    fn report(mut self, num_dead_letters: u64, reports: (u64, u64)) -> AuditReport {
        if self.sources.stock.is_none() {
            self.notes.push(
                "no server was asked: StockConserved, StatusMonotone, CompensatedOnce and Drains \
                 compare the ledger with running buckets and were not judged"
                    .to_owned(),
            );
        }
        let judged = EVIDENCE
            .into_iter()
            .filter(|(id, _)| self.sources.stock.is_some() || !NEED_BUCKETS.contains(id))
            .map(|(invariant, evidence)| AuditBasis {
                invariant,
                evidence,
                num_violations: self.checker.num_of(invariant),
            })
            .collect();
        let (num_orders, num_violations) =
            (self.checker.num_orders(), self.checker.num_violations());
        let violations = self.checker.finish();
        AuditReport {
            holds: num_violations == 0,
            could_tell: self.could_tell,
            checked_at: rfc3339(self.now_ms),
            checked_at_ms: self.now_ms,
            num_orders,
            num_dead_letters,
            num_unmatched_reports: reports.0,
            num_resolved_reports: reports.1,
            num_violations,
            verdicts: VerdictCounts::of(num_orders, &violations),
            violations,
            repairs: Vec::new(),
            judged,
            notes: self.notes,
        }
    }
}

async fn bucket_facts(stock: Option<&dyn Stock>, sku: SkuNo) -> Result<Option<BucketFacts>, Error> {
    Ok(match stock {
        Some(stock) => Some(stock.facts(sku).await?),
        None => None,
    })
}

/// Checks orders of a SKU, each against the status in its bucket.
async fn check_orders(
    sku: SkuNo,
    stock: Option<&dyn Stock>,
    orders: &[Order],
    checker: &mut Checker,
) -> Result<(), Error> {
    let Some(stock) = stock else {
        for order in orders {
            checker.order(order, None);
        }
        return Ok(());
    };
    let requests = orders.iter().map(|order| (order.request, order.buyer)).collect();
    let records = stock.records(sku, requests).await?;
    for (order, record) in orders.iter().zip(records) {
        let view = match record.map(|record| record.state) {
            Some(RecordState::Ordered { state, .. }) => {
                BucketView::Ordered { is_live: state.is_live() }
            }
            Some(RecordState::Queued { .. }) => BucketView::Queued,
            Some(RecordState::Failed(_)) => BucketView::Failed,
            None => BucketView::Unknown,
        };
        checker.order(order, Some(view));
    }
    Ok(())
}
