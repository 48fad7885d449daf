//! What can be wrong with a configuration, said so that it can be mended without the manual.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ConfigFault {
    /// The key it is about, such as `http.bind`.
    pub key: String,
    /// What is wrong. Never contains a secret.
    pub problem: String,
    /// What to do next.
    pub remedy: String,
}

impl ConfigFault {
    /// A fault of `key`.
    pub fn new(
        key: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { key: key.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n    -> {}", self.key, self.problem, self.remedy)
    }
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file given with `--config` cannot be read.
    #[error(
        "cannot read the configuration file {}: {source}\n    -> check the path given with \
         --config and that this user may read it", path.display()
    )]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file given with `--config` is not TOML.
    #[error(
        "the configuration file {} is not valid TOML: {reason}\n    -> `floodgate check-config` \
         without --config prints a complete valid example", path.display()
    )]
    FileMalformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A variable of ours is not text.
    #[error("cannot read the environment: {0}\n    -> FLOODGATE__ variables must be UTF-8")]
    Environment(String),
    /// Keys or values are wrong; every fault of this stage is listed.
    #[error("{}", list(.0))]
    Faults(Vec<ConfigFault>),
    /// The built-in defaults do not fit the settings: a defect of this build.
    #[error("the built-in defaults are broken ({0})\n    -> report this; no setting causes it")]
    Defaults(String),
}

impl Error {
    /// The single faults, when the error consists of such.
    #[must_use]
    pub fn faults(&self) -> &[ConfigFault] {
        match self {
            Self::Faults(faults) => faults,
            _ => &[],
        }
    }
}

fn list(faults: &[ConfigFault]) -> String {
    let mut text = match faults.len() {
        1 => "the configuration has 1 fault:".to_owned(),
        n => format!("the configuration has {n} faults:"),
    };
    for fault in faults {
        text.push_str("\n  ");
        text.push_str(&fault.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_lists_every_fault_with_its_remedy() {
        let error = Error::Faults(vec![
            ConfigFault::new("http.bind", "is odd", "make it even"),
            ConfigFault::new("tier", "is unknown", "use memory"),
        ]);
        let text = error.to_string();
        assert!(text.starts_with("the configuration has 2 faults:"), "{text}");
        assert!(text.contains("http.bind: is odd\n    -> make it even"), "{text}");
        assert!(text.contains("tier: is unknown\n    -> use memory"), "{text}");
    }
}
