//! Errors of Redis calls, and the classification of Redis error codes.

use std::fmt::Display;

use redis::ServerError;

/// Why a call returned no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No connection: nothing was sent.
    #[error("redis call not sent: {reason}")]
    NotSent { reason: String },
    /// Redis rejected the command before executing it. A retry may succeed.
    #[error("redis rejected the call: {code} {message}")]
    NotBegun {
        /// The error code, such as `OOM`.
        code: String,
        message: String,
    },
    /// The call was sent and no answer came, or too few replicas confirmed the write: ask again by
    /// request id, never give the stock back.
    #[error("redis call with unknown outcome: {reason}")]
    Unknown { reason: String },
    /// The answer indicates a bug or foreign data: an error, or one that cannot be decoded. A retry
    /// fails the same way.
    #[error("redis error: {message}")]
    Refused { message: String },
}

impl Error {
    pub(crate) fn not_sent(reason: impl Into<String>) -> Self {
        Self::NotSent { reason: reason.into() }
    }

    pub(super) fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into() }
    }

    /// Foreign data under a key.
    pub(crate) fn refused(key: &str, what: impl Display) -> Self {
        Self::Refused { message: format!("{key}: {what}") }
    }

    /// Classifies an error answer.
    pub(super) fn from_server(error: &ServerError) -> Self {
        let (code, message) = (error.code(), error.details().unwrap_or_default());
        if remedy(code).is_some() && !was_raised_in_script(message) {
            Self::NotBegun { code: code.to_owned(), message: message.to_owned() }
        } else {
            Self::Refused { message: format!("{code} {message}") }
        }
    }

    /// What the connection must do before a retry can succeed.
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::NotBegun { code, .. } => remedy(code).unwrap_or(Remedy::Wait),
            _ => Remedy::Wait,
        }
    }
}

/// Reaction of the connection to a rejected command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// None: the caller retries later.
    Wait,
    /// Load the scripts again.
    Reload,
    /// Read the topology again. The connection stays open: other slots are still here.
    RefreshTopology,
    /// Close the connection and read the topology again.
    Close,
}

/// The reaction to error codes that precede execution; `None` for every other code.
fn remedy(code: &str) -> Option<Remedy> {
    match code {
        "BUSY" | "MISCONF" | "NOPERM" | "NOREPLICAS" | "OOM" | "TRYAGAIN" => Some(Remedy::Wait),
        "NOSCRIPT" => Some(Remedy::Reload),
        "ASK" | "CLUSTERDOWN" | "MOVED" => Some(Remedy::RefreshTopology),
        "LOADING" | "MASTERDOWN" | "NOAUTH" | "READONLY" | "WRONGPASS" => Some(Remedy::Close),
        _ => None,
    }
}

/// Whether a running script raised the error. That script may have written before, whatever the
/// code is. Redis 7 ends such messages with ` script: <sha>, on @user_script:<n>.`
fn was_raised_in_script(message: &str) -> bool {
    message.rsplit_once(" script: ").is_some_and(|(_, end)| end.contains(", on @user_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &str) -> Error {
        let line = format!("-{answer}\r\n");
        let value = redis::parse_redis_value(line.as_bytes()).unwrap();
        let redis::Value::ServerError(error) = value else { panic!("{value:?}") };
        Error::from_server(&error)
    }

    #[test]
    fn an_error_raised_in_a_script_may_have_written() {
        let inside = read("OOM command not allowed. script: 6f1e, on @user_script:3.");
        assert!(matches!(inside, Error::Refused { .. }), "{inside:?}");
        let outside = read("OOM my script: it is large");
        assert!(matches!(outside, Error::NotBegun { .. }), "{outside:?}");
    }
}
