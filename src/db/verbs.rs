//! The verbs of operators: their port and their rows; see `rows`.

use async_trait::async_trait;
use diesel::prelude::*;

use super::Error;
use super::schema::operator_verbs;
use crate::domain::operator_verb::REASON_CHARS_MAX;
use crate::domain::text::clip;
use crate::domain::{ByOperator, OperatorVerb};

/// The record of what operators changed. A verb that changes the ledger is recorded in the
/// transaction of its change; [`Self::record_verbs`] records the others.
#[async_trait]
pub trait VerbStore: Send + Sync {
    /// Records verbs after their effect.
    async fn record_verbs(&self, verbs: Vec<OperatorVerb>) -> Result<(), Error>;

    /// Verbs with their numbers, newest first: of one subject or of all, those before a number, at
    /// most `limit`.
    async fn verbs(
        &self,
        subject: Option<String>,
        before: Option<i32>,
        limit: u32,
    ) -> Result<Vec<(i32, OperatorVerb)>, Error>;
}

/// A row of `operator_verbs`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = operator_verbs, treat_none_as_default_value = false)]
pub struct VerbRow {
    /// Numbered by the database.
    #[diesel(skip_insertion)]
    pub(super) verb_no: i32,
    subject: String,
    verb: String,
    operator: String,
    reason: Option<String>,
    detail: Option<String>,
    at_ms: i64,
}

impl From<&OperatorVerb> for VerbRow {
    /// Longer names and reasons are refused or cut before.
    fn from(verb: &OperatorVerb) -> Self {
        let text = |text: &Option<String>| text.as_deref().map(|text| clip(text, REASON_CHARS_MAX));
        Self {
            verb_no: 0,
            subject: clip(&verb.subject, 320),
            verb: clip(&verb.verb, 32),
            operator: clip(&verb.by.name, 64),
            reason: text(&verb.by.reason),
            detail: text(&verb.detail),
            at_ms: verb.at_ms,
        }
    }
}

impl From<VerbRow> for (i32, OperatorVerb) {
    fn from(row: VerbRow) -> Self {
        let by = ByOperator { name: row.operator, reason: row.reason };
        let VerbRow { subject, verb, detail, at_ms, .. } = row;
        (row.verb_no, OperatorVerb { subject, verb, by, detail, at_ms })
    }
}
