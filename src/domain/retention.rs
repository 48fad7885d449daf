//! What becomes of a finished sale: its rows are archived, then deleted. The sale itself stays, so
//! that its name stays taken.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::named::{ledger_numbers, named_enum};
use super::text::{bytes_of_hex, hex};

named_enum! {
    /// How far a sale is; each state follows the one before.
    #[derive(Default)]
    RetentionState {
        #[default]
        Kept = 0 => "kept",
        /// A complete archive exists.
        Archived = 1 => "archived",
        /// Its orders do not change any more, while the archive is compared with them.
        Sealed = 2 => "sealed",
        /// Some of its rows may be deleted.
        Purging = 3 => "purging",
        Purged = 4 => "purged",
    }
}
ledger_numbers! { RetentionState }

/// The state of a sale, with its archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    pub state: RetentionState,
    /// `None`: not archived.
    pub digest: Option<ArchiveDigest>,
    /// When the state was reached, epoch milliseconds; `None`: kept.
    pub since_ms: Option<i64>,
}

impl Retention {
    /// Whether rows of the sale may be missing.
    pub fn is_purged(&self) -> bool {
        self.state >= RetentionState::Purging
    }
}

/// The next state of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetentionChange {
    /// A closed sale was archived, for the first time or again; ends a seal.
    Archive(ArchiveDigest),
    /// The orders of a sale with this archive stop changing.
    Seal(ArchiveDigest),
    /// The archive does not fit a sealed sale, which is kept again.
    Unseal,
    /// The rows of a sealed sale with these archived contents may be deleted.
    BeginPurge(Vec<TableContents>),
    /// All rows are deleted.
    EndPurge,
}

impl RetentionChange {
    /// The state afterwards; `None`: the change is not allowed. A repeat is.
    pub fn after(&self, before: &Retention) -> Option<Retention> {
        use RetentionState::{Archived, Kept, Purged, Purging, Sealed};
        let (state, digest) = match (self, before.state) {
            (Self::Archive(digest), Kept | Archived | Sealed) => (Archived, Some(*digest)),
            (Self::Seal(digest), Archived | Sealed) if before.digest == Some(*digest) => {
                (Sealed, before.digest)
            }
            (Self::Unseal, Sealed) => (Kept, None),
            (Self::BeginPurge(_), Sealed) => (Purging, before.digest),
            (Self::EndPurge, Purging) => (Purged, before.digest),
            (Self::EndPurge, Purged) => return Some(*before),
            _ => return None,
        };
        Some(Retention { state, digest, since_ms: before.since_ms })
    }
}

/// SHA-256 of the manifest of an archive; 64 hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveDigest(pub [u8; 32]);

impl fmt::Display for ArchiveDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for ArchiveDigest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digest = bytes_of_hex(text).and_then(|bytes| bytes.try_into().ok());
        digest.map(Self).ok_or("a digest is 64 hexadecimal digits")
    }
}

impl<'de> Deserialize<'de> for ArchiveDigest {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
    }
}

named_enum! {
    /// The tables of an archive, in its order.
    ArchiveTable {
        Sales => "sales",
        SalePhases => "sale_phases",
        Skus => "skus",
        Terms => "terms",
        StockChanges => "stock_changes",
        Orders => "orders",
        OrderEvents => "order_events",
        Payments => "payments",
        PaymentEvents => "payment_events",
        FailedRequests => "failed_requests",
        Quotas => "quotas",
        Bars => "bars",
        Repairs => "repairs",
    }
}

/// What a table has of a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableContents {
    pub table: ArchiveTable,
    pub rows: u64,
    /// The sums of its columns of units and money, in decimal digits.
    pub sums: BTreeMap<String, String>,
}

named_enum! {
    /// What a sale waits for before it can be archived.
    OpenEnd {
        NotClosed => "not_closed",
        Queued => "queued_requests",
        DeadLetters => "dead_letters",
        Deadlines => "payment_deadlines",
        Payments => "payments_in_flight",
        UnreadEvents => "unread_events",
    }
}

impl OpenEnd {
    /// What ends it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NotClosed => "close the sale: floodgate sale close",
            Self::Queued => "wait until the ledger has decided them: floodgate sale show",
            Self::DeadLetters => "replay or discard them: floodgate dlq list",
            Self::Deadlines => "wait until these orders are paid or time out",
            Self::Payments => "wait for the provider, or see: floodgate payments list",
            Self::UnreadEvents => "wait until stock returner and event publisher have read them",
        }
    }
}

/// A page of the rows of a table, as JSON objects.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArchivePage {
    pub rows: Vec<serde_json::Map<String, serde_json::Value>>,
    /// `None`: the end.
    pub next: Option<ArchiveCursor>,
}

/// The position behind a page: the number of the sale or SKU, and the key of its last row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchiveCursor {
    pub scope_no: i32,
    pub key: Vec<i64>,
}

impl fmt::Display for ArchiveCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scope_no)?;
        self.key.iter().try_for_each(|number| write!(f, ".{number}"))
    }
}

impl FromStr for ArchiveCursor {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split('.');
        let scope_no = numbers.next().unwrap_or_default().parse()?;
        Ok(Self { scope_no, key: numbers.map(str::parse).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sale_is_purged_only_with_the_archive_that_was_compared() {
        use RetentionChange::{Archive, EndPurge, Seal, Unseal};
        let begin_purge = RetentionChange::BeginPurge(Vec::new());
        let (one, other) = (ArchiveDigest([1; 32]), ArchiveDigest([2; 32]));
        let mut now = Retention::default();
        for refused in [Seal(one), Unseal, begin_purge.clone(), EndPurge] {
            assert_eq!(refused.after(&now), None, "{refused:?}");
        }
        now = Archive(other).after(&now).unwrap();
        now = Archive(one).after(&now).unwrap();
        assert_eq!(Seal(other).after(&now), None);
        assert_eq!(begin_purge.after(&now), None);
        now = Seal(one).after(&now).unwrap();
        assert_eq!(Unseal.after(&now), Some(Retention::default()));
        for archived in [one, other] {
            let after = Archive(archived).after(&now).unwrap();
            assert_eq!((after.state, after.digest), (RetentionState::Archived, Some(archived)));
            assert_eq!(begin_purge.after(&after), None);
        }
        now = begin_purge.after(&now).unwrap();
        assert!(now.is_purged());
        for refused in [Archive(one), Seal(one), Unseal, begin_purge] {
            assert_eq!(refused.after(&now), None, "{refused:?}");
        }
        now = EndPurge.after(&now).unwrap();
        assert_eq!((now.state, now.digest), (RetentionState::Purged, Some(one)));
        assert_eq!(EndPurge.after(&now), Some(now));
    }

    #[test]
    fn digests_and_cursors_read_back() {
        let digest = ArchiveDigest([0xa5; 32]);
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "a5", &"+5".repeat(32), &"g0".repeat(32), &"ab".repeat(33)] {
            assert!(bad.parse::<ArchiveDigest>().is_err(), "{bad}");
        }
        let cursor = ArchiveCursor { scope_no: 7, key: vec![i64::MAX, 0] };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        assert!("7.x".parse::<ArchiveCursor>().is_err());
    }
}
