//! The stable codes of every refusal and failure of the HTTP interface, in one table. The constant
//! part of each body is built at compile time: a sold-out answer formats only its trace id.

use crate::domain::Refusal;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident => $status:literal, $code:literal, $title:literal,
        $detail:literal;)+) => {
        /// The stable problem codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ProblemCode {
            $($(#[$doc])* $variant,)+
        }

        impl ProblemCode {
            /// Every code, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// Default explanation, used if the answer has no more specific one.
            pub const fn detail(self) -> &'static str {
                match self { $(Self::$variant => $detail,)+ }
            }

            /// The body up to the value of `detail`.
            pub(super) const fn body_head(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!(
                        "{\"type\":\"/problems/", $code, "\",\"title\":\"", $title,
                        "\",\"status\":", $status, ",\"code\":\"", $code, "\",\"detail\":",
                    ),)+
                }
            }
        }
    };
}

codes! {
    InvalidRequest => 400, "invalid-request", "Invalid request",
        "The request is malformed or outside the limits of the sale.";
    Unauthenticated => 401, "unauthenticated", "Unauthenticated",
        "Valid credentials are needed.";
    RequestIdInvalid => 403, "request-id-invalid", "Request id not valid",
        "This request id was not issued for this buyer and SKU, or it has expired. Get a new one.";
    TicketInvalid => 403, "ticket-invalid", "Ticket not valid",
        "This ticket was not issued to this buyer, has expired, or was used for another request.";
    ChallengeFailed => 403, "challenge-failed", "Challenge failed",
        "The answer is wrong, too late, or one too many. Get a new challenge.";
    NotStarted => 403, "not-started", "Not started",
        "The sale is not open now. See starts_at.";
    /// A refusal `NotStarted` of a sale whose start has passed.
    Paused => 403, "paused", "Paused",
        "The sale is paused, and may go on. Ask again with the same request id after Retry-After.";
    Forbidden => 403, "forbidden", "Forbidden",
        "Requests of other sites' pages, and of proxies, are refused here.";
    UnknownSku => 404, "unknown-sku", "No such sale or SKU",
        "There is no such sale, or it does not offer this SKU.";
    /// Also the answer for a request of another buyer.
    NotFound => 404, "not-found", "Not found",
        "There is nothing here.";
    UnknownDeadLetter => 404, "unknown-dead-letter", "No such dead letter",
        "No dead letter has this number. See /admin/v1/dead-letters.";
    MethodNotAllowed => 405, "method-not-allowed", "Method not allowed",
        "This path does not answer to this method. See the Allow header.";
    SoldOut => 409, "sold-out", "Sold out",
        "Fewer units are left than were asked for.";
    AlreadyPurchased => 409, "already-purchased", "Already purchased",
        "This buyer has an order for this SKU. See request_id.";
    QuotaExceeded => 409, "quota-exceeded", "Quota exceeded",
        "The order would exceed what one buyer may have. See owned and limit.";
    Barred => 403, "barred", "Barred",
        "An order of this buyer was not paid in time. The sale is closed to this buyer.";
    Discarded => 409, "discarded", "Discarded",
        "This request could not be carried out. Nothing was bought; buy anew.";
    CancelledByBuyer => 409, "cancelled-by-buyer", "Cancelled",
        "This request was cancelled while it was queued. Nothing was bought; buy anew.";
    QueueTimeout => 409, "queue-timeout", "Queued for too long",
        "This request was queued for longer than its sale allows. Nothing was bought; buy anew.";
    AlreadyDecided => 409, "already-decided", "Already decided",
        "The request is an order, or has failed: it cannot be cancelled any more. See state.";
    SaleExists => 409, "sale-exists", "Sale exists",
        "A sale of this name exists. Choose another name.";
    PhaseConflict => 409, "phase-conflict", "Phase conflict",
        "The sale cannot move to this phase from where it stands.";
    SaleClosed => 409, "sale-closed", "Sale closed",
        "A closed sale does not change.";
    SaleUnfinished => 409, "sale-unfinished", "Sale not finished",
        "Something of the sale is still under way. See open.";
    ArchiveDiffers => 409, "archive-differs", "Archive differs",
        "The ledger has other contents than the archive, or another archive. Archive it again.";
    SalePurged => 409, "sale-purged", "Sale purged",
        "The rows of the sale were deleted. They are in its archive.";
    ChangeConflict => 409, "change-conflict", "Change id used",
        "This change_id names a change of another SKU or of other units.";
    DeadLetterNotReplayable => 409, "dead-letter-not-replayable", "Dead letter not replayable",
        "The dead letter cannot be replayed, or discarded: its requests cannot be read. Show it, \
         then park it.";
    DeadLetterUnreadable => 409, "dead-letter-unreadable", "Dead letter not readable",
        "The dead letter, or a row of one of its requests, cannot be read in the ledger.";
    DeadLetterConflict => 409, "dead-letter-conflict", "Dead letter changed",
        "The dead letter was replayed, or changed meanwhile. Show it again.";
    DeadLetterOrdered => 409, "dead-letter-ordered", "Requests are orders",
        "Every request of the dead letter is an order. Replay closes it.";
    OtherCount => 409, "other-count", "Another number of dead letters",
        "The filter matches another number of dead letters than expected. Nothing was changed.";
    NoBroker => 409, "no-broker", "No broker",
        "Dead letters are replayed by processes of tier pipeline only.";
    NoBuckets => 409, "no-buckets", "Nothing to rebuild",
        "The sale is a draft, not prepared yet or long over, or its tier has no buckets in Redis.";
    LedgerBehind => 409, "ledger-behind", "Ledger behind its buckets",
        "The ledger was restored from an older backup. Open the sale.";
    NotPayable => 409, "not-payable", "Not payable",
        "The order cannot be paid, or its payment cannot be stopped any more. Read the order.";
    Ended => 410, "ended", "Ended",
        "The sale is over.";
    BodyTooLarge => 413, "body-too-large", "Body too large",
        "The body is larger than is read here.";
    RequestIdReused => 422, "request-id-reused", "Request id used before",
        "This request id was used with other content. Use a new one for another purchase.";
    RateLimited => 429, "rate-limited", "Too many calls",
        "Calls come faster than allowed. Nothing was done; try again after Retry-After.";
    Internal => 500, "internal", "Internal error",
        "Something went wrong here. Ask again with the same request id.";
    Busy => 503, "busy", "Busy",
        "This call took nothing. Ask again with the same request id after Retry-After.";
    BrokerAway => 503, "broker-away", "Broker away",
        "The broker did not accept the message. Nothing was published; try again.";
    NotConfirmed => 503, "not-confirmed", "Not confirmed",
        "The broker did not confirm the message: it may be published. Repeats do no harm.";
    NotReady => 503, "not-ready", "Not ready",
        "This process cannot do its work now. See checks.";
}

impl From<&Refusal> for ProblemCode {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::SoldOut => Self::SoldOut,
            Refusal::AlreadyPurchased { .. } => Self::AlreadyPurchased,
            Refusal::QuotaExceeded { .. } => Self::QuotaExceeded,
            Refusal::RequestIdReused => Self::RequestIdReused,
            Refusal::NotStarted => Self::NotStarted,
            Refusal::Ended => Self::Ended,
            Refusal::Discarded => Self::Discarded,
            Refusal::Barred => Self::Barred,
            Refusal::CancelledByBuyer => Self::CancelledByBuyer,
            Refusal::QueueTimeout => Self::QueueTimeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::RequestId;

    #[test]
    fn codes_are_unique_and_cover_the_refusals_of_the_domain() {
        let mut names: Vec<_> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ProblemCode::ALL.len());
        let first = RequestId::new(1).unwrap();
        let refusals = [
            Refusal::SoldOut,
            Refusal::AlreadyPurchased { first },
            Refusal::QuotaExceeded { owned: 0, limit: 0 },
            Refusal::RequestIdReused,
            Refusal::NotStarted,
            Refusal::Ended,
            Refusal::Discarded,
            Refusal::Barred,
            Refusal::CancelledByBuyer,
            Refusal::QueueTimeout,
        ];
        for refusal in &refusals {
            assert_eq!(ProblemCode::from(refusal).as_str(), refusal.code());
        }
    }
}
