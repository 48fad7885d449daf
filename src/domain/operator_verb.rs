//! The verbs of operators, as the ledger records them: what was changed, by whom, and why.

use std::fmt;

use super::ids::{DeadLetterNo, SaleId};
use super::payment::AttemptKey;

/// Most characters of a reason, and of a detail, that the ledger keeps.
pub const REASON_CHARS_MAX: usize = 1000;

/// The operator who asks for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByOperator {
    /// The name of the token.
    pub name: String,
    pub reason: Option<String>,
}

/// What a verb changes. As text `sale:<sale_id>`, `payment:<id>`, `dead_letter:<number>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerbSubject {
    Sale(SaleId),
    /// A report of a payment, by provider and event.
    Report {
        provider: String,
        event_id: String,
    },
    Payment(AttemptKey),
    DeadLetter(DeadLetterNo),
}

impl fmt::Display for VerbSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sale(id) => write!(f, "sale:{id}"),
            Self::Report { provider, event_id } => write!(f, "payment:event:{provider}:{event_id}"),
            Self::Payment(key) => write!(f, "payment:{key}"),
            Self::DeadLetter(no) => write!(f, "dead_letter:{no}"),
        }
    }
}

/// A verb that changed something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorVerb {
    /// [`VerbSubject`] as text.
    pub subject: String,
    /// As in the path of the admin API, such as `close`.
    pub verb: String,
    pub by: ByOperator,
    /// Old and new values of `change`, units of `stock`.
    pub detail: Option<String>,
    /// Epoch milliseconds.
    pub at_ms: i64,
}

impl OperatorVerb {
    pub fn new(subject: &VerbSubject, verb: &str, by: &ByOperator, at_ms: i64) -> Self {
        let (subject, verb) = (subject.to_string(), verb.to_owned());
        Self { subject, verb, by: by.clone(), detail: None, at_ms }
    }
}
