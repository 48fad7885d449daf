//! The record of an accepted request in its bucket: 18 bytes, and a few more that its state has.
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

use crate::domain::{
    BuyerId, Epoch, OrderState, PayBy, RecordState, RecordedOrder, Refusal, RequestId,
    RequestRecord,
};

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
pub const THREE_BYTES_MAX: u32 = 0x00ff_ffff;

pub(super) fn three_bytes(number: u32) -> [u8; 3] {
    let [_, bytes @ ..] = number.min(THREE_BYTES_MAX).to_be_bytes();
    bytes
}

pub(super) fn of_three_bytes([high, middle, low]: [u8; 3]) -> u32 {
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

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::ids::ID_MAX;

    /// Ids of any length, half of them of 18 and 19 digits.
    pub fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![1..=ID_MAX, 100_000_000_000_000_000..=ID_MAX]
    }

    impl RequestRecord {
        pub fn pack(&self) -> Vec<u8> {
            let mut bytes = Vec::new();
            self.pack_into(&mut bytes);
            bytes
        }
    }

    fn refusals() -> impl Strategy<Value = Refusal> {
        prop_oneof![
            Just(Refusal::SoldOut),
            numbers().prop_map(|first| Refusal::AlreadyPurchased {
                first: RequestId::new(first).unwrap()
            }),
            any::<(u32, u32)>().prop_map(|(owned, limit)| Refusal::QuotaExceeded { owned, limit }),
            Just(Refusal::RequestIdReused),
            Just(Refusal::NotStarted),
            Just(Refusal::Ended),
            Just(Refusal::Discarded),
            Just(Refusal::Barred),
            Just(Refusal::CancelledByBuyer),
            Just(Refusal::QueueTimeout),
        ]
    }

    fn states() -> impl Strategy<Value = RecordState> {
        prop_oneof![
            any::<i32>().prop_map(|epoch| RecordState::Queued { epoch: Epoch(epoch.into()) }),
            (
                prop::sample::select(OrderState::ALL.to_vec()),
                (any::<u16>(), 0..=i64::MAX, any::<u32>())
            )
                .prop_map(|(state, (version, amount, pay_by))| {
                    let pay_by = PayBy(pay_by);
                    RecordState::Ordered(RecordedOrder { state, version, amount, pay_by })
                }),
            refusals().prop_map(RecordState::Failed),
        ]
    }

    prop_compose! {
        fn records()(
            buyer in numbers(),
            quantity in 1..=THREE_BYTES_MAX,
            placed_at_ms in 0..=PLACED_AT_MS_MAX,
            state in states(),
        ) -> RequestRecord {
            RequestRecord { buyer: BuyerId::new(buyer).unwrap(), quantity, placed_at_ms, state }
        }
    }

    proptest! {
        #[test]
        fn a_packed_record_unpacks_to_itself(record in records()) {
            let bytes = record.pack();
            match record.state {
                RecordState::Queued { .. } => prop_assert_eq!(bytes.len(), QUEUED_BYTES),
                RecordState::Ordered(_) => {
                    let amount_bytes = bytes.len().checked_sub(ORDERED_BYTES);
                    prop_assert!(amount_bytes.is_some_and(|it| it <= AMOUNT_BYTES_MAX));
                }
                RecordState::Failed(_) => prop_assert!(bytes.len() > HEAD_BYTES),
            }
            prop_assert_eq!(RequestRecord::unpack(&bytes), Ok(record));
        }

        #[test]
        fn a_record_cut_short_or_made_longer_is_refused(record in records(), at in any::<usize>()) {
            let mut bytes = record.pack();
            // What follows is the amount, whose length only its hash field tells.
            let is_ordered = matches!(record.state, RecordState::Ordered(_));
            let end = if is_ordered { ORDERED_BYTES } else { bytes.len() };
            prop_assert!(RequestRecord::unpack(&bytes[..at % end]).is_err());
            bytes.resize(end + if is_ordered { AMOUNT_BYTES_MAX + 1 } else { 1 }, 1);
            prop_assert!(RequestRecord::unpack(&bytes).is_err());
        }

        #[test]
        fn an_unpacked_record_packs_to_the_same_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..32),
        ) {
            if let Ok(record) = RequestRecord::unpack(&bytes) {
                prop_assert_eq!(record.pack(), bytes);
            }
        }
    }

    #[test]
    fn an_invalid_part_is_named() {
        let good = RequestRecord {
            buyer: BuyerId::new(7).unwrap(),
            quantity: 1,
            placed_at_ms: 1,
            state: RecordState::Queued { epoch: Epoch(1) },
        }
        .pack();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            RequestRecord::unpack(&bytes).unwrap_err().0
        };
        assert_eq!(with(7, 0), "no buyer");
        assert_eq!(with(0, 0x80), "no buyer");
        assert_eq!(with(10, 0), "no units");
        assert_eq!(with(11, b'6'), "an unknown state");
        assert_eq!(with(11, b'5'), "too short");
        assert_eq!(with(11, b'F'), "an unknown reason");
    }

    #[test]
    fn a_time_outside_the_range_is_clamped() {
        for (placed_at_ms, clamped) in [(-1, 0), (i64::MAX, PLACED_AT_MS_MAX)] {
            let state = RecordState::Queued { epoch: Epoch(1) };
            let buyer = BuyerId::new(1).unwrap();
            let record = RequestRecord { buyer, quantity: 1, placed_at_ms, state };
            assert_eq!(RequestRecord::unpack(&record.pack()).unwrap().placed_at_ms, clamped);
        }
    }
}
