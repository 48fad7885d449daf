//! Proof of work: the buyer's device searches for a number whose SHA-256 digest, with the challenge
//! id, begins with zero bits. `bits` bits take 2^`bits` digests on average; checking takes one.

use sha2::{Digest, Sha256};

use super::challenge::{ChallengeTask, WorkTask};

/// Most digits of an answer: those of 2^64.
const DIGITS_MAX: usize = 20;

/// The search for a challenge.
pub fn task(challenge_id: &str, bits: u8) -> ChallengeTask {
    let work = WorkTask { algorithm: "SHA-256", prefix: format!("{challenge_id}."), bits };
    ChallengeTask { work: Some(work), svg: None }
}

/// Whether the answer is a number that the search was for.
pub fn accepts(challenge_id: &str, bits: u8, answer: &str) -> bool {
    let is_number = (1..=DIGITS_MAX).contains(&answer.len())
        && answer.bytes().all(|byte| byte.is_ascii_digit());
    is_number && zero_bits(challenge_id, answer) >= u32::from(bits)
}

/// The number of zero bits at the beginning of the digest.
fn zero_bits(challenge_id: &str, answer: &str) -> u32 {
    let digest = Sha256::new().chain_update(challenge_id).chain_update(".").chain_update(answer);
    let mut bits = 0;
    for byte in digest.finalize() {
        bits += byte.leading_zeros();
        if byte != 0 {
            break;
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_needs_the_bits_and_only_digits() {
        let solves = |n: &u64| zero_bits("id", &n.to_string()) >= 12;
        let answer = (0..u64::MAX).find(solves).unwrap().to_string();
        assert!(accepts("id", 12, &answer));
        let found = u8::try_from(zero_bits("id", &answer)).unwrap();
        assert!(!accepts("id", found + 1, &answer), "one bit is missing");
        assert!(!accepts("ie", 12, &answer), "another id");
        for text in ["", "-1", "1e3", "x", &"1".repeat(21)] {
            assert!(!accepts("id", 0, text), "{text}");
        }
        let task = task("id", 12).work.unwrap();
        assert_eq!((task.prefix.as_str(), task.bits), ("id.", 12));
    }

    #[test]
    fn zero_bits_are_counted_over_bytes() {
        for n in 0..300 {
            let digest = Sha256::digest(format!("id.{n}"));
            let bits = digest.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
            let zeros = bits.take_while(|bit| *bit == 0).count();
            assert_eq!(zero_bits("id", &n.to_string()), u32::try_from(zeros).unwrap(), "{n}");
        }
        let best = (0..5_000).map(|n| zero_bits("id", &n.to_string())).max().unwrap();
        assert!((8..30).contains(&best), "{best}");
    }
}
