//! What can go wrong on the way to Redis and back, and the only reader of what Redis says about it.

use redis::ServerError;

/// What a failed call has left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallEffect {
    /// Nothing: it was not sent, or refused before it began. The same call may succeed later.
    NotDone,
    /// Nobody knows: ask again by request id, never give back.
    Unknown,
    /// Redis ran into something that this program never writes. A repeat fails the same way.
    Refused,
}

/// Why a call came to no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no connection: nothing was sent.
    #[error("redis was not asked: {reason}")]
    NotSent {
        /// Why there is no connection.
        reason: String,
    },
    /// Redis answered that it did not begin.
    #[error("redis did not begin: {code} {message}")]
    NotBegun {
        /// The first word of the answer, such as `OOM`.
        code: String,
        /// The rest of the answer.
        message: String,
    },
    /// It was sent, and no answer came; or too few replicas have it.
    #[error("redis may have done it: {reason}")]
    Unknown {
        /// What happened instead of an answer.
        reason: String,
    },
    /// Redis answered with an error that points to a defect or to foreign data.
    #[error("redis refused: {message}")]
    Refused {
        /// The whole answer.
        message: String,
    },
}

impl Error {
    /// What the failure has left behind.
    #[must_use]
    pub fn class(&self) -> CallEffect {
        match self {
            Self::NotSent { .. } | Self::NotBegun { .. } => CallEffect::NotDone,
            Self::Unknown { .. } => CallEffect::Unknown,
            Self::Refused { .. } => CallEffect::Refused,
        }
    }

    pub(crate) fn not_sent(reason: impl Into<String>) -> Self {
        Self::NotSent { reason: reason.into() }
    }

    pub(super) fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into() }
    }

    /// Reads an error answer.
    pub(super) fn from_server(error: &ServerError) -> Self {
        let (code, message) = (error.code(), error.details().unwrap_or_default());
        if remedy(code).is_some() && !was_raised_inside(message) {
            Self::NotBegun { code: code.to_owned(), message: message.to_owned() }
        } else {
            Self::Refused { message: format!("{code} {message}") }
        }
    }

    /// What has to happen to the connection before the call can succeed.
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::NotBegun { code, .. } => remedy(code).unwrap_or(Remedy::Wait),
            _ => Remedy::Wait,
        }
    }
}

/// What helps against an answer that nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Nothing that the connection can do.
    Wait,
    /// The scripts have to be loaded again.
    Reload,
    /// Look where the slot is now; this server is still good for others.
    LookAgain,
    /// This connection is of no more use; look where the master is.
    Leave,
}

/// The codes with which Redis says that it did not begin; `None` for every other code.
fn remedy(code: &str) -> Option<Remedy> {
    match code {
        "BUSY" | "MISCONF" | "NOPERM" | "NOREPLICAS" | "OOM" | "TRYAGAIN" => Some(Remedy::Wait),
        "NOSCRIPT" => Some(Remedy::Reload),
        "ASK" | "CLUSTERDOWN" | "MOVED" => Some(Remedy::LookAgain),
        "LOADING" | "MASTERDOWN" | "NOAUTH" | "READONLY" | "WRONGPASS" => Some(Remedy::Leave),
        _ => None,
    }
}

/// Whether a script was running when the error was raised: then it may have written before,
/// whatever the code says. Redis 7 ends such messages with ` script: <sha>, on @user_script:<n>.`
fn was_raised_inside(message: &str) -> bool {
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
    fn an_answer_that_nothing_began_is_told_from_a_defect() {
        let oom = read("OOM command not allowed when used memory > 'maxmemory'.");
        assert_eq!(oom.class(), CallEffect::NotDone);
        assert_eq!(oom.remedy(), Remedy::Wait);
        let code = "OOM".to_owned();
        let message = "command not allowed when used memory > 'maxmemory'.".to_owned();
        assert_eq!(oom, Error::NotBegun { code, message });
        assert_eq!(read("MOVED 3999 127.0.0.1:6381").remedy(), Remedy::LookAgain);
        assert_eq!(read("READONLY You can't write.").remedy(), Remedy::Leave);

        for defect in ["WRONGTYPE Operation against a key", "ERR unknown command", "CROSSSLOT Keys"]
        {
            let error = read(defect);
            assert_eq!(error, Error::Refused { message: defect.to_owned() });
            assert_eq!(error.class(), CallEffect::Refused);
        }
    }

    #[test]
    fn what_was_raised_inside_a_script_may_have_written() {
        let inside = read("OOM command not allowed. script: 6f1e, on @user_script:3.");
        assert_eq!(inside.class(), CallEffect::Refused);
        assert_eq!(read("OOM my script: it is large").class(), CallEffect::NotDone);
    }
}
