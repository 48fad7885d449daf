//! Limits that the processes of an installation count together, in Redis: one key per caller, which
//! expires when the caller has all of its count again.
//!
//! A process asks only about calls that its own limits admit, and not once the SKU is sold out. On
//! error: the call is admitted, and counted in `limits_not_shared`. May repeat: a repeated call
//! counts twice.

use std::time::Duration;

use crate::redis::transport::{ConnectionPool, Error};

/// The generic cell rate algorithm by the server's clock, in microseconds. The key holds one
/// theoretical arrival time for each rate. A time further ahead than the window is of a clock that
/// was set back since: the key starts afresh. On a full server the script is refused.
///
/// KEYS: key. ARGV: count and window of each rate in turn. Answer: 0, 0, or the number of the
/// exceeded rate and the wait.
const TAKE: &str = "#!lua
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local held, times, free_at = {}, {}, now
for time in string.gmatch(redis.call('GET', KEYS[1]) or '', '%d+') do
  held[#held + 1] = tonumber(time)
end
for i = 1, #ARGV / 2 do
  local count, window = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local interval = math.max(math.floor(window / count), 1)
  local base = math.max(held[i] or 0, now)
  if base > now + window then base = now end
  local wait = base + interval - now - window
  if wait > 0 then return {i, wait} end
  times[i] = string.format('%.0f', base + interval)
  free_at = math.max(free_at, base + interval)
end
local ttl_ms = math.max(math.ceil((free_at - now) / 1000), 1)
redis.call('SET', KEYS[1], table.concat(times, ' '), 'PX', ttl_ms)
return {0, 0}";

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

/// The counts of an installation.
#[derive(Debug)]
pub struct SharedLimits {
    pool: ConnectionPool,
    namespace: String,
}

impl SharedLimits {
    /// Counts under keys that begin with `namespace`.
    pub fn new(pool: ConnectionPool, namespace: &str) -> Self {
        Self { pool, namespace: namespace.to_owned() }
    }

    /// Counts one thing of a key, unless that is beyond one of its rates. A key has the same rates
    /// at each call.
    pub async fn take(&self, key: &str, rates: &[Rate]) -> Result<Counted, Error> {
        let key = format!("{}:limit:{key}", self.namespace);
        let mut command = redis::cmd("EVAL");
        command.arg(TAKE).arg(1).arg(&key);
        for Rate { count, window } in rates {
            let window = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
            command.arg((*count).max(1)).arg(window);
        }
        let (number, wait): (usize, u64) = self.pool.query(&key, command).await?;
        Ok(match number.checked_sub(1) {
            None => Counted::Passed,
            Some(rate) => Counted::Exceeded { rate, wait: Duration::from_micros(wait) },
        })
    }
}
