//! The binary format of a dead letter: the given-up part of an entry, with time and reason.
//!
//! | bytes | holds |
//! |---|---|
//! | 0 | the version of this layout |
//! | 1..9 | when it was given up, epoch milliseconds |
//! | 9..13 | publish attempts |
//! | 13..15 | length of the reason |
//! | 15.. | the reason, then the unpublished message |
//!
//! All numbers are big-endian. Scripts do not parse dead letters.

use bytes::{Buf, BufMut};

use crate::outbox::{NewOutboxDeadLetter, OutboxDeadLetter};
use crate::redis::scripts::intent::BrokenRecord;

const VERSION: u8 = 1;

/// Most bytes of a reason; a longer one is truncated.
const REASON_MAX: usize = 1_000;

pub fn pack_into(dead_letter: &NewOutboxDeadLetter, dead_at_ms: i64, bytes: &mut Vec<u8>) {
    let reason = &dead_letter.reason;
    let reason = reason.get(..reason.floor_char_boundary(REASON_MAX)).unwrap_or_default();
    bytes.put_u8(VERSION);
    bytes.put_i64(dead_at_ms);
    bytes.put_u32(dead_letter.attempts);
    bytes.put_u16(u16::try_from(reason.len()).unwrap_or_default());
    bytes.extend(reason.as_bytes());
    bytes.extend(&dead_letter.bytes);
}

/// Decodes a dead letter.
pub fn unpack(bytes: &[u8]) -> Result<OutboxDeadLetter, BrokenRecord> {
    let mut rest = bytes;
    if rest.try_get_u8()? != VERSION {
        return Err(BrokenRecord("an unknown version"));
    }
    let (dead_at_ms, attempts) = (rest.try_get_i64()?, rest.try_get_u32()?);
    let length = usize::from(rest.try_get_u16()?);
    let (reason, body) = rest.split_at_checked(length).ok_or(BrokenRecord("too short"))?;
    let reason =
        str::from_utf8(reason).map_err(|_no_text| BrokenRecord("a reason that is no text"))?;
    Ok(OutboxDeadLetter {
        id: bytes.into(),
        bytes: bytes::Bytes::copy_from_slice(body),
        reason: reason.to_owned(),
        attempts,
        dead_at_ms,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn new_dead_letter(bytes: Vec<u8>, reason: &str, attempts: u32) -> NewOutboxDeadLetter {
        NewOutboxDeadLetter { bytes: bytes.into(), reason: reason.to_owned(), attempts }
    }

    proptest! {
        #[test]
        fn a_packed_dead_letter_unpacks_to_itself(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            reason in ".{0,40}",
            attempts: u32,
            dead_at_ms: i64,
        ) {
            let mut packed = Vec::new();
            pack_into(&new_dead_letter(bytes.clone(), &reason, attempts), dead_at_ms, &mut packed);
            let dead_letter = unpack(&packed).unwrap();
            let bytes = bytes.into();
            let id = packed.into();
            let expected = OutboxDeadLetter { id, bytes, reason, attempts, dead_at_ms };
            prop_assert_eq!(dead_letter, expected);
        }

        #[test]
        fn unpacking_arbitrary_bytes_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            drop(unpack(&bytes));
        }
    }

    #[test]
    fn a_long_reason_is_truncated_between_characters() {
        let mut packed = Vec::new();
        pack_into(&new_dead_letter(b"body".to_vec(), &"ä".repeat(REASON_MAX), 3), 7, &mut packed);
        let dead_letter = unpack(&packed).unwrap();
        assert_eq!(dead_letter.reason, "ä".repeat(REASON_MAX / 2));
        assert_eq!(dead_letter.bytes, b"body"[..]);
    }

    #[test]
    fn an_invalid_dead_letter_is_refused() {
        let mut packed = Vec::new();
        pack_into(&new_dead_letter(Vec::new(), "why", 1), 7, &mut packed);
        for cut in 0..packed.len() {
            assert!(unpack(&packed[..cut]).is_err(), "{cut}");
        }
        packed[0] = 2;
        assert_eq!(unpack(&packed), Err(BrokenRecord("an unknown version")));
        packed[0] = 1;
        packed[15] = 0xff;
        assert_eq!(unpack(&packed), Err(BrokenRecord("a reason that is no text")));
    }
}
