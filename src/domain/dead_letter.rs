//! Dead letters: messages that were given up, kept with their bytes until an operator decides.
//!
//! A letter is an end of the requests in it only as long as it is open or parked. One that was
//! replayed is on its way again: its requests become orders, failures, or the same letter again.
//! The requests of one that was discarded are recorded failures.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ids::RequestId;

/// Bytes of a body that are kept; of a longer one only its beginning and its length are.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Characters of a reason or note that are kept.
pub const TEXT_CHARS_MAX: usize = 1000;

/// Characters of a message id that are kept; no broker allows more bytes.
pub const MESSAGE_ID_CHARS_MAX: usize = 255;

/// The number of a letter in its ledger, counted up from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadLetterNo(pub i64);

impl fmt::Display for DeadLetterNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who gave a letter up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterOrigin {
    /// The relay: it could not be published.
    Relay,
    /// The consumer: it could not be understood, or not be written.
    Consumer,
    /// The broker: it was delivered too often without an end.
    Broker,
    /// The broker: no queue wanted it.
    Unroutable,
}

impl DeadLetterOrigin {
    /// Every origin, in the order of the flow.
    pub const ALL: [Self; 4] = [Self::Relay, Self::Consumer, Self::Broker, Self::Unroutable];

    /// The name in the interface and in the ledger.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Consumer => "consumer",
            Self::Broker => "broker",
            Self::Unroutable => "unroutable",
        }
    }

    /// Reads the name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.name() == name)
    }
}

/// Where a letter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterState {
    /// It waits for an operator.
    Open = 0,
    /// It was published again, or its requests had ended meanwhile.
    Replayed = 1,
    /// An operator set it aside for good.
    Parked = 2,
    /// An operator gave it up: its requests are recorded failures.
    Discarded = 3,
}

impl DeadLetterState {
    /// Every state, in the order of its number.
    pub const ALL: [Self; 4] = [Self::Open, Self::Replayed, Self::Parked, Self::Discarded];

    /// The name in the interface.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Replayed => "replayed",
            Self::Parked => "parked",
            Self::Discarded => "discarded",
        }
    }

    /// The number stored in the ledger.
    #[must_use]
    pub fn to_db(self) -> i16 {
        self as i16
    }

    /// Whether a letter in this state is the end of its requests.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(self, Self::Open | Self::Parked)
    }

    /// Reads the number stored in the ledger.
    #[must_use]
    pub fn from_db(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_db() == number)
    }
}

/// A letter on its way into the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The same for every copy of the same message, and for no other.
    pub digest: [u8; 32],
    /// Who gave it up.
    pub origin: DeadLetterOrigin,
    /// Why, for people; at most [`TEXT_CHARS_MAX`] characters.
    pub reason: String,
    /// Attempts that failed.
    pub attempts: u32,
    /// What the message called itself; at most [`MESSAGE_ID_CHARS_MAX`] characters.
    pub message_id: String,
    /// What travelled beside the body, as a JSON object.
    pub headers: String,
    /// At most the first [`BODY_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
    /// How many there were.
    pub body_bytes: u64,
    /// The accepted requests that are in it; each once.
    pub requests: Vec<RequestId>,
    /// When it was given up, epoch milliseconds.
    pub dead_at_ms: i64,
}

/// A letter in the ledger, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number.
    pub no: DeadLetterNo,
    /// Who gave it up, the last time.
    pub origin: DeadLetterOrigin,
    /// Why, the last time.
    pub reason: String,
    /// Attempts that failed, the last time.
    pub attempts: u32,
    /// What the message called itself.
    pub message_id: String,
    /// What travelled beside the body, as a JSON object.
    pub headers: String,
    /// How long the body was.
    pub body_bytes: u64,
    /// When it was given up, the last time, epoch milliseconds.
    pub dead_at_ms: i64,
    /// How often it arrived in the ledger; copies count.
    pub arrivals: u32,
    /// Where it stands.
    pub state: DeadLetterState,
    /// Since when, epoch milliseconds.
    pub changed_at_ms: i64,
    /// What an operator wrote on it.
    pub note: Option<String>,
}

/// A letter with everything that is kept of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterContent {
    /// The letter.
    pub letter: DeadLetter,
    /// Its body, or the beginning of it.
    pub body: Vec<u8>,
    /// The accepted requests that are in it, smallest first.
    pub requests: Vec<RequestId>,
}

impl DeadLetterContent {
    /// Whether the end of the body is missing.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.letter.body_bytes != self.body.len() as u64
    }
}

/// What the ledger did with a letter that it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepOutcome {
    /// It had not seen it before.
    New,
    /// It had been replayed, and is open again.
    Again,
    /// It had it, open or parked: nothing but the last reason is new.
    Known,
}

/// Which letters to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeadLetterFilter {
    /// Only those in this state.
    pub state: Option<DeadLetterState>,
    /// Only those of this origin.
    pub origin: Option<DeadLetterOrigin>,
    /// Only those with a smaller number: the last one of the page before.
    pub before: Option<DeadLetterNo>,
    /// Only those that this request is in.
    pub request: Option<RequestId>,
}

impl DeadLetterFilter {
    /// Those that a request is in.
    #[must_use]
    pub fn with(request: RequestId) -> Self {
        Self { request: Some(request), ..Self::default() }
    }
}

/// A change of state that an operator wants. It happens only if the letter is as it was seen: one
/// that died again meanwhile must not be called replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterTransition {
    /// Which letter.
    pub no: DeadLetterNo,
    /// The state that was seen.
    pub from: DeadLetterState,
    /// The arrivals that were seen.
    pub arrivals: u32,
    /// The state it is to have.
    pub to: DeadLetterState,
    /// Written on it; `None` leaves what is there.
    pub note: Option<String>,
    /// When, epoch milliseconds.
    pub at_ms: i64,
}

/// How many letters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeadLetterCounts {
    /// Those that wait for an operator.
    pub open: u64,
    /// Those that were published again.
    pub replayed: u64,
    /// Those that were set aside.
    pub parked: u64,
    /// Those that were given up.
    pub discarded: u64,
}

/// The first `max` characters of a text.
#[must_use]
pub fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_read_back() {
        for origin in DeadLetterOrigin::ALL {
            assert_eq!(DeadLetterOrigin::from_name(origin.name()), Some(origin));
        }
        for state in DeadLetterState::ALL {
            assert_eq!(DeadLetterState::from_db(state.to_db()), Some(state));
        }
        assert_eq!(DeadLetterOrigin::from_name("moon"), None);
        assert_eq!(DeadLetterState::from_db(4), None);
    }

    #[test]
    fn a_text_is_clipped_between_characters() {
        assert_eq!(clip("秒杀!", 2), "秒杀");
        assert_eq!(clip("ab", 9), "ab");
    }
}
