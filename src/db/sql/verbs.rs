//! The verbs of operators.

use async_trait::async_trait;
use diesel::dsl::insert_into;
use diesel::prelude::*;

use super::queries::queries;
use super::{Database, SqlLedger, TransactionEnd};
use crate::db::schema::operator_verbs;
use crate::db::verbs::VerbRow;
use crate::db::{Error, VerbStore};
use crate::domain::operator_verb::{ByOperator, OperatorVerb, VerbSubject};

queries! {
/// The queries about the verbs of operators.
trait VerbQueries {
    fn insert_verb(&mut self, row: &VerbRow) -> QueryResult<()> {
        insert_into(operator_verbs::table).values(row).execute(self).map(drop)
    }

    /// Verbs of one subject or of all before this number, newest first.
    fn verb_rows(
        &mut self, subject: Option<&str>, before: i32, limit: u32
    ) -> QueryResult<Vec<VerbRow>> {
        let mut rows = operator_verbs::table
            .filter(operator_verbs::verb_no.lt(before))
            .order(operator_verbs::verb_no.desc())
            .limit(i64::from(limit))
            .select(VerbRow::as_select())
            .into_boxed();
        if let Some(subject) = subject {
            rows = rows.filter(operator_verbs::subject.eq(subject));
        }
        rows.load(self)
    }
}
}

/// Records who made the change of this transaction, and the old and new values; without an operator
/// it is the program's own.
pub(super) fn record_by<D: Database>(
    conn: &mut D,
    subject: &VerbSubject,
    verb: &str,
    detail: Option<String>,
    by: Option<&ByOperator>,
    at_ms: i64,
) -> Result<(), Error> {
    if let Some(by) = by {
        let verb = OperatorVerb { detail, ..OperatorVerb::new(subject, verb, by, at_ms) };
        conn.insert_verb(&VerbRow::from(&verb))?;
    }
    Ok(())
}

#[async_trait]
impl<D: Database> VerbStore for SqlLedger<D> {
    async fn record_verbs(&self, verbs: Vec<OperatorVerb>) -> Result<(), Error> {
        if verbs.is_empty() {
            return Ok(());
        }
        self.write_at("recording verbs of operators", move |conn, _| {
            for verb in &verbs {
                conn.insert_verb(&VerbRow::from(verb))?;
            }
            Ok(TransactionEnd::Commit(()))
        })
        .await
    }

    async fn verbs(
        &self,
        subject: Option<String>,
        before: Option<i32>,
        limit: u32,
    ) -> Result<Vec<(i32, OperatorVerb)>, Error> {
        self.read("reading verbs of operators", move |conn| {
            let rows = conn.verb_rows(subject.as_deref(), before.unwrap_or(i32::MAX), limit)?;
            Ok(rows.into_iter().map(Into::into).collect())
        })
        .await
    }
}
