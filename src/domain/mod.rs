//! The pure core: what is sold, to whom, and what may never happen.
//!
//! Nothing here knows of actix, a database or a clock; time comes in as an argument. Every decision
//! that an actor, a backend or the ledger makes is a function or a plain struct in this folder, so
//! that it can be checked against a reference model without starting anything.

pub mod book;
pub mod dead_letter;
pub mod ids;
pub mod invariants;
mod loans;
pub mod order;
pub mod placing;
pub mod policy;
pub mod reservation;
pub mod sale;
pub(crate) mod samples;
pub mod verdict;

pub use book::{Book, BookSnapshot, Counting};
pub use dead_letter::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterOrigin, DeadLetterState, DeadLetterTransition, KeepOutcome, NewDeadLetter,
};
pub use ids::{BucketNo, BuyerId, Epoch, RequestId, SaleId, SkuId, SkuNo, TraceId};
pub use invariants::InvariantId;
pub use loans::Loan;
pub use order::{Failure, Order, OrderIntent, OrderState, OrderTimeline};
pub use placing::{Examination, PlaceOutcome};
pub use policy::Policy;
pub use reservation::Reservation;
pub use sale::{Phase, Sale, SaleDraft, Sku, SkuDraft};
pub use verdict::{Refusal, RequestStatus, Verdict};
