//! The limit on open files: every connection takes one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files besides the connections: listeners, ledger, event loops, and a reserve.
const BESIDES_CONNECTIONS: u64 = 256;

/// This process's limits on open files; `u64::MAX` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenFiles {
    /// The limit in effect.
    pub soft: u64,
    /// The highest value that this process may set as `soft`.
    pub hard: u64,
}

impl OpenFiles {
    pub fn of_this_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        Self { soft: current.unwrap_or(u64::MAX), hard: maximum.unwrap_or(u64::MAX) }
    }
}

/// Open files that `connections_max` connections need.
pub(super) fn needed(connections_max: usize) -> u64 {
    u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(BESIDES_CONNECTIONS)
}

/// Raises the soft limit to what `connections_max` connections need, at most to the hard limit;
/// logs a warning when that is not enough.
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
    fn each_connection_needs_a_file_on_top_of_the_reserve() {
        assert_eq!(needed(25_000), 25_256);
        assert_eq!(needed(usize::MAX), u64::MAX);
    }

    #[test]
    fn the_limits_of_this_process_are_ordered() {
        let limits = OpenFiles::of_this_process();
        assert!(0 < limits.soft && limits.soft <= limits.hard);
    }
}
