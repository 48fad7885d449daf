//! Challenges: tasks that a buyer solves to get a ticket. They make a ticket cost time; they do not
//! tell a person from a program that was written for this sale.
//!
//! Nothing is stored: the challenge id holds what was asked for, signed, and the task follows from
//! a keyed hash of it. A challenge yields one ticket, the same each time it is answered.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::tickets::Ticket;
use super::{arithmetic, work};
use crate::config::{ChallengeKind, TicketSettings};
use crate::domain::{BuyerId, Sale};
use crate::http::signing::{Signer, UnverifiedToken};
use crate::limits::Rate;

/// Purpose of the signatures of challenge ids.
const CHALLENGE: &str = "challenge";

/// Kind, difficulty, expiry (seconds), nonce.
const ID_BYTES: usize = 1 + 1 + 4 + 8;

/// Answers to one challenge: few enough that guessing is no way, and more than one, so that an
/// answer whose response was lost can be repeated.
pub const ATTEMPTS_MAX: u32 = 3;

/// What the buyer has to solve: one of the members.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChallengeTask {
    /// For `arithmetic`: a picture of a sum, a difference or a product; the answer is its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub svg: Option<String>,
    /// For `work`: what to search for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkTask>,
}

/// A search: the answer is a decimal number `n` such that the digest of `prefix` followed by `n`
/// begins with `bits` zero bits.
#[derive(Debug, Serialize, ToSchema)]
pub struct WorkTask {
    /// `SHA-256`.
    pub algorithm: &'static str,
    pub prefix: String,
    pub bits: u8,
}

/// A challenge as it was issued.
pub struct IssuedChallenge {
    pub challenge_id: String,
    pub expires_at_ms: i64,
    pub task: ChallengeTask,
}

/// The fields of a challenge id.
#[derive(Debug, Clone, Copy)]
struct IdFields {
    kind: ChallengeKind,
    /// Leading zero bits, for proof of work.
    bits: u8,
    expires_s: u32,
    nonce: u64,
}

impl IdFields {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = [self.kind as u8, self.bits].to_vec();
        bytes.extend(self.expires_s.to_be_bytes());
        bytes.extend(self.nonce.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; ID_BYTES]) -> Option<Self> {
        let [kind, bits, e0, e1, e2, e3, nonce @ ..] = bytes;
        Some(Self {
            kind: ChallengeKind::from_number(kind)?,
            bits,
            expires_s: u32::from_be_bytes([e0, e1, e2, e3]),
            nonce: u64::from_be_bytes(nonce),
        })
    }
}

/// Issues challenges, and tickets for their answers.
#[derive(Debug)]
pub struct Challenges {
    signer: Signer,
    settings: TicketSettings,
}

impl Challenges {
    pub fn new(signer: Signer, settings: TicketSettings) -> Self {
        Self { signer, settings }
    }

    /// The requested kind, or the first that the settings offer; `None` if they do not offer it.
    pub fn kind(&self, requested: Option<ChallengeKind>) -> Option<ChallengeKind> {
        let offered = &self.settings.challenges;
        match requested {
            Some(kind) => offered.contains(&kind).then_some(kind),
            None => offered.first().copied(),
        }
    }

    /// How often one challenge may be answered.
    pub fn attempts(&self) -> Rate {
        let window = Duration::from_secs(self.settings.challenge_ttl_s.into());
        // One attempt becomes free per interval: none before the challenge has expired.
        Rate { count: ATTEMPTS_MAX, window: window * ATTEMPTS_MAX }
    }

    /// A new challenge.
    pub fn issue(
        &self,
        kind: ChallengeKind,
        sale: &Sale,
        buyer: BuyerId,
        now_ms: i64,
    ) -> IssuedChallenge {
        let expires_s = seconds(now_ms).saturating_add(self.settings.challenge_ttl_s);
        let (bits, nonce) = (self.settings.work_bits, fastrand::u64(..));
        let fields = IdFields { kind, bits, expires_s, nonce };
        let challenge_id = self.signer.seal(CHALLENGE, &sale.id, buyer, &fields.to_bytes());
        let task = match kind {
            ChallengeKind::Arithmetic => arithmetic::task(self.seed(sale, buyer, nonce)),
            ChallengeKind::Work => work::task(&challenge_id, bits),
        };
        IssuedChallenge { challenge_id, expires_at_ms: i64::from(expires_s) * 1000, task }
    }

    /// The ticket for an answer; `None` if the challenge is not this buyer's, has expired, was
    /// answered too often (`may_answer`, by the challenge's number), or the answer is wrong.
    pub fn redeem(
        &self,
        challenge_id: &str,
        answer: &str,
        sale: &Sale,
        buyer: BuyerId,
        now_ms: i64,
        may_answer: impl FnOnce(u64) -> bool,
    ) -> Option<Ticket> {
        let token = UnverifiedToken::<ID_BYTES>::read(challenge_id)?;
        let is_ours = self.signer.verify(CHALLENGE, &sale.id, buyer, &token);
        let fields = is_ours.then(|| IdFields::from_bytes(token.payload)).flatten()?;
        let IdFields { kind, bits, expires_s, nonce } = fields;
        let accepts = || match kind {
            ChallengeKind::Arithmetic => arithmetic::accepts(self.seed(sale, buyer, nonce), answer),
            ChallengeKind::Work => work::accepts(challenge_id, bits, answer),
        };
        let is_solved = seconds(now_ms) < expires_s && may_answer(nonce) && accepts();
        is_solved.then(|| Ticket {
            sale_no: sale.no,
            expires_s: expires_s.saturating_add(self.settings.ticket_ttl_s),
            number: nonce,
        })
    }

    /// Only this installation can compute it from a challenge id.
    fn seed(&self, sale: &Sale, buyer: BuyerId, nonce: u64) -> u64 {
        self.signer.derive("challenge-task", &sale.id, buyer, nonce)
    }
}

/// Epoch seconds; they fit until the year 2106.
pub fn seconds(epoch_ms: i64) -> u32 {
    u32::try_from(epoch_ms.div_euclid(1000)).unwrap_or_default()
}

#[cfg(test)]
#[path = "challenge_tests.rs"]
mod tests;
