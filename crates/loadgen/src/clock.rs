//! The only place of the generator that reads time.

use std::time::Instant;

/// Monotonic time.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
pub(crate) fn now_monotonic() -> Instant {
    Instant::now()
}
