//! Limits that the processes of an installation count together.
//!
//! A process asks only about calls that its own limits admit, and not once the SKU is sold out. On
//! error: the call is admitted, and counted in `limits_not_shared`. May repeat: a repeated call
//! counts twice.

mod redis;

use std::time::Duration;

use async_trait::async_trait;

pub use redis::RedisSharedLimits;

/// `count` things in each `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: u32,
    pub window: Duration,
}

/// The result of counting one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Within every rate.
    Passed,
    /// Beyond the rate at this position, until `wait` has passed. Nothing was counted.
    Exceeded { rate: usize, wait: Duration },
}

/// The thing could not be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the shared limits could not be asked: {0}")]
pub struct Error(pub String);

/// The counts of an installation.
#[async_trait]
pub trait SharedLimits: Send + Sync + std::fmt::Debug {
    /// Counts one thing of a key, unless that is beyond one of its rates. A key has the same rates
    /// at each call.
    async fn take(&self, key: &str, rates: &[Rate]) -> Result<Counted, Error>;
}
