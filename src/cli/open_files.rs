//! The limit on open files: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files besides the connections: listeners, ledger, event loops, with room to spare.
const BESIDES_CONNECTIONS: u64 = 256;

/// How many files this process may open; `u64::MAX` when there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenFiles {
    /// The limit now.
    pub soft: u64,
    /// What this process may raise it to.
    pub hard: u64,
}

impl OpenFiles {
    /// The limits of this process.
    pub fn of_this_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        Self { soft: current.unwrap_or(u64::MAX), hard: maximum.unwrap_or(u64::MAX) }
    }
}

/// Open files that so many connections need.
pub(super) fn needed(connections_max: usize) -> u64 {
    u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(BESIDES_CONNECTIONS)
}

/// Raises the limit as far as these connections need and the system allows; says so in the log when
/// it is not far enough.
pub(super) fn raise(connections_max: usize) {
    let needed = needed(connections_max);
    let limits = OpenFiles::of_this_process();
    if limits.soft >= needed {
        return;
    }
    let target = needed.min(limits.hard);
    let maximum = (limits.hard != u64::MAX).then_some(limits.hard);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum });
    let reached = OpenFiles::of_this_process().soft;
    if raised.is_err() || reached < needed {
        tracing::warn!(
            limit = reached,
            needed,
            "too few open files for http.connections_max: connections beyond the limit will wait; \
             raise `ulimit -n` or lower http.connections_max"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_need_files_and_some_more() {
        assert_eq!(needed(25_000), 25_256);
        assert_eq!(needed(usize::MAX), u64::MAX);
    }

    #[test]
    fn the_limits_of_this_process_are_ordered() {
        let limits = OpenFiles::of_this_process();
        assert!(0 < limits.soft && limits.soft <= limits.hard);
    }
}
