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
    DeadLetter, Kept, LetterCounts, LetterFilter, LetterNo, LetterOrigin, LetterState, LetterTurn,
    NewLetter, WholeLetter,
};
pub use ids::{BucketNo, BuyerId, Epoch, RequestId, SaleId, SkuId, SkuNo, TraceId};
pub use invariants::InvariantId;
pub use loans::Loan;
pub use order::{Failure, Journey, Order, OrderIntent, OrderState};
pub use placing::{Examination, Outcome};
pub use policy::Policy;
pub use reservation::Reservation;
pub use sale::{Phase, Sale, SaleDraft, Sku, SkuDraft};
pub use verdict::{Refusal, Standing, Verdict};
