//! The pure core: sales, reservations, orders, and the invariants over them.
//!
//! This folder does not depend on actix, a database or a clock; time is an argument. Every decision
//! of an actor, a backend or the ledger is a pure function or a plain struct here, so that tests
//! compare it with a reference model without starting a server.

pub mod book;
pub mod bucket_facts;
pub mod dead_letter;
pub mod ids;
pub mod invariants;
pub mod lifecycle;
mod loans;
pub(crate) mod named;
pub mod operator_verb;
pub mod order;
mod order_checks;
pub mod payment;
pub mod phase_history;
pub mod placing;
pub mod policy;
pub mod repair;
pub mod request_record;
pub mod retake;
pub mod retention;
pub mod sale;
pub mod sale_change;
pub(crate) mod samples;
pub mod stock_change;
pub mod text;
pub mod violation;

pub use book::{Book, BucketSnapshot, Counting};
pub use dead_letter::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterOrder,
    DeadLetterOrigin, DeadLetterState, DeadLetterTransition, NewDeadLetter, StoreDeadLetterOutcome,
};
pub use ids::{
    BucketNo, BuyerId, DeadLetterNo, Epoch, LoaderToken, RequestId, SaleId, SkuId, SkuNo, TraceId,
};
pub use invariants::InvariantId;
pub use lifecycle::{Actor, OrderChange, OrderEvent, OrderTrigger, SlotReturns};
pub use loans::Loan;
pub use operator_verb::{ByOperator, OperatorVerb, VerbSubject};
pub use order::{
    Failure, Order, OrderIntent, OrderKey, OrderState, OrderTimeline, PlaceOutcome, Refusal,
    Verdict,
};
pub use payment::{
    AttemptKey, CancelOutcome, Currency, DueOrder, DueRefund, ListedPayment, Money, OpenPayment,
    Payment, PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport, PaymentState,
    PaymentTerms, RefundResult, StartedPayment, UnmatchedEvent,
};
pub use phase_history::{PhaseChange, PhaseHistory};
pub use placing::Examination;
pub use policy::{Policy, SkuHistory, Terms, TermsSince};
pub use repair::{AuditVerdict, Repair, RepairAction, RepairOutcome};
pub use request_record::{PayBy, RecordState, RequestRecord};
pub use retake::{DueRetake, RetakeEnd, RetakeOutcome};
pub use retention::{
    ArchiveCursor, ArchiveDigest, ArchivePage, ArchiveTable, OpenEnd, Retention, RetentionChange,
    RetentionState, TableContents,
};
pub use sale::{BucketKey, Phase, Sale, SaleDraft, Sku, SkuDraft};
pub use sale_change::{SaleChange, SaleChanged, SkuChange};
pub use stock_change::{
    StockChange, StockChangeOutcome, StockChangeRequest, Withdrawal, withdrawn_from,
};
