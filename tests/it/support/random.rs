//! The number of random cases and rounds, which environment variables raise for longer runs.

use std::str::FromStr;

/// Random cases of a property test: `FLOODGATE_TEST_CASES`, by default 2,000.
pub fn num_cases() -> u32 {
    number_from_env("FLOODGATE_TEST_CASES").unwrap_or(2_000)
}

/// The number in this environment variable; `None` if unset or not a number.
#[expect(clippy::disallowed_methods, reason = "test parameters are not settings of the product")]
pub fn number_from_env<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}
