//! Exit codes, a stable interface for scripts.

use std::process::ExitCode;

use super::admin;
use crate::{app, config, db, tier};

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
    /// Each code with its meaning, as `--help` shows it.
    const TABLE: [(Self, &str); 8] = [
        (Self::Done, "done; every check holds"),
        (
            Self::Negative,
            "a clear no: audit violations, doctor findings, a refused request, a void bench",
        ),
        (Self::Unclear, "wrong usage, or could not tell (no server answered, audit refused)"),
        (Self::Configuration, "the configuration or the admin token is wrong"),
        (Self::Ledger, "the ledger cannot be used"),
        (Self::Address, "a listener's address is in use or not on this machine"),
        (Self::GaveUp, "a component used up its restarts"),
        (Self::Internal, "internal error: please report it"),
    ];

    /// The exit of a failed command by its error; an unclassified error is internal.
    pub fn of(error: &anyhow::Error) -> Self {
        if let Some(failure) = error.downcast_ref::<CommandFailure>() {
            failure.exit
        } else if error.is::<config::Error>() {
            Self::Configuration
        } else if error.is::<db::Error>() {
            Self::Ledger
        } else {
            error.downcast_ref().map_or(Self::Internal, Self::of_app)
        }
    }

    fn of_app(error: &app::Error) -> Self {
        match error {
            app::Error::Backends(tier::Error::Setting { .. }) => Self::Configuration,
            app::Error::Backends(tier::Error::Ledger(_)) | app::Error::Rebuild(_) => Self::Ledger,
            app::Error::Http(_) => Self::Address,
            app::Error::ComponentDown(_) => Self::GaveUp,
            app::Error::Backends(tier::Error::Broker(_))
            | app::Error::System { .. }
            | app::Error::ServerThreadPanicked => Self::Internal,
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
    for (exit, meaning) in Exit::TABLE {
        text.push_str(&format!("\n  {:>2}  {meaning}", exit as u8));
    }
    text
}

/// A failure with a remedy for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{problem}\n    -> {remedy}")]
pub struct CommandFailure {
    pub exit: Exit,
    pub problem: String,
    pub remedy: String,
}

impl CommandFailure {
    pub fn new(exit: Exit, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit, problem: problem.into(), remedy: remedy.into() }
    }

    pub fn unclear(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Exit::Unclear, problem, remedy)
    }
}

/// Turns an admin API error into a [`CommandFailure`], which adds the remedy; leaves others as is.
pub fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    error.downcast::<admin::Error>().map_or_else(|other| other, |error| error.into_failure().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_ascending() {
        let codes = Exit::TABLE.map(|(exit, _)| exit as u8);
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 70]);
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
