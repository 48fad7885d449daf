//! The numbers shared by the Lua scripts and their typed calls, and the texts of the scripts, which
//! begin with them.

use std::collections::HashSet;

use super::Script;
use crate::domain::Phase;

/// [`ITEMS_MAX`] as a batch length.
pub const ITEMS_MAX_USIZE: usize = 2_000;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: i64 = $value;)*

        /// Every name and its number.
        pub const ALL: &[(&str, i64)] = &[$((stringify!($name), $name)),*];
    };
}

codes! {
    /// The script has run; its results follow.
    OK = 0;
    /// The bucket is missing, or is being loaded.
    NOT_READY = 1;
    /// The bucket was opened on another server: there was a failover or a restart since.
    FENCED = 2;
    /// The bucket belongs to another installation, that is, another ledger, or does not name one.
    FOREIGN = 3;
    /// A value was not written by any script.
    CORRUPT = 4;
    /// The batch has more than [`ITEMS_MAX`] items, or the bucket has used all loan numbers.
    TOO_MANY = 5;
    /// A loader with a larger token has begun, or this loader has finished.
    OLD_LOADER = 6;

    RESERVED = 10;
    /// The reservation has another epoch than the bucket.
    STALE = 11;
    /// Fewer units are free in this bucket than requested.
    SHORT = 12;
    /// The request id was used with another content before.
    REUSED = 13;
    /// The sale is not open.
    NOT_STARTED = 14;
    /// The sale is over.
    ENDED = 15;
    /// The outbox is full.
    FULL = 16;

    /// The order is recorded.
    SETTLED = 20;
    /// The bucket never accepted the order's request; the order is recorded, its units are taken.
    ADOPTED = 21;
    /// The refusal is recorded.
    RELEASED = 22;
    /// The same decision was recorded before.
    REPEAT = 23;
    /// The bucket never accepted the request; its refusal is recorded.
    UNKNOWN = 24;
    /// The request was accepted for another buyer or other units.
    MISMATCH = 25;
    /// The request is an order, and stays one.
    IS_ORDERED = 26;
    /// The request has failed, and stays so.
    IS_FAILED = 27;
    /// The order's record is replaced by one of a larger version.
    ADVANCED = 28;

    /// Most items of one call. Lua passes at most 8,000 values to a command; a field and its value
    /// are two.
    ITEMS_MAX = 2_000;
    /// Most entries that one call claims or acknowledges.
    CLAIM_MAX = 1_000;
    /// Entries at the front of an outbox that are searched for a reclaimed one.
    RECLAIMED_MAX = 256;
    /// First bytes of an entry, which identify it: its first intent's record, version and request.
    IDENTITY_BYTES = QUEUED_BYTES + 9;
    /// Upper bound of all unit counts.
    UNITS_MAX = u32::MAX as i64;
    /// Loan numbers, and change counts, of one load. The first range belongs to the first load, the
    /// next one to the second, so that a number shows the load that it belongs to.
    NUMBERS_PER_LOAD = 100_000_000;

    PHASE_OPEN = Phase::Open as i64;
    PHASE_CLOSED = Phase::Closed as i64;
    /// The largest number of a phase.
    PHASE_MAX = Phase::Closed as i64;

    /// First bytes of a record, which must be equal in a repeat: buyer and units.
    CONTENT_BYTES = 11;
    /// Position of the units in a record, from 1.
    QUANTITY_AT = 9;
    /// Position of the state in a record, from 1.
    STATE_AT = CONTENT_BYTES + 1;
    /// First bytes of every record: buyer, units, state and time.
    HEAD_BYTES = 18;
    /// Bytes of the record of a queued request: head and epoch.
    QUEUED_BYTES = HEAD_BYTES + 4;
    /// Position of the version in the record of an order, from 1.
    VERSION_AT = HEAD_BYTES + 1;
    /// Bytes of the record of an order, without its amount.
    ORDERED_BYTES = HEAD_BYTES + 6;
    /// Most bytes of an amount.
    AMOUNT_BYTES_MAX = 8;
}

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");

impl Script {
    /// The whole text: the script's first line (the `#!lua` line must be the first), then the codes
    /// and the parts of the prelude that the script uses, then the rest. Unused parts are left out
    /// because each call executes the whole text.
    pub fn text(self) -> String {
        let (first, rest) = self.body().split_once('\n').unwrap_or_default();
        let codes: Vec<_> =
            ALL.iter().map(|(name, number)| format!("local {name} = {number}")).collect();
        let codes = codes.iter().map(String::as_str);
        let shared: Vec<&str> = codes.chain(PRELUDE.split("\n\n")).collect();
        let (mut used, mut parts) = (identifiers(rest), vec![rest]);
        // A part uses only earlier parts.
        for part in shared.into_iter().rev() {
            if defined_names(part).any(|name| used.contains(name)) {
                used.extend(identifiers(part));
                parts.push(part);
            }
        }
        parts.push(first);
        parts.reverse();
        parts.join("\n")
    }
}

/// The identifiers of a script, without its comment lines.
fn identifiers(text: &str) -> HashSet<&str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect()
}

/// The names that a part of the prelude defines.
fn defined_names(part: &str) -> impl Iterator<Item = &str> {
    part.lines().filter_map(|line| line.strip_prefix("local ")).flat_map(|line| {
        let names = line.strip_prefix("function ").unwrap_or(line);
        names.split(['(', '=']).next().unwrap_or_default().split(',').map(str::trim)
    })
}

#[cfg(test)]
mod tests {
    use super::super::intent;
    use super::*;

    #[test]
    fn answer_codes_are_distinct() {
        let mut numbers: Vec<_> =
            ALL.iter().take_while(|(name, _)| *name != "ITEMS_MAX").map(|(_, n)| *n).collect();
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        assert!(numbers.is_sorted());
    }

    #[test]
    fn record_lengths_are_equal_in_lua_and_rust() {
        assert_eq!(usize::try_from(HEAD_BYTES), Ok(intent::HEAD_BYTES));
        assert_eq!(usize::try_from(QUEUED_BYTES), Ok(intent::QUEUED_BYTES));
        assert_eq!(usize::try_from(CONTENT_BYTES), Ok(intent::CONTENT_BYTES));
        assert_eq!(usize::try_from(ORDERED_BYTES), Ok(intent::ORDERED_BYTES));
        assert_eq!(usize::try_from(AMOUNT_BYTES_MAX), Ok(intent::AMOUNT_BYTES_MAX));
    }

    #[test]
    fn phases_have_the_numbers_of_the_ledger() {
        for phase in Phase::ALL {
            assert_eq!(phase as i64, i64::from(phase.to_db()));
            assert!(phase as i64 <= PHASE_MAX);
        }
    }

    #[test]
    fn a_script_begins_with_its_own_first_line_and_the_codes() {
        for script in Script::ALL {
            let text = script.text();
            let mut lines = text.lines();
            assert!(lines.next().unwrap().starts_with("#!lua"), "{}", script.name());
            assert_eq!(lines.next(), Some("local OK = 0"));
        }
    }

    #[test]
    fn a_script_has_only_the_parts_of_the_prelude_that_it_uses() {
        for part in PRELUDE.split("\n\n").skip(1) {
            let is_comment = part.lines().all(|line| line.starts_with("--"));
            assert!(is_comment || defined_names(part).next().is_some(), "defines nothing: {part}");
        }
        let has = |script: Script, name: &str| {
            script.text().contains(&format!("\nlocal function {name}("))
        };
        assert!(has(Script::Reserve, "read_bucket") && has(Script::Reserve, "tag_number"));
        assert!(has(Script::SetPhase, "epoch_and_phase"));
        assert!(!has(Script::SetPhase, "read_bucket"));
        assert!(!has(Script::Reserve, "check_loader") && !has(Script::Find, "write"));
        assert!(!Script::Find.text().contains("local PHASE_OPEN"));
    }
}
