//! Message authentication codes: HMAC-SHA-256 (RFC 2104).

use hmac::digest::Key;
use hmac::{Hmac, KeyInit};
use sha2::{Digest, Sha256};

pub type HmacSha256 = Hmac<Sha256>;

/// Length of a truncated code. RFC 2104 requires at least 80 bits; 96 bits fill whole base64
/// characters.
pub const MAC_BYTES: usize = 12;

/// The state after the key, to be cloned for each text, so that the key is hashed once. Takes any
/// length of key, at least 32 bytes recommended: it is fitted to one block as in RFC 2104, hashed
/// if it is longer, padded with zeros if it is shorter.
pub fn keyed(key: &[u8]) -> HmacSha256 {
    let mut block = Key::<HmacSha256>::default();
    let digest = Sha256::digest(key);
    let fits = if key.len() > block.len() { digest.as_slice() } else { key };
    block.iter_mut().zip(fits).for_each(|(to, from)| *to = *from);
    HmacSha256::new(&block)
}

#[cfg(test)]
mod tests {
    use hmac::Mac;

    use super::*;

    #[test]
    fn the_codes_of_rfc_4231_are_computed_with_short_and_long_keys() {
        let long = "Test Using Larger Than Block-Size Key - Hash Key First";
        for (key, text, expected) in [
            (vec![0x0b; 20], "Hi There", [0xb0, 0x34, 0x4c, 0x61]),
            (b"Jefe".to_vec(), "what do ya want for nothing?", [0x5b, 0xdc, 0xc1, 0x46]),
            (vec![0xaa; 131], long, [0x60, 0xe4, 0x31, 0x59]),
        ] {
            let code = keyed(&key).chain_update(text).finalize().into_bytes();
            assert_eq!(code[..4], expected, "{text}");
        }
    }
}
