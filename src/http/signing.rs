//! Signatures over what clients keep and send back: request ids, challenges, tickets. One key per
//! installation; the purpose is part of every signed text, so that no token passes for another.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac;

use crate::domain::{BuyerId, SaleId};
use crate::runtime::mac::{HmacSha256, MAC_BYTES, keyed};

/// HMAC-SHA-256 (RFC 2104) with the key of the installation.
#[derive(Debug, Clone)]
pub struct Signer {
    /// State after the key, cloned for each use, so that the key is hashed once.
    keyed: HmacSha256,
}

/// The first 64 bits of a signature.
pub fn first_64_bits(mac: HmacSha256) -> u64 {
    mac.finalize().into_bytes().iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

/// What a token says, and its signature, which is not verified yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnverifiedToken<const N: usize> {
    pub payload: [u8; N],
    mac: [u8; MAC_BYTES],
}

impl Signer {
    /// Any length of key; at least 32 bytes recommended.
    pub fn new(key: &[u8]) -> Self {
        Self { keyed: keyed(key) }
    }

    /// A signature that begins with purpose and sale. Each has a length prefix: different fields
    /// never give the same input, as long as what follows has a fixed length.
    pub fn begin(&self, purpose: &str, sale: &SaleId) -> HmacSha256 {
        let mut mac = self.keyed.clone();
        for text in [purpose, sale.as_str()] {
            mac.update(&[u8::try_from(text.len()).unwrap_or(u8::MAX)]);
            mac.update(text.as_bytes());
        }
        mac
    }

    /// 64 bits that depend on purpose, sale, buyer and number, and that only this key can compute.
    pub fn derive(&self, purpose: &str, sale: &SaleId, buyer: BuyerId, number: u64) -> u64 {
        first_64_bits(self.over(purpose, sale, buyer, &number.to_be_bytes()))
    }

    /// The token of a payload: payload and signature in base64url.
    pub fn seal(&self, purpose: &str, sale: &SaleId, buyer: BuyerId, payload: &[u8]) -> String {
        let mac = self.over(purpose, sale, buyer, payload).finalize().into_bytes();
        let mac = mac.get(..MAC_BYTES).unwrap_or_default();
        URL_SAFE_NO_PAD.encode([payload, mac].concat())
    }

    /// Whether the token was sealed with this key for this purpose, sale and buyer. Compares in
    /// constant time.
    #[must_use]
    pub fn verify<const N: usize>(
        &self,
        purpose: &str,
        sale: &SaleId,
        buyer: BuyerId,
        token: &UnverifiedToken<N>,
    ) -> bool {
        let mac = self.over(purpose, sale, buyer, &token.payload);
        mac.verify_truncated_left(&token.mac).is_ok()
    }

    fn over(&self, purpose: &str, sale: &SaleId, buyer: BuyerId, payload: &[u8]) -> HmacSha256 {
        self.begin(purpose, sale).chain_update(buyer.get().to_be_bytes()).chain_update(payload)
    }
}

impl<const N: usize> UnverifiedToken<N> {
    /// Parses a token. Each token has exactly one valid spelling.
    pub fn read(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (payload, mac) = bytes.split_first_chunk()?;
        Some(Self { payload: *payload, mac: mac.try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_for_its_purpose_sale_buyer_and_key_only() {
        let signer = Signer::new(b"0123456789abcdef0123456789abcdef");
        let sale = |id: &str| id.parse::<SaleId>().unwrap();
        let buyer = |number| BuyerId::new(number).unwrap();
        let text = signer.seal("ticket", &sale("s1"), buyer(42), &[1, 2, 3]);
        let read = UnverifiedToken::<3>::read(&text).unwrap();
        assert_eq!(read.payload, [1, 2, 3]);
        assert!(signer.verify("ticket", &sale("s1"), buyer(42), &read));
        assert!(!signer.verify("challenge", &sale("s1"), buyer(42), &read), "other purpose");
        assert!(!signer.verify("ticket", &sale("s2"), buyer(42), &read), "other sale");
        assert!(!signer.verify("ticket", &sale("s1"), buyer(43), &read), "other buyer");
        let other_key = Signer::new(b"another key");
        assert!(!other_key.verify("ticket", &sale("s1"), buyer(42), &read), "other key");
        for bit in 0..8 * 3 {
            let mut forged = read;
            forged.payload[bit / 8] ^= 1 << (bit % 8);
            assert!(!signer.verify("ticket", &sale("s1"), buyer(42), &forged), "bit {bit}");
        }
        for text in ["", "A", &text[1..], &format!("{text}A"), &format!("{text}="), "~"] {
            assert_eq!(UnverifiedToken::<3>::read(text), None, "{text}");
        }
        assert_eq!(UnverifiedToken::<4>::read(&text), None, "another length");
    }
}
