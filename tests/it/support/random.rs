//! How long the tests search: numbers that a longer sweep raises through the environment.

use std::str::FromStr;

/// `FLOODGATE_TEST_CASES`, or 2,000: random cases of a property test.
pub fn num_cases() -> u32 {
    number_from_env("FLOODGATE_TEST_CASES").unwrap_or(2_000)
}

/// A number given through the environment.
#[expect(clippy::disallowed_methods, reason = "how long to search is no setting of the product")]
pub fn number_from_env<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}
