//! Request ids: the number of a purchase request, and the signature that binds it to its buyer.
//!
//! A request id is written `<number>-<sku_no>-<mac>`. The number has 63 bits; the mac is base64url
//! without padding of the first 12 bytes of HMAC-SHA-256 (RFC 2104) over sale, SKU, buyer and
//! number, so that a buyer cannot use, guess or look up the id of another buyer.
//!
//! | policy | number |
//! |---|---|
//! | `one_per_buyer` | 63 bits of HMAC-SHA-256 over sale, SKU and buyer: always the same |
//! | others | 41 bits of milliseconds since 2025-01-01, 16 bits process, 6 bits sequence |

use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::digest::Key;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::domain::ids::ID_MAX;
use crate::domain::{BuyerId, RequestId, SaleId, SkuNo};

type HmacSha256 = Hmac<Sha256>;

/// 2025-01-01T00:00:00Z in epoch milliseconds: zero of the time in a number.
const NUMBER_EPOCH_MS: i64 = 1_735_689_600_000;
/// 64 numbers per millisecond; a process that needs more borrows from the next millisecond.
const SEQUENCE_BITS: u32 = 6;
/// Process numbers repeat after 65,536 starts.
const PROCESS_BITS: u32 = 16;
/// 41 bits: the numbers last until the year 2094.
const NUMBER_MS_MAX: u64 = (1 << 41) - 1;

/// Length of the truncated signature. RFC 2104 requires at least 80 bits; 96 bits fill whole base64
/// characters.
const MAC_BYTES: usize = 12;
/// [`MAC_BYTES`] in base64url.
const MAC_CHARS: usize = 16;

/// A request id as it was sent, not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnverifiedRequestId {
    pub number: RequestId,
    pub sku_no: SkuNo,
    pub mac: [u8; MAC_BYTES],
}

/// Issues, signs and verifies request ids. One per process.
#[derive(Debug)]
pub struct RequestTokens {
    /// HMAC state after the key, cloned for each use, so that the key is hashed once.
    keyed: HmacSha256,
    process: u64,
    ttl_ms: i64,
    /// The last issued number: milliseconds, then sequence.
    last_tick: AtomicU64,
}

impl RequestTokens {
    /// Ids are signed with `key` (any length; at least 32 bytes recommended), numbered for
    /// `process` (incremented at every start) and valid for `ttl_ms` after their issue.
    ///
    /// Two processes that run at the same time must have different process numbers.
    pub fn new(key: &[u8], process: u16, ttl_ms: u64) -> Self {
        Self {
            keyed: keyed(key),
            process: u64::from(process),
            ttl_ms: i64::try_from(ttl_ms).unwrap_or(i64::MAX),
            last_tick: AtomicU64::new(0),
        }
    }

    /// A new number, greater than those of all earlier calls, also when the clock goes back. A
    /// millisecond whose sequence is exhausted borrows from the next one.
    pub fn issue(&self, now_ms: i64) -> RequestId {
        let since = u64::try_from(now_ms.saturating_sub(NUMBER_EPOCH_MS)).unwrap_or(0);
        let now_tick = since.min(NUMBER_MS_MAX) << SEQUENCE_BITS;
        loop {
            let next = |last: u64| Some(now_tick.max(last.saturating_add(1)));
            let last = self.last_tick.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
            let tick = now_tick.max(last.unwrap_or_default().saturating_add(1));
            if let Some(id) = RequestId::new(self.number_of(tick)) {
                return id;
            }
        }
    }

    fn number_of(&self, tick: u64) -> u64 {
        let sequence = tick & ((1 << SEQUENCE_BITS) - 1);
        let ms = tick >> SEQUENCE_BITS;
        ((ms << PROCESS_BITS | self.process) << SEQUENCE_BITS | sequence) & ID_MAX
    }

    /// The number of a buyer for a SKU, for policies that derive it: always the same, never 0.
    pub fn derive(&self, sale: &SaleId, sku: SkuNo, buyer: BuyerId) -> RequestId {
        let mut attempt = 0;
        loop {
            let mac = self.mac("one-per-buyer", sale, sku, buyer, attempt).finalize();
            let mut head = [0; 8];
            head.iter_mut().zip(mac.into_bytes()).for_each(|(to, from)| *to = from);
            // One buyer in 2^63 gets 0, which is not a valid id.
            if let Some(id) = RequestId::new(u64::from_be_bytes(head) >> 1) {
                return id;
            }
            attempt += 1;
        }
    }

    /// The signed request id of `number`.
    pub fn sign(&self, number: RequestId, sale: &SaleId, sku: SkuNo, buyer: BuyerId) -> String {
        let mac = self.mac("request-id", sale, sku, buyer, number.get()).finalize().into_bytes();
        let mut text = format!("{number}-{sku}-");
        URL_SAFE_NO_PAD.encode_string(mac.get(..MAC_BYTES).unwrap_or_default(), &mut text);
        text
    }

    /// Parses a request id without verifying its signature. Each id has exactly one valid spelling.
    pub fn read(text: &str) -> Option<UnverifiedRequestId> {
        let mut parts = text.splitn(3, '-');
        let (number, sku, mac) = (parts.next()?, parts.next()?, parts.next()?);
        let plain_sku = !sku.starts_with('0') && sku.bytes().all(|b| b.is_ascii_digit());
        if !plain_sku || mac.len() != MAC_CHARS {
            return None;
        }
        let mut bytes = [0; MAC_BYTES];
        let length = URL_SAFE_NO_PAD.decode_slice(mac, &mut bytes).ok()?;
        (length == MAC_BYTES).then_some(())?;
        Some(UnverifiedRequestId {
            number: number.parse().ok()?,
            sku_no: SkuNo(sku.parse().ok()?),
            mac: bytes,
        })
    }

    /// Whether the id was signed with this key for this buyer, sale and SKU. Compares in constant
    /// time.
    #[must_use]
    pub fn verify(
        &self,
        id: &UnverifiedRequestId,
        sale: &SaleId,
        sku: SkuNo,
        buyer: BuyerId,
    ) -> bool {
        id.sku_no == sku
            && self
                .mac("request-id", sale, sku, buyer, id.number.get())
                .verify_truncated_left(&id.mac)
                .is_ok()
    }

    /// Expiry of an issued number, epoch milliseconds: its issue time, which is part of the number,
    /// plus the time to live. Meaningless for derived numbers.
    pub fn expires_at_ms(&self, issued: RequestId) -> i64 {
        let since = issued.get() >> (PROCESS_BITS + SEQUENCE_BITS);
        NUMBER_EPOCH_MS.saturating_add_unsigned(since).saturating_add(self.ttl_ms)
    }

    /// Each field has a fixed length or a length prefix, so that different fields never give the
    /// same input.
    fn mac(
        &self,
        purpose: &str,
        sale: &SaleId,
        sku: SkuNo,
        buyer: BuyerId,
        number: u64,
    ) -> HmacSha256 {
        let mut mac = self.keyed.clone();
        for text in [purpose, sale.as_str()] {
            mac.update(&[u8::try_from(text.len()).unwrap_or(u8::MAX)]);
            mac.update(text.as_bytes());
        }
        mac.update(&sku.0.to_be_bytes());
        mac.update(&buyer.get().to_be_bytes());
        mac.update(&number.to_be_bytes());
        mac
    }
}

/// HMAC state after the key. The key is fitted to one block as in RFC 2104: hashed if it is longer,
/// padded with zeros if it is shorter.
fn keyed(key: &[u8]) -> HmacSha256 {
    let mut block = Key::<HmacSha256>::default();
    let digest = Sha256::digest(key);
    let fits = if key.len() > block.len() { digest.as_slice() } else { key };
    block.iter_mut().zip(fits).for_each(|(to, from)| *to = *from);
    HmacSha256::new(&block)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW_MS: i64 = 1_800_000_000_000;

    fn tokens() -> RequestTokens {
        RequestTokens::new(KEY, 5, 3_600_000)
    }

    fn sale(id: &str) -> SaleId {
        id.parse().unwrap()
    }

    fn buyer(number: u64) -> BuyerId {
        BuyerId::new(number).unwrap()
    }

    #[test]
    fn a_signed_id_is_valid_for_its_buyer_sale_sku_number_and_key_only() {
        let tokens = tokens();
        let number = tokens.issue(NOW_MS);
        let text = tokens.sign(number, &sale("s1"), SkuNo(7), buyer(42));
        let read = RequestTokens::read(&text).unwrap();
        assert_eq!((read.number, read.sku_no), (number, SkuNo(7)));
        let is_own = |id: UnverifiedRequestId| tokens.verify(&id, &sale("s1"), SkuNo(7), buyer(42));
        assert!(is_own(read));
        assert!(!tokens.verify(&read, &sale("s1"), SkuNo(7), buyer(43)), "other buyer");
        assert!(!tokens.verify(&read, &sale("s2"), SkuNo(7), buyer(42)), "other sale");
        assert!(!tokens.verify(&read, &sale("s1"), SkuNo(8), buyer(42)), "other SKU");
        assert!(!is_own(UnverifiedRequestId { number: tokens.issue(NOW_MS), ..read }), "number");
        let other_key = RequestTokens::new(b"another key", 5, 1);
        assert!(!other_key.verify(&read, &sale("s1"), SkuNo(7), buyer(42)), "other key");
        for bit in 0..MAC_BYTES * 8 {
            let mut forged = read;
            forged.mac[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_own(forged), "bit {bit}");
        }
    }

    #[test]
    fn a_derived_number_is_constant_per_buyer_sku_and_sale() {
        let tokens = tokens();
        let first = tokens.derive(&sale("s1"), SkuNo(7), buyer(42));
        assert_eq!(first, tokens.derive(&sale("s1"), SkuNo(7), buyer(42)));
        // Independent of the process number and of the ttl.
        assert_eq!(first, RequestTokens::new(KEY, 9, 1).derive(&sale("s1"), SkuNo(7), buyer(42)));
        assert_ne!(first, tokens.derive(&sale("s1"), SkuNo(7), buyer(43)));
        assert_ne!(first, tokens.derive(&sale("s1"), SkuNo(8), buyer(42)));
        assert_ne!(first, tokens.derive(&sale("s2"), SkuNo(7), buyer(42)));
    }

    #[test]
    fn numbers_and_signatures_do_not_change_between_versions() {
        // Computed with Python's hmac.
        let tokens = tokens();
        let number = RequestId::new(123_456_789).unwrap();
        assert_eq!(
            (
                tokens.derive(&sale("sale-1"), SkuNo(1), buyer(42)).get(),
                tokens.sign(number, &sale("sale-1"), SkuNo(1), buyer(42)).as_str(),
            ),
            (5_934_081_836_311_088_237, "123456789-1-s3vwthWAITUgiRRS")
        );
    }

    #[test]
    fn issued_numbers_increase_when_the_clock_goes_back() {
        let tokens = tokens();
        let mut last = tokens.issue(NOW_MS);
        for now_ms in [NOW_MS, NOW_MS + 1, NOW_MS - 60_000, 0, -1, NOW_MS + 2, NOW_MS] {
            let next = tokens.issue(now_ms);
            assert!(next > last, "{next} after {last} at {now_ms}");
            last = next;
        }
    }

    #[test]
    fn an_exhausted_millisecond_borrows_from_the_next() {
        let tokens = tokens();
        assert_eq!(tokens.expires_at_ms(tokens.issue(NOW_MS)), NOW_MS + 3_600_000);
        let numbers: HashSet<_> = (1..10_000).map(|_| tokens.issue(NOW_MS)).collect();
        assert_eq!(numbers.len(), 9_999);
        let ahead_ms = tokens.expires_at_ms(tokens.issue(NOW_MS)) - 3_600_000 - NOW_MS;
        assert_eq!(ahead_ms, 156, "10,000 numbers are 156 milliseconds and a bit");
    }

    /// As in a crash loop of some hours beside a process that keeps running.
    #[test]
    fn processes_that_are_thousands_of_starts_apart_do_not_share_a_number() {
        let issue = |process: u16| {
            let tokens = RequestTokens::new(KEY, process, 1);
            (0..200).map(move |_| tokens.issue(NOW_MS)).collect::<Vec<_>>()
        };
        let starts = [5, 5 + 1024, 5 + 4096, 5 + 32_768, u16::MAX];
        let numbers: Vec<_> = starts.into_iter().flat_map(issue).collect();
        let distinct: HashSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len());
    }

    #[test]
    fn threads_never_share_a_number() {
        let tokens = tokens();
        let issue = || (0..20_000).map(|_| tokens.issue(NOW_MS)).collect::<Vec<_>>();
        let numbers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(issue)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
    }

    #[test]
    fn a_clock_outside_the_41_bits_still_yields_ids() {
        assert!(tokens().issue(i64::MIN).get() > 0);
        assert!(tokens().issue(i64::MAX).get() <= ID_MAX);
    }
}
