//! The repairs of the test ledgers.

use async_trait::async_trait;
use floodgate::db::{Error, RepairStore, VerbStore};
use floodgate::domain::{
    AuditVerdict, BuyerId, OperatorVerb, Repair, RepairAction, RepairOutcome, SkuNo,
};

use super::defective_ledger::DefectiveLedger;
use super::faulty_ledger::FaultyLedger;

#[async_trait]
impl RepairStore for DefectiveLedger {
    /// Changes nothing: the defect would come back.
    async fn recount(&self, sku: SkuNo, _: Option<BuyerId>, at_ms: i64) -> Result<Repair, Error> {
        let repair = Repair {
            sku,
            request: None,
            verdict: AuditVerdict::Drift,
            action: RepairAction::Recount,
            outcome: RepairOutcome::FailedFinal,
            detail: "not recounted".to_owned(),
            at_ms,
        };
        self.rows.lock().repairs.push(repair.clone());
        Ok(repair)
    }

    async fn record_repairs(&self, repairs: Vec<Repair>) -> Result<(), Error> {
        self.rows.lock().repairs.extend(repairs);
        Ok(())
    }

    async fn repairs(&self, before: Option<i32>, limit: u32) -> Result<Vec<(i32, Repair)>, Error> {
        let repairs = self.rows.lock().repairs.clone();
        let numbered =
            (1..).zip(repairs).filter(|(no, _)| before.is_none_or(|before| *no < before));
        let newest: Vec<_> = numbered.collect();
        Ok(newest.into_iter().rev().take(limit as usize).collect())
    }
}

#[async_trait]
impl RepairStore for FaultyLedger {
    async fn recount(
        &self,
        sku: SkuNo,
        buyer: Option<BuyerId>,
        now_ms: i64,
    ) -> Result<Repair, Error> {
        self.begin_write().await?;
        self.inner.recount(sku, buyer, now_ms).await
    }

    async fn record_repairs(&self, repairs: Vec<Repair>) -> Result<(), Error> {
        self.begin_write().await?;
        self.inner.record_repairs(repairs).await
    }

    async fn repairs(&self, before: Option<i32>, limit: u32) -> Result<Vec<(i32, Repair)>, Error> {
        self.begin().await?;
        self.inner.repairs(before, limit).await
    }
}

#[async_trait]
impl VerbStore for DefectiveLedger {
    /// Forgets them: no invariant is about them.
    async fn record_verbs(&self, _: Vec<OperatorVerb>) -> Result<(), Error> {
        Ok(())
    }

    async fn verbs(
        &self,
        _: Option<String>,
        _: Option<i32>,
        _: u32,
    ) -> Result<Vec<(i32, OperatorVerb)>, Error> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl VerbStore for FaultyLedger {
    async fn record_verbs(&self, verbs: Vec<OperatorVerb>) -> Result<(), Error> {
        self.begin_write().await?;
        self.inner.record_verbs(verbs).await
    }

    async fn verbs(
        &self,
        subject: Option<String>,
        before: Option<i32>,
        limit: u32,
    ) -> Result<Vec<(i32, OperatorVerb)>, Error> {
        self.begin().await?;
        self.inner.verbs(subject, before, limit).await
    }
}
