//! Exit codes: what a script may rely on.

use std::fmt::{self, Write};
use std::process::ExitCode;

use super::admin;
use crate::actors::supervisor::ComponentDown;
use crate::observe::telemetry;
use crate::{app, config, db, http, tier};

/// How a command ended; its number is the code a shell sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, or everything holds.
    Done = 0,
    /// A clear "no".
    Negative = 1,
    /// Wrong usage, or no answer was found.
    Unclear = 2,
    /// The configuration is at fault.
    Configuration = 3,
    /// The ledger cannot be used.
    Ledger = 4,
    /// A listener's address cannot be had.
    Address = 5,
    /// A component used up its restarts.
    GaveUp = 6,
    /// A defect of the program.
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

    /// What the code means, for `--help` and the documentation.
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

    /// The exit for a command that failed: what the error says of itself, else an internal error.
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
            Some(app::Error::Backends(tier::Error::Redis { .. } | tier::Error::Amqp { .. })) => {
                Self::Configuration
            }
            Some(app::Error::Backends(tier::Error::Broker(_))) => Self::Internal,
            Some(
                app::Error::Backends(tier::Error::Ledger(_))
                | app::Error::Rebuild(_)
                | app::Error::Http(http::server::Error::Ledger(_)),
            ) => Self::Ledger,
            Some(app::Error::Http(http::server::Error::Bind { .. })) => Self::Address,
            Some(app::Error::Http(http::server::Error::NoSecret(_))) => Self::Configuration,
            Some(app::Error::ComponentDown(_)) => Self::GaveUp,
            Some(app::Error::System { .. } | app::Error::MainThreadDied) | None => Self::Internal,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The table of exit codes below `--help`.
pub fn help() -> String {
    let mut text = "Exit codes:".to_owned();
    for exit in Exit::ALL {
        let _ = write!(text, "\n  {:>2}  {}", exit as u8, exit.meaning());
    }
    text
}

/// A command that failed in a way its user can act on.
#[derive(Debug, thiserror::Error)]
pub struct CommandFailure {
    /// How the command ends.
    pub exit: Exit,
    /// What is wrong.
    pub problem: String,
    /// What to do next.
    pub remedy: String,
}

impl CommandFailure {
    /// A failure with what to do about it.
    pub fn new(exit: Exit, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit, problem: problem.into(), remedy: remedy.into() }
    }
}

/// The error as its user can act on it: what the server said comes with the next step.
pub fn explained(error: anyhow::Error) -> anyhow::Error {
    if error.is::<CommandFailure>() {
        return error;
    }
    match error.downcast::<admin::Error>() {
        Ok(said) => said.into_failure().into(),
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
    fn errors_find_their_exit_below_added_context() {
        let failure = CommandFailure::new(Exit::Address, "taken", "free it");
        let error = anyhow::Error::new(failure).context("while starting");
        assert_eq!(Exit::of(&error), Exit::Address);
        let error = anyhow::Error::new(config::Error::Environment("odd".into()));
        assert_eq!(Exit::of(&error), Exit::Configuration);
        assert_eq!(Exit::of(&anyhow::anyhow!("who knows")), Exit::Internal);
        let cannot = || db::Error::CannotOpen { reason: "no".into() };
        assert_eq!(Exit::of(&cannot().into()), Exit::Ledger);
        assert_eq!(Exit::of(&app::Error::Backends(cannot().into()).into()), Exit::Ledger);
        assert_eq!(Exit::of(&app::Error::MainThreadDied.into()), Exit::Internal);
        let silent = admin::Error::Address("nowhere".into()).into();
        assert_eq!(Exit::of(&explained(silent)), Exit::Unclear);
    }
}
