//! Polls a condition up to a deadline. No test sleeps for a fixed time.

use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;

use super::random::number_from_env;

/// Time limit of every wait; long, because test machines are shared.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Time limit for the outcome of every request after the last fault has healed; 30 s are promised.
pub fn drains_within() -> Duration {
    promised(Duration::from_secs(30))
}

/// Time limit for the takeover of a crashed relay's entries: the heartbeat (1 s in tests) plus 5 s
/// are promised.
pub fn taken_over_within() -> Duration {
    promised(Duration::from_secs(6))
}

/// The promised limit where `FLOODGATE_CHAOS_ROUNDS` is set, on a dedicated machine. Otherwise
/// three times the limit, and at least 45 s: test machines are shared, and a broken mechanism takes
/// a minute or never ends.
fn promised(limit: Duration) -> Duration {
    let rounds: Option<u64> = number_from_env("FLOODGATE_CHAOS_ROUNDS");
    if rounds.is_some() { limit } else { 3 * limit.max(Duration::from_secs(15)) }
}

/// Polls until `condition` returns a value.
///
/// # Panics
/// At the deadline; the message names `what`.
pub async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let end = now_monotonic() + DEADLINE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(now_monotonic() < end, "waited {DEADLINE:?} for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// [`until`] for conditions that block.
///
/// # Panics
/// At the deadline; the message names `what`.
pub fn until_true(what: &str, condition: impl FnMut() -> bool) {
    until_true_within(DEADLINE, what, condition);
}

/// [`until_true`] with another time limit.
///
/// # Panics
/// At the deadline; the message names `what`.
pub fn until_true_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = now_monotonic() + limit;
    while !condition() {
        assert!(now_monotonic() < end, "waited {limit:?} for {what}");
        #[expect(clippy::disallowed_methods, reason = "the pause between two polls")]
        std::thread::sleep(Duration::from_millis(5));
    }
}
