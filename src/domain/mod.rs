//! The pure core: sales, reservations, orders, and the invariants over them.
//!
//! This folder does not depend on actix, a database or a clock; time is an argument. Every decision
//! of an actor, a backend or the ledger is a pure function or a plain struct here, so that tests
//! compare it with a reference model without starting a server.

pub mod book;
pub mod dead_letter;
pub mod ids;
pub mod invariants;
pub mod lifecycle;
mod loans;
pub(crate) mod named;
pub mod order;
pub mod payment;
pub mod placing;
pub mod policy;
pub mod sale;
pub(crate) mod samples;
pub mod stage;

pub use book::{Book, BookSnapshot, Counting};
pub use dead_letter::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterOrigin, DeadLetterState, DeadLetterTransition, NewDeadLetter, StoreDeadLetterOutcome,
};
pub use ids::{BucketNo, BuyerId, Epoch, LoaderToken, RequestId, SaleId, SkuId, SkuNo, TraceId};
pub use invariants::InvariantId;
pub use lifecycle::{Actor, OrderChange, OrderEvent, OrderTrigger, SlotReturns};
pub use loans::Loan;
pub use order::{
    Failure, Order, OrderIntent, OrderKey, OrderState, OrderTimeline, PlaceOutcome, Refusal,
    RequestStatus, Reservation, Verdict,
};
pub use payment::{
    AttemptKey, CancelOutcome, Currency, DueOrder, DueRefund, Money, OpenPayment, Payment,
    PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport, PaymentState, PaymentTerms,
    RefundResult, StartedPayment,
};
pub use placing::Examination;
pub use policy::Policy;
pub use sale::{BucketKey, Phase, Sale, SaleDraft, Sku, SkuDraft};
pub use stage::{OrderStage, PayBy};
