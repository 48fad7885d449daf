//! Repairs what an audit found, while the sale goes on. Each action may be repeated. The ledger
//! records it, the operator of each sale, and what no action can give back as a final failure.
//!
//! On crash: an action without its record is found done by the next audit, which records nothing.

use std::collections::{BTreeMap, HashSet};

use super::report::RepairReport;
use super::{AuditSources, Error, audit_all};
use crate::domain::invariants::Violation;
use crate::domain::{
    BucketKey, ByOperator, OperatorVerb, Repair, RepairAction, RepairOutcome, RequestId, Sale, Sku,
    SkuNo, VerbSubject,
};
use crate::observe::metrics::Metrics;
use crate::services::lost_requests::Submitter;
use crate::services::sales::{SalesError, SalesService};
use crate::stock::Stock;

/// Acts on the violations of an audit.
pub struct Repairer<'a> {
    pub sources: AuditSources<'a>,
    pub sales: &'a SalesService,
    /// Count the repairs, and what lost requests become.
    pub metrics: &'a Metrics,
    pub by: Option<&'a ByOperator>,
    /// Time of the repairs, epoch milliseconds.
    pub now_ms: i64,
}

/// Violations with the same action and SKU.
type Plan<'v> = BTreeMap<(RepairAction, SkuNo), Vec<&'v Violation>>;

impl Repairer<'_> {
    /// What [`Self::repair`] would do.
    pub fn plan(violations: &[Violation]) -> Vec<RepairReport> {
        let planned = |violation: &Violation| {
            let Violation { verdict, action, detail, .. } = violation.clone();
            Some(RepairReport { verdict, action: action?, outcome: None, detail })
        };
        violations.iter().filter_map(planned).collect()
    }

    /// Repairs the violations, which two reads found, and records each repair.
    ///
    /// # Errors
    /// The first one. The repairs that were made are recorded, also those of an action that failed,
    /// and the next repair continues.
    pub async fn repair(&self, violations: &[Violation]) -> Result<Vec<RepairReport>, Error> {
        let sales = self.sources.ledger.sales().await?;
        let mut plan = Plan::new();
        for violation in violations {
            let Some(action) = violation.action else { continue };
            let sku = violation.subject.sku.unwrap_or(SkuNo(0));
            plan.entry((action, sku)).or_default().push(violation);
            if action == RepairAction::Recount && violation.subject.buyer.is_none() {
                // The buckets follow the units left.
                plan.entry((RepairAction::LoadBuckets, sku)).or_default();
            }
        }
        let (mut reports, mut named, mut result) = (Vec::new(), HashSet::new(), Ok(()));
        for ((action, sku), violations) in plan {
            let known = sales
                .iter()
                .find_map(|sale| Some((sale, sale.skus.iter().find(|one| one.no == sku)?)));
            if let (Some(by), Some((sale, _))) = (self.by, known)
                && named.insert(&sale.id)
            {
                let subject = VerbSubject::Sale(sale.id.clone());
                let verb = OperatorVerb::new(&subject, "repair", by, self.now_ms);
                self.sources.ledger.record_verbs(vec![verb]).await?;
            }
            let (mut repairs, mut acted) = (Vec::new(), Ok(()));
            match (known, self.sources.stock) {
                (Some((sale, known)), Some(stock)) => {
                    acted = self.act(action, sale, known, stock, &violations, &mut repairs).await;
                }
                _ => repairs = self.record(sku, &violations, RepairOutcome::FailedFinal, ""),
            }
            // A recount records itself in its transaction.
            if action != RepairAction::Recount {
                let recorded = self.sources.ledger.record_repairs(repairs.clone()).await;
                acted = acted.and(recorded.map_err(Error::from));
            }
            for repair in repairs {
                self.metrics.repair(repair.verdict, repair.outcome);
                tracing::warn!(
                    verdict = repair.verdict.name(),
                    action = repair.action.name(),
                    outcome = repair.outcome.name(),
                    detail = repair.detail,
                    "audit: repaired"
                );
                let Repair { verdict, action, outcome, detail, .. } = repair;
                reports.push(RepairReport { verdict, action, outcome: Some(outcome), detail });
            }
            // Lost requests that are not submitted keep nothing else from its repair.
            let must_stop = matches!(&acted, Err(error) if !matches!(error, Error::Submit(_)));
            result = result.and(acted);
            if must_stop {
                break;
            }
        }
        result.map(|()| reports)
    }

    /// Acts on violations. Adds the repairs that were made to `repairs`, also before an error.
    async fn act(
        &self,
        action: RepairAction,
        sale: &Sale,
        sku: &Sku,
        stock: &dyn Stock,
        violations: &[&Violation],
        repairs: &mut Vec<Repair>,
    ) -> Result<(), Error> {
        let made = match action {
            RepairAction::Submit => {
                return self.submit(sale, sku, stock, violations, repairs).await;
            }
            // Sets counts of the ledger to what its orders say.
            RepairAction::Recount => {
                for violation in violations {
                    let buyer = violation.subject.buyer;
                    repairs.push(self.sources.ledger.recount(sku.no, buyer, self.now_ms).await?);
                }
                return Ok(());
            }
            RepairAction::FinishTransfers => {
                for bucket in BucketKey::all_of(sku) {
                    stock.finish_transfers(bucket).await?;
                }
                self.record(sku.no, violations, RepairOutcome::Compensated, "")
            }
            RepairAction::LoadBuckets => {
                let (outcome, result, left) = self.load(sale, sku).await?;
                // After a recount there may be differences that were none before.
                let left: Vec<&Violation> = left.iter().collect();
                let violations = if violations.is_empty() { &left } else { violations };
                self.record(sku.no, violations, outcome, result)
            }
            RepairAction::Record => self.record(sku.no, violations, RepairOutcome::FailedFinal, ""),
        };
        repairs.extend(made);
        Ok(())
    }

    /// The repair of each violation, all with the same outcome.
    fn record(
        &self,
        sku: SkuNo,
        violations: &[&Violation],
        outcome: RepairOutcome,
        result: &str,
    ) -> Vec<Repair> {
        let repair = |violation: &&Violation| Repair {
            sku,
            request: violation.subject.request,
            verdict: violation.verdict,
            action: violation.action.unwrap_or(RepairAction::Record),
            outcome,
            detail: format!("{}{result}", violation.detail),
            at_ms: self.now_ms,
        };
        violations.iter().map(repair).collect()
    }

    /// Loads the buckets of a SKU. A store in the memory of this process is loaded at its start
    /// only: its buckets may agree with the ledger since a recount. Returns what differs still.
    async fn load(
        &self,
        sale: &Sale,
        sku: &Sku,
    ) -> Result<(RepairOutcome, &'static str, Vec<Violation>), Error> {
        match self.sales.rebuild(&sale.id, Some(&sku.id), None).await {
            Ok(_) => {
                return Ok((RepairOutcome::Compensated, "; the buckets were loaded", Vec::new()));
            }
            Err(SalesError::NoBuckets) => {}
            Err(error) => return Err(error.into()),
        }
        let mut found = audit_all(self.sources, Some(&sale.id), self.now_ms).await?;
        let is_whole = found.could_tell && found.num_violations == found.violations.len() as u64;
        // Those that are not to be repaired yet have no action.
        found.violations.retain(|violation| {
            violation.subject.sku == Some(sku.no)
                && violation.action.is_none_or(|action| action == RepairAction::LoadBuckets)
        });
        let (outcome, result) = if !found.violations.is_empty() {
            let result = "; only a restart of the process loads the units that it counts";
            (RepairOutcome::FailedFinal, result)
        } else if is_whole {
            (RepairOutcome::Compensated, "; the buckets agree with the ledger again")
        } else {
            let result = "; the buckets cannot be compared now: audit again in a pause of the sale";
            (RepairOutcome::FailedFinal, result)
        };
        Ok((outcome, result, found.violations))
    }

    /// Submits lost requests to the ledger. An error in one bucket stops no other.
    async fn submit(
        &self,
        sale: &Sale,
        sku: &Sku,
        stock: &dyn Stock,
        violations: &[&Violation],
        repairs: &mut Vec<Repair>,
    ) -> Result<(), Error> {
        let requests = violations.iter().filter_map(|violation| violation.subject.request);
        let lost: HashSet<RequestId> = requests.collect();
        let (ledger, metrics, now_ms) = (self.sources.ledger, self.metrics, self.now_ms);
        let submitter = Submitter { ledger, stock, metrics, now_ms };
        let mut result: Result<(), Error> = Ok(());
        for bucket in BucketKey::all_of(sku) {
            let mut intents = match stock.unsettled(bucket).await {
                Ok(intents) => intents,
                Err(error) => {
                    result = result.and(Err(error.into()));
                    continue;
                }
            };
            intents.retain(|intent| lost.contains(&intent.request));
            let (decided, submitted) = submitter.submit(sale, sku, bucket, &intents).await;
            repairs.extend(decided);
            result = result.and(submitted.map_err(Error::from));
        }
        result
    }
}
