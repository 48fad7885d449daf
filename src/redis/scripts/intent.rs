//! The binary formats of an accepted request: its record, which a bucket stores, and its intent.
//!
//! A record has 18 bytes, and a few more that its state has:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..8 | buyer, big-endian |
//! | 8..11 | units, big-endian |
//! | 11 | state: `Q` queued, `0` to `5` the order's state, `F` failed |
//! | 12..18 | time of the request, epoch milliseconds, big-endian |
//! | 18..22 | queued only: the epoch of its terms, big-endian |
//! | 18..20 | order only: its version, big-endian |
//! | 20..24 | order only: its payment deadline, [`PayBy`], big-endian |
//! | 24.. | order only: its amount, big-endian without leading zeros, up to 8 bytes |
//! | 18.. | failed only: one byte for the reason, and its details |
//!
//! Scripts compare the first 11 bytes, and read state and version; they never decode an id.
//!
//! An intent has 78 bytes: the record of the queued request, then the other fields, then a
//! signature that only a process of the installation can compute:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..22 | the record of the request, which a script copies to its page |
//! | 22 | the version of this layout; its highest bit: the slot is the request's own number |
//! | 23..31 | request |
//! | 31..35 | SKU |
//! | 35 | bucket |
//! | 36..39 | quota, 0 for none |
//! | 39..47 | amount |
//! | 47..50 | payment window, seconds |
//! | 50..66 | trace |
//! | 66..78 | HMAC-SHA-256 of the bytes before, its first 96 bits |
//!
//! All numbers are big-endian. An outbox entry is a sequence of intents. 64 of them with the
//! overhead of Redis stay below 5 KiB; a larger value would take 6. A number that does not fit its
//! bytes is beyond every limit of a sale, and stored as the largest one.

use std::fmt;
use std::slice::Chunks;

use hmac::Mac;

use crate::domain::{
    BucketNo, BuyerId, Epoch, OrderIntent, OrderState, PayBy, RecordState, RecordedOrder, Refusal,
    RequestId, RequestRecord, SkuNo, TraceId,
};
use crate::runtime::mac::{HmacSha256, MAC_BYTES, keyed};

/// Bytes of buyer and units, which must be equal in a repeat of the request.
pub const CONTENT_BYTES: usize = 11;

/// First bytes of every record.
pub const HEAD_BYTES: usize = 18;

/// Bytes of the record of a queued request.
pub const QUEUED_BYTES: usize = HEAD_BYTES + 4;

/// Bytes of the record of an order, without its amount.
pub const ORDERED_BYTES: usize = HEAD_BYTES + 6;

/// Most bytes of an amount.
pub const AMOUNT_BYTES_MAX: usize = 8;

/// The latest time that fits: far beyond the year 10000.
const PLACED_AT_MS_MAX: i64 = (1 << 48) - 1;

/// The largest number of three bytes, stored for a larger one: no limit of a sale is beyond it.
const THREE_BYTES_MAX: u32 = 0x00ff_ffff;

fn three_bytes(number: u32) -> [u8; 3] {
    let [_, bytes @ ..] = number.min(THREE_BYTES_MAX).to_be_bytes();
    bytes
}

fn of_three_bytes([high, middle, low]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, high, middle, low])
}

/// The bytes were not written by any version of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BrokenRecord(pub &'static str);

impl RequestRecord {
    /// Appends the record's bytes.
    pub fn pack_into(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.buyer.get().to_be_bytes());
        bytes.extend(three_bytes(self.quantity));
        bytes.push(match self.state {
            RecordState::Queued { .. } => b'Q',
            RecordState::Ordered(order) => code_of(order.state),
            RecordState::Failed(_) => b'F',
        });
        let [_, _, placed_at @ ..] = self.placed_at_ms.clamp(0, PLACED_AT_MS_MAX).to_be_bytes();
        bytes.extend(placed_at);
        match self.state {
            RecordState::Queued { epoch } => {
                bytes.extend(i32::try_from(epoch.0).unwrap_or(i32::MAX).to_be_bytes());
            }
            RecordState::Ordered(RecordedOrder { version, pay_by, amount, .. }) => {
                bytes.extend(version.to_be_bytes());
                bytes.extend(pay_by.0.to_be_bytes());
                bytes.extend(amount.max(0).to_be_bytes().into_iter().skip_while(|byte| *byte == 0));
            }
            RecordState::Failed(reason) => pack_reason(reason, bytes),
        }
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Names the first invalid part.
    pub fn unpack(bytes: &[u8]) -> Result<Self, BrokenRecord> {
        let mut rest = Cursor(bytes);
        let buyer =
            BuyerId::new(u64::from_be_bytes(rest.take()?)).ok_or(BrokenRecord("no buyer"))?;
        let quantity = of_three_bytes(rest.take()?);
        if quantity == 0 {
            return Err(BrokenRecord("no units"));
        }
        let [code] = rest.take()?;
        let placed_at_ms =
            rest.take::<6>()?.into_iter().fold(0, |ms, byte| ms << 8 | i64::from(byte));
        let state = match code {
            b'Q' => RecordState::Queued { epoch: Epoch(i32::from_be_bytes(rest.take()?).into()) },
            b'F' => RecordState::Failed(unpack_reason(&mut rest)?),
            _ => RecordState::Ordered(RecordedOrder {
                state: state_of(code).ok_or(BrokenRecord("an unknown state"))?,
                version: u16::from_be_bytes(rest.take()?),
                pay_by: PayBy(u32::from_be_bytes(rest.take()?)),
                amount: rest.amount()?,
            }),
        };
        rest.end()?;
        Ok(Self { buyer, quantity, placed_at_ms, state })
    }
}

fn code_of(state: OrderState) -> u8 {
    match state {
        OrderState::PendingPayment => b'0',
        OrderState::Paid => b'1',
        OrderState::TimedOut => b'2',
        OrderState::Cancelled => b'3',
        OrderState::Refunded => b'4',
        OrderState::Paying => b'5',
    }
}

fn state_of(code: u8) -> Option<OrderState> {
    OrderState::ALL.into_iter().find(|state| code_of(*state) == code)
}

fn pack_reason(reason: Refusal, bytes: &mut Vec<u8>) {
    match reason {
        Refusal::SoldOut => bytes.push(b'S'),
        Refusal::AlreadyPurchased { first } => {
            bytes.push(b'A');
            bytes.extend(first.get().to_be_bytes());
        }
        Refusal::QuotaExceeded { owned, limit } => {
            bytes.push(b'Q');
            bytes.extend(owned.to_be_bytes());
            bytes.extend(limit.to_be_bytes());
        }
        Refusal::RequestIdReused => bytes.push(b'R'),
        Refusal::NotStarted => bytes.push(b'N'),
        Refusal::Ended => bytes.push(b'E'),
        Refusal::Discarded => bytes.push(b'D'),
        Refusal::Barred => bytes.push(b'B'),
        Refusal::CancelledByBuyer => bytes.push(b'C'),
        Refusal::QueueTimeout => bytes.push(b'T'),
    }
}

fn unpack_reason(rest: &mut Cursor<'_>) -> Result<Refusal, BrokenRecord> {
    let [code] = rest.take()?;
    Ok(match code {
        b'S' => Refusal::SoldOut,
        b'A' => {
            let first = RequestId::new(u64::from_be_bytes(rest.take()?));
            Refusal::AlreadyPurchased { first: first.ok_or(BrokenRecord("no first request"))? }
        }
        b'Q' => Refusal::QuotaExceeded {
            owned: u32::from_be_bytes(rest.take()?),
            limit: u32::from_be_bytes(rest.take()?),
        },
        b'R' => Refusal::RequestIdReused,
        b'N' => Refusal::NotStarted,
        b'E' => Refusal::Ended,
        b'D' => Refusal::Discarded,
        b'B' => Refusal::Barred,
        b'C' => Refusal::CancelledByBuyer,
        b'T' => Refusal::QueueTimeout,
        _ => return Err(BrokenRecord("an unknown reason")),
    })
}

/// Reads bytes from the front.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl Cursor<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], BrokenRecord> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BrokenRecord("too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    /// The rest, as an amount.
    fn amount(&mut self) -> Result<i64, BrokenRecord> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.first() == Some(&0) || bytes.len() > AMOUNT_BYTES_MAX {
            return Err(BrokenRecord("an unreadable amount"));
        }
        let amount = bytes.iter().fold(0, |amount: u64, byte| amount << 8 | u64::from(*byte));
        i64::try_from(amount).map_err(|_overflow| BrokenRecord("an unreadable amount"))
    }

    pub(crate) fn end(&self) -> Result<(), BrokenRecord> {
        if self.0.is_empty() { Ok(()) } else { Err(BrokenRecord("too long")) }
    }
}

/// Bytes of one intent.
pub const INTENT_BYTES: usize = 78;

/// The version that is written and read.
pub const VERSION: u8 = 3;

/// In the byte of the version: the slot is the request's own number.
const OWN_SLOT: u8 = 0x80;

/// Signs accepted intents. Every process of an installation has the same key, from the ledger.
#[derive(Clone)]
pub struct IntentKey(HmacSha256);

impl IntentKey {
    pub fn new(secret: &[u8]) -> Self {
        Self(keyed(secret))
    }

    /// Whether a process of this installation packed this intent. Compares in constant time.
    #[must_use]
    pub fn has_signed(&self, bytes: &[u8]) -> bool {
        bytes.split_last_chunk::<MAC_BYTES>().is_some_and(|(signed, code)| {
            self.0.clone().chain_update(signed).verify_truncated_left(code).is_ok()
        })
    }
}

impl fmt::Debug for IntentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntentKey(..)")
    }
}

pub fn pack_into(intent: &OrderIntent, key: &IntentKey, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    RequestRecord::queued(intent).pack_into(bytes);
    bytes.push(if intent.slot == 0 { VERSION } else { VERSION | OWN_SLOT });
    bytes.extend(intent.request.get().to_be_bytes());
    bytes.extend(intent.sku.0.to_be_bytes());
    bytes.push(u8::try_from(intent.bucket.0).unwrap_or(u8::MAX));
    bytes.extend(three_bytes(intent.quota.unwrap_or(0)));
    bytes.extend(intent.amount.to_be_bytes());
    bytes.extend(three_bytes(u32::try_from(intent.payment_window_s).unwrap_or(u32::MAX)));
    bytes.extend(intent.trace.0.to_be_bytes());
    let code = key.0.clone().chain_update(bytes.get(start..).unwrap_or_default()).finalize();
    bytes.extend(code.into_bytes().iter().take(MAC_BYTES));
}

pub fn pack(intent: &OrderIntent, key: &IntentKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INTENT_BYTES);
    pack_into(intent, key, &mut bytes);
    bytes
}

/// The intents of a sequence; the last one may be cut.
pub fn split(bytes: &[u8]) -> Chunks<'_, u8> {
    bytes.chunks(INTENT_BYTES)
}

/// Decodes an intent, whatever its origin.
///
/// # Errors
/// Names the first invalid part.
pub fn unpack(bytes: &[u8]) -> Result<OrderIntent, BrokenRecord> {
    let (record, rest) = bytes.split_at_checked(QUEUED_BYTES).ok_or(BrokenRecord("too short"))?;
    let record = RequestRecord::unpack(record)?;
    let RecordState::Queued { epoch } = record.state else {
        return Err(BrokenRecord("not queued"));
    };
    let mut rest = Cursor(rest);
    let [version] = rest.take()?;
    if version & !OWN_SLOT != VERSION {
        return Err(BrokenRecord("an unknown version"));
    }
    let request =
        RequestId::new(u64::from_be_bytes(rest.take()?)).ok_or(BrokenRecord("no request"))?;
    let intent = OrderIntent {
        request,
        sku: SkuNo(i32::from_be_bytes(rest.take()?)),
        bucket: BucketNo(u8::from_be_bytes(rest.take()?).into()),
        epoch,
        buyer: record.buyer,
        quantity: record.quantity,
        slot: if version & OWN_SLOT == 0 { 0 } else { request.to_db() },
        quota: Some(of_three_bytes(rest.take()?)).filter(|it| *it > 0),
        amount: i64::from_be_bytes(rest.take()?),
        placed_at_ms: record.placed_at_ms,
        payment_window_s: of_three_bytes(rest.take()?).cast_signed(),
        trace: TraceId(u128::from_be_bytes(rest.take()?)),
        published_at_ms: None,
    };
    let _code: [u8; MAC_BYTES] = rest.take()?;
    rest.end()?;
    Ok(intent)
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
