//! Audits on an operator's request: at once, or in the background with a report to read later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{AuditReport, AuditSources, Error, Repairer, audit_all};
use crate::db::Ledger;
use crate::domain::{ByOperator, SaleId};
use crate::observe::metrics::Metrics;
use crate::runtime::clock::SharedClock;
use crate::runtime::shutdown::run_to_end;
use crate::services::sales::SalesService;
use crate::stock::Stock;
use crate::tier::Pipeline;

/// Audits whose reports are kept.
const JOBS_MAX: usize = 16;

/// Whether an audit repairs what it finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RepairMode {
    #[default]
    Report,
    /// Reports what a repair would do.
    DryRun,
    Repair,
}

/// What to audit.
#[derive(Debug, Clone, Default)]
pub struct AuditRequest {
    /// `None`: all sales.
    pub sale: Option<SaleId>,
    pub mode: RepairMode,
    /// Recorded for each sale that is repaired.
    pub by: Option<ByOperator>,
}

/// An audit in the background.
#[derive(Debug, Clone)]
pub struct AuditJob {
    /// From 1 in this process.
    pub no: u64,
    pub began_at_ms: i64,
    /// `None`: it runs.
    pub result: Option<Result<Arc<AuditReport>, String>>,
}

/// Runs audits. Cheap to clone.
#[derive(Clone)]
pub struct AuditService {
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
    pub pipeline: Option<Pipeline>,
    pub sales: SalesService,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
    /// Time between the two reads.
    pub recheck: Duration,
    pub jobs: Arc<Mutex<VecDeque<AuditJob>>>,
}

impl AuditService {
    /// Audits, and repairs if asked to.
    pub async fn run(&self, request: &AuditRequest) -> Result<AuditReport, Error> {
        let sources = AuditSources {
            ledger: self.ledger.as_ref(),
            stock: Some(self.stock.as_ref()),
            pipeline: self.pipeline.as_ref(),
            recheck: self.recheck,
        };
        let audit = self.audit(sources, request);
        if request.mode != RepairMode::Repair {
            return audit.await;
        }
        self.sales.repair_alone(audit).await.unwrap_or(Err(Error::Running))
    }

    async fn audit(
        &self,
        sources: AuditSources<'_>,
        request: &AuditRequest,
    ) -> Result<AuditReport, Error> {
        let mut report = audit_all(sources, request.sale.as_ref(), self.clock.wall_ms()).await?;
        report.repairs = match request.mode {
            RepairMode::Report => Vec::new(),
            RepairMode::DryRun => Repairer::plan(&report.violations),
            RepairMode::Repair => {
                let (now_ms, by) = (self.clock.wall_ms(), request.by.as_ref());
                let (sales, metrics) = (&self.sales, self.metrics.as_ref());
                let repairer = Repairer { sources, sales, metrics, by, now_ms };
                repairer.repair(&report.violations).await?
            }
        };
        Ok(report)
    }

    /// Registers a new audit, to be run by [`Self::run_job`]. `None`: one is running.
    pub fn begin(&self) -> Option<AuditJob> {
        let mut jobs = self.jobs.lock();
        if jobs.back().is_some_and(|last| last.result.is_none()) {
            return None;
        }
        if jobs.len() >= JOBS_MAX {
            jobs.pop_front();
        }
        let no = jobs.back().map_or(1, |last| last.no + 1);
        let job = AuditJob { no, began_at_ms: self.clock.wall_ms(), result: None };
        jobs.push_back(job.clone());
        Some(job)
    }

    /// Runs a registered audit and keeps its report.
    pub async fn run_job(self, no: u64, request: AuditRequest) {
        let audits = self.clone();
        let result = match run_to_end(async move { audits.run(&request).await }).await {
            Some(Ok(report)) => Ok(Arc::new(report)),
            Some(Err(error)) => Err(format!("{:#}", anyhow::Error::new(error))),
            None => Err("the audit panicked: the log names the place".to_owned()),
        };
        if let Some(job) = self.jobs.lock().iter_mut().find(|job| job.no == no) {
            job.result = Some(result);
        }
    }

    /// A registered audit; the last 16 are kept until the process ends.
    pub fn job(&self, no: u64) -> Option<AuditJob> {
        self.jobs.lock().iter().find(|job| job.no == no).cloned()
    }
}
