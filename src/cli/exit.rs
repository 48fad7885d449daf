//! Exit codes, a stable interface for scripts.

use std::fmt::{self, Write};
use std::process::ExitCode;

use super::admin;
use crate::actors::supervisor::ComponentDown;
use crate::observe::telemetry;
use crate::{app, config, db, http, tier};

/// How a command ended; the discriminant is the process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Negative = 1,
    Unclear = 2,
    Configuration = 3,
    Ledger = 4,
    Address = 5,
    GaveUp = 6,
    Internal = 70,
}

impl Exit {
    const ALL: [Self; 8] = [
        Self::Done,
        Self::Negative,
        Self::Unclear,
        Self::Configuration,
        Self::Ledger,
        Self::Address,
        Self::GaveUp,
        Self::Internal,
    ];

    /// The meaning of the code, as `--help` shows it.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done; every check holds",
            Self::Negative => {
                "a clear no: audit violations, doctor findings, a refused request, a void bench"
            }
            Self::Unclear => "wrong usage, or could not tell (no server answered)",
            Self::Configuration => "the configuration or the admin token is wrong",
            Self::Ledger => "the ledger cannot be used",
            Self::Address => "a listener's address is in use or not on this machine",
            Self::GaveUp => "a component used up its restarts",
            Self::Internal => "internal error: please report it",
        }
    }

    /// The exit of a failed command by its error; an unclassified error is internal.
    pub fn of(error: &anyhow::Error) -> Self {
        if let Some(failure) = error.downcast_ref::<CommandFailure>() {
            return failure.exit;
        }
        if error.is::<config::Error>() || error.is::<telemetry::Error>() {
            return Self::Configuration;
        }
        if error.is::<ComponentDown>() {
            return Self::GaveUp;
        }
        if error.is::<db::Error>() {
            return Self::Ledger;
        }
        match error.downcast_ref::<app::Error>() {
            Some(app::Error::Backends(tier::Error::Setting { .. })) => Self::Configuration,
            Some(app::Error::Backends(tier::Error::Broker(_))) => Self::Internal,
            Some(
                app::Error::Backends(tier::Error::Ledger(_))
                | app::Error::Rebuild(_)
                | app::Error::Http(http::server::Error::Ledger(_)),
            ) => Self::Ledger,
            Some(app::Error::Http(http::server::Error::Bind { .. })) => Self::Address,
            Some(app::Error::Http(http::server::Error::NoSecret(_))) => Self::Configuration,
            Some(app::Error::ComponentDown(_)) => Self::GaveUp,
            Some(app::Error::System { .. } | app::Error::ServerThreadPanicked) | None => {
                Self::Internal
            }
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The table of exit codes at the end of `--help`.
pub fn help() -> String {
    let mut text = "Exit codes:".to_owned();
    for exit in Exit::ALL {
        let _ = write!(text, "\n  {:>2}  {}", exit as u8, exit.meaning());
    }
    text
}

/// A failure with a remedy for the operator.
#[derive(Debug, thiserror::Error)]
pub struct CommandFailure {
    pub exit: Exit,
    pub problem: String,
    pub remedy: String,
}

impl CommandFailure {
    pub fn new(exit: Exit, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit, problem: problem.into(), remedy: remedy.into() }
    }
}

/// Turns an admin API error into a [`CommandFailure`], which adds the remedy; leaves others as is.
pub fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    if error.is::<CommandFailure>() {
        return error;
    }
    match error.downcast::<admin::Error>() {
        Ok(error) => error.into_failure().into(),
        Err(error) => error,
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    -> {}", self.problem, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_ascending_and_in_the_help() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| *exit as u8).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 70]);
        let help = help();
        for exit in Exit::ALL {
            assert!(help.contains(exit.meaning()), "{help}");
        }
    }

    #[test]
    fn added_context_does_not_hide_the_exit_of_an_error() {
        let failure = CommandFailure::new(Exit::Address, "taken", "free it");
        let error = anyhow::Error::new(failure).context("while starting");
        assert_eq!(Exit::of(&error), Exit::Address);
        let error = anyhow::Error::new(config::Error(Vec::new()));
        assert_eq!(Exit::of(&error), Exit::Configuration);
        assert_eq!(Exit::of(&anyhow::anyhow!("who knows")), Exit::Internal);
        let cannot = || db::Error::CannotOpen { reason: "no".into() };
        assert_eq!(Exit::of(&cannot().into()), Exit::Ledger);
        assert_eq!(Exit::of(&app::Error::Backends(cannot().into()).into()), Exit::Ledger);
        assert_eq!(Exit::of(&app::Error::ServerThreadPanicked.into()), Exit::Internal);
        let unusable = admin::Error::Address("nowhere".into()).into();
        assert_eq!(Exit::of(&with_remedy(unusable)), Exit::Unclear);
    }
}
