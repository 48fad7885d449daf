//! The numbers that scripts and doors share, written once: the scripts get theirs from [`prelude`].

use crate::domain::Phase;

/// [`ITEMS_MAX`], to cut batches by.
pub const ITEMS_MAX_USIZE: usize = 2_000;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: i64 = $value;)*

        /// Every name with its number.
        pub const ALL: &[(&str, i64)] = &[$((stringify!($name), $name)),*];
    };
}

codes! {
    /// The script did what it was asked; the answer has more to say.
    OK = 0;
    /// The bucket is missing, or is being loaded.
    NOT_READY = 1;
    /// The bucket was opened on another server: a failover or a restart came between.
    FENCED = 2;
    /// The bucket belongs to another installation, that is, to another ledger.
    FOREIGN = 3;
    /// A value is there that no script wrote.
    CORRUPT = 4;
    /// The batch has more than [`ITEMS_MAX`] items, or a bucket more loans than numbers.
    TOO_MANY = 5;
    /// Another loader came after this one, or it has finished.
    OLD_LOADER = 6;

    /// Units are taken.
    RESERVED = 10;
    /// The asker knows another opening of the sale.
    STALE = 11;
    /// Fewer units are free here than asked for.
    SHORT = 12;
    /// The request id came with other content before.
    REUSED = 13;
    /// The sale is not open.
    NOT_STARTED = 14;
    /// The sale is over.
    ENDED = 15;
    /// No more entries may wait in the outbox.
    FULL = 16;

    /// The order is recorded.
    SETTLED = 20;
    /// The order was never accepted here; it is recorded, and its units are taken.
    ADOPTED = 21;
    /// The refusal is recorded.
    RELEASED = 22;
    /// It was recorded before.
    REPEAT = 23;
    /// The request was never accepted here; its refusal is recorded.
    UNKNOWN = 24;
    /// The request was accepted for another buyer or other units.
    MISMATCH = 25;
    /// The request is an order, and stays one.
    IS_ORDERED = 26;
    /// The request has failed, and stays so.
    IS_FAILED = 27;

    /// Most items of one call. Lua hands at most 8,000 values to a command, and a field with its
    /// value is two.
    ITEMS_MAX = 2_000;
    /// Most entries that one call claims or acknowledges.
    CLAIM_MAX = 1_000;
    /// Entries at the front of an outbox among which a reclaimed one is looked for.
    RECLAIMED_MAX = 256;
    /// First bytes of an entry that tell it from others: its first intent's record, version and
    /// request.
    IDENTITY_BYTES = RECORD_BYTES + 9;
    /// Most units that anything has.
    UNITS_MAX = u32::MAX as i64;
    /// Loans that a bucket may give between two loads, and changes that are counted: the first
    /// numbers belong to the first load, the next to the second, so that what is from before a load
    /// is known by its number.
    NUMBERS_PER_LOAD = 100_000_000;

    /// Sells.
    PHASE_OPEN = Phase::Open as i64;
    /// Over.
    PHASE_CLOSED = Phase::Closed as i64;
    /// The largest number of a phase.
    PHASE_MAX = Phase::Closed as i64;

    /// First bytes of a record that a repeat must have in common with it: buyer and units.
    CONTENT_BYTES = 12;
    /// Where the units begin in a record, counted from 1.
    QUANTITY_AT = 9;
    /// Where the stage is in a record, counted from 1.
    STAGE_AT = CONTENT_BYTES + 1;
    /// Bytes of a record that is not a failure.
    RECORD_BYTES = 19;
}

/// The codes as the first line of a script.
#[must_use]
pub fn prelude() -> String {
    let mut text = String::new();
    for (name, number) in ALL {
        text.push_str(&format!("local {name} = {number}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record;
    use super::*;

    #[test]
    fn no_two_codes_of_an_answer_are_the_same() {
        let mut numbers: Vec<_> =
            ALL.iter().take_while(|(name, _)| *name != "ITEMS_MAX").map(|(_, n)| *n).collect();
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        assert!(numbers.is_sorted());
    }

    #[test]
    fn a_record_is_as_long_as_scripts_think() {
        assert_eq!(usize::try_from(RECORD_BYTES), Ok(record::RECORD_BYTES));
        assert_eq!(usize::try_from(CONTENT_BYTES), Ok(record::CONTENT_BYTES));
    }

    #[test]
    fn phases_have_the_ledgers_numbers() {
        for phase in Phase::ALL {
            assert_eq!(phase as i64, i64::from(phase.to_db()));
            assert!(phase as i64 <= PHASE_MAX);
        }
    }
}
