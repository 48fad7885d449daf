//! Unique names of a process start.

use std::sync::Arc;

/// A name unique among all processes and process starts: the process id, which containers share,
/// and a random number.
#[must_use]
pub fn unique_name() -> Arc<str> {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..)).into()
}
