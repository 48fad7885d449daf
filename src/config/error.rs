//! Configuration errors; each names a remedy.

use std::fmt;
use std::path::PathBuf;

/// One broken rule or unusable value, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ConfigFault {
    /// Such as `http.bind`.
    pub key: String,
    /// Never contains a secret.
    pub problem: String,
    pub remedy: String,
}

impl ConfigFault {
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

/// Why the configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot read the configuration file {}: {source}\n    -> check the path given with \
         --config and that this user may read it", path.display()
    )]
    FileUnreadable { path: PathBuf, source: std::io::Error },
    #[error(
        "the configuration file {} is not valid TOML: {reason}\n    -> `floodgate check-config` \
         without --config prints a complete valid example", path.display()
    )]
    FileMalformed { path: PathBuf, reason: String },
    #[error("cannot read the environment: {0}\n    -> FLOODGATE__ variables must be UTF-8")]
    Environment(String),
    /// Every fault of one stage: unknown keys and wrong types, or secrets and broken rules.
    #[error("{}", list(.0))]
    Faults(Vec<ConfigFault>),
    /// The built-in defaults do not fit the settings: a bug of this build.
    #[error("the built-in defaults are broken ({0})\n    -> report this; no setting causes it")]
    Defaults(String),
}

impl Error {
    /// The faults of [`Error::Faults`]; empty for other errors.
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
