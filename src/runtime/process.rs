//! The name of this process among all that share its stores.

use std::sync::Arc;

/// A name that nobody had before: not an earlier start of this process either, and not another
/// process with the same number, as containers have.
#[must_use]
pub fn unique_name() -> Arc<str> {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..)).into()
}
