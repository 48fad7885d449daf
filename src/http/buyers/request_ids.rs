//! Request ids: the number of a purchase request, and the signature that binds it to its buyer.
//!
//! A request id is written `<number>-<sku_no>-<mac>`. The number has 63 bits; the mac is base64url
//! without padding of the first 12 bytes of HMAC-SHA-256 (RFC 2104) over sale, SKU, buyer and
//! number, so that a buyer cannot use, guess or look up the id of another buyer.
//!
//! | policy | number |
//! |---|---|
//! | `one_per_buyer` | 63 bits of HMAC-SHA-256 over sale, SKU and buyer: always the same |
//! | `one_per_buyer`, again | 63 bits of HMAC-SHA-256 over these and the ended request's number |
//! | others | 41 bits of milliseconds since 2025-01-01, 16 bits process, 6 bits sequence |

use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac;

use crate::domain::ids::ID_MAX;
use crate::domain::{BuyerId, Refusal, RequestId, SaleId, Sku, SkuNo};
use crate::http::signing::{Signer, first_64_bits};
use crate::runtime::mac::{HmacSha256, MAC_BYTES};

/// 2025-01-01T00:00:00Z in epoch milliseconds: zero of the time in a number.
const NUMBER_EPOCH_MS: i64 = 1_735_689_600_000;
/// 64 numbers per millisecond; a process that needs more borrows from the next millisecond.
const SEQUENCE_BITS: u32 = 6;
/// Process numbers repeat after 65,536 starts.
const PROCESS_BITS: u32 = 16;
/// 41 bits: the numbers last until the year 2094.
const NUMBER_MS_MAX: u64 = (1 << 41) - 1;

/// A request id as it was sent, not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnverifiedRequestId {
    pub number: RequestId,
    pub sku_no: SkuNo,
    pub mac: [u8; MAC_BYTES],
}

/// Issues, signs and verifies request ids. One per process.
#[derive(Debug)]
pub struct RequestIds {
    signer: Signer,
    process: u64,
    ttl_ms: i64,
    /// The last issued number: milliseconds, then sequence.
    last_tick: AtomicU64,
}

impl RequestIds {
    /// Ids are signed with `key` (any length; at least 32 bytes recommended), numbered for
    /// `process` (incremented at every start) and valid for `ttl_ms` after their issue.
    ///
    /// Two processes that run at the same time must have different process numbers.
    pub fn new(key: &[u8], process: u16, ttl_ms: u64) -> Self {
        Self {
            signer: Signer::new(key),
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
        self.derived("one-per-buyer", sale, sku, buyer, 0)
    }

    /// The number with which a buyer buys again, after the request `ended` or its order has ended
    /// and the limit has returned: always the same, so that a double click is one purchase.
    pub fn next(&self, ended: RequestId, sale: &SaleId, sku: SkuNo, buyer: BuyerId) -> RequestId {
        self.derived("again", sale, sku, buyer, ended.get())
    }

    /// The signed id with which a buyer buys again after a request that failed for this reason.
    /// `None`: the ledger decided the request, or new ids are issued for this SKU.
    pub fn again(
        &self,
        failed: RequestId,
        reason: &Refusal,
        sale: &SaleId,
        sku: &Sku,
        buyer: BuyerId,
    ) -> Option<String> {
        let is_derived = sku.policy.derives_request_id() && reason.is_undecided();
        is_derived.then(|| self.sign(self.next(failed, sale, sku.no, buyer), sale, sku.no, buyer))
    }

    fn derived(
        &self,
        purpose: &str,
        sale: &SaleId,
        sku: SkuNo,
        buyer: BuyerId,
        mut from: u64,
    ) -> RequestId {
        loop {
            let bits = first_64_bits(self.mac(purpose, sale, sku, buyer, from));
            // One number in 2^63 is 0, which is not a valid id.
            if let Some(id) = RequestId::new(bits >> 1) {
                return id;
            }
            from = from.wrapping_add(1);
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
        if !plain_sku {
            return None;
        }
        Some(UnverifiedRequestId {
            number: number.parse().ok()?,
            sku_no: SkuNo(sku.parse().ok()?),
            mac: URL_SAFE_NO_PAD.decode(mac).ok()?.try_into().ok()?,
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

    fn mac(
        &self,
        purpose: &str,
        sale: &SaleId,
        sku: SkuNo,
        buyer: BuyerId,
        number: u64,
    ) -> HmacSha256 {
        let mac = self.signer.begin(purpose, sale).chain_update(sku.0.to_be_bytes());
        mac.chain_update(buyer.get().to_be_bytes()).chain_update(number.to_be_bytes())
    }
}

#[cfg(test)]
#[path = "request_ids_tests.rs"]
mod tests;
