//! Configuration errors; each names a remedy.

/// One broken rule or unusable value or source, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("{key}: {problem}\n    -> {remedy}")]
pub struct ConfigFault {
    /// Such as `http.bind`, or the flag that names the source.
    pub key: String,
    /// Never contains a secret.
    pub problem: String,
    pub remedy: String,
}

impl ConfigFault {
    pub fn new(key: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key: key.to_owned(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// What was read; its default, and a fault of this key, if it could not be.
pub(super) fn or_fault<T: Default>(
    read: Result<T, String>,
    faults: &mut Vec<ConfigFault>,
    key: &str,
    remedy: &str,
) -> T {
    read.unwrap_or_else(|problem| {
        faults.push(ConfigFault::new(key, problem, remedy));
        T::default()
    })
}

/// Why the configuration could not be loaded: every fault of one step. Unusable sources, unknown
/// keys and wrong types are the first, secrets and broken rules the second.
#[derive(Debug, thiserror::Error)]
#[error("{}", list(.0))]
pub struct Error(pub Vec<ConfigFault>);

fn list(faults: &[ConfigFault]) -> String {
    let head = match faults.len() {
        1 => "the configuration has 1 fault:".to_owned(),
        n => format!("the configuration has {n} faults:"),
    };
    faults.iter().fold(head, |text, fault| format!("{text}\n  {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_lists_every_fault_with_its_remedy() {
        let error = Error(vec![
            ConfigFault::new("http.bind", "is odd", "make it even"),
            ConfigFault::new("tier", "is unknown", "use memory"),
        ]);
        let expected = "the configuration has 2 faults:\n  \
                        http.bind: is odd\n    -> make it even\n  \
                        tier: is unknown\n    -> use memory";
        assert_eq!(error.to_string(), expected);
    }
}
