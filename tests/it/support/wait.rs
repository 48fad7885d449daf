//! Waiting for a condition, up to a deadline. No test sleeps for a fixed time.

use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;

use super::random::number_from_env;

/// How long anything may take before the test fails; generous, because machines are shared.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// How long everything may take to be decided after the last fault has healed: 30 s are promised.
pub fn drains_within() -> Duration {
    promised(Duration::from_secs(30))
}

/// How long the entries of a dead relay may take to be taken over: its heartbeat (a second, in
/// tests) and five seconds are promised.
pub fn taken_over_within() -> Duration {
    promised(Duration::from_secs(6))
}

/// The promise itself where the rounds of a run are given, on a machine that has time for it.
/// Otherwise three times as much: machines are shared, and a broken mechanism needs minutes or for
/// ever.
fn promised(limit: Duration) -> Duration {
    let rounds: Option<u64> = number_from_env("FLOODGATE_CHAOS_ROUNDS");
    if rounds.is_some() { limit } else { 3 * limit }
}

/// Polls until `condition` gives a value.
///
/// # Panics
/// At the deadline, naming what was waited for.
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

/// [`until`] for conditions that are asked with blocking calls.
///
/// # Panics
/// At the deadline, naming what was waited for.
pub fn until_true(what: &str, condition: impl FnMut() -> bool) {
    until_true_within(DEADLINE, what, condition);
}

/// [`until_true`] for what takes longer on a busy machine.
///
/// # Panics
/// At the deadline, naming what was waited for.
pub fn until_true_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let end = now_monotonic() + limit;
    while !condition() {
        assert!(now_monotonic() < end, "waited {limit:?} for {what}");
        #[expect(clippy::disallowed_methods, reason = "between two looks at a condition")]
        std::thread::sleep(Duration::from_millis(5));
    }
}
