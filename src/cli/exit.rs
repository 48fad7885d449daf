//! Exit codes: what a script may rely on.

use std::fmt::{self, Write};
use std::process::ExitCode;

use crate::{config, telemetry};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, or everything holds.
    Done,
    /// A clear "no".
    Negative,
    /// Wrong usage, or no answer was found.
    Unclear,
    /// The configuration is at fault.
    Configuration,
    /// The ledger cannot be used.
    Ledger,
    /// A listener's address cannot be had.
    Address,
    /// A component used up its restarts.
    GaveUp,
    /// A defect of the program.
    Internal,
}

impl Exit {
    /// Every exit, in the order of its code.
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Negative,
        Self::Unclear,
        Self::Configuration,
        Self::Ledger,
        Self::Address,
        Self::GaveUp,
        Self::Internal,
    ];

    /// The code a shell sees.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Negative => 1,
            Self::Unclear => 2,
            Self::Configuration => 3,
            Self::Ledger => 4,
            Self::Address => 5,
            Self::GaveUp => 6,
            Self::Internal => 70,
        }
    }

    /// What the code means, for `--help` and the documentation.
    #[must_use]
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
    #[must_use]
    pub fn of(error: &anyhow::Error) -> Self {
        if let Some(failure) = error.downcast_ref::<Failure>() {
            return failure.exit;
        }
        if error.is::<config::Error>() || error.is::<telemetry::Error>() {
            return Self::Configuration;
        }
        super::engine::exit_of(error).unwrap_or(Self::Internal)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The table of exit codes below `--help`.
#[must_use]
pub fn help() -> String {
    let mut text = "Exit codes:".to_owned();
    for exit in Exit::ALL {
        let _ = write!(text, "\n  {:>2}  {}", exit.code(), exit.meaning());
    }
    text
}

/// A command that failed in a way its user can act on.
#[derive(Debug, thiserror::Error)]
pub struct Failure {
    /// How the command ends.
    pub exit: Exit,
    /// What is wrong.
    pub problem: String,
    /// What to do next.
    pub remedy: String,
}

impl Failure {
    /// A failure with what to do about it.
    pub fn new(exit: Exit, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit, problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    -> {}", self.problem, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_ascending_and_in_the_help() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 70]);
        let help = help();
        for exit in Exit::ALL {
            assert!(help.contains(exit.meaning()), "{help}");
        }
    }

    #[test]
    fn errors_find_their_exit_below_added_context() {
        let failure = Failure::new(Exit::Address, "taken", "free it");
        let error = anyhow::Error::new(failure).context("while starting");
        assert_eq!(Exit::of(&error), Exit::Address);
        let error = anyhow::Error::new(config::Error::Environment("odd".into()));
        assert_eq!(Exit::of(&error), Exit::Configuration);
        assert_eq!(Exit::of(&anyhow::anyhow!("who knows")), Exit::Internal);
    }
}
