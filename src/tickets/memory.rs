//! Uses of tickets in the memory of one process.

use std::collections::HashMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Error, TicketUses};
use crate::domain::RequestId;
use crate::runtime::clock::SharedClock;

/// Bindings that are held at once: about 64 MiB.
const BINDINGS_MAX: usize = 1 << 20;

/// Below this number expired bindings are not searched for.
const PURGED_FROM: usize = 1 << 10;

#[derive(Debug)]
struct Bindings {
    /// Request and expiry by ticket.
    by_ticket: HashMap<u64, (RequestId, i64)>,
    /// Number of bindings at which expired ones are removed next.
    purge_at: usize,
}

/// Uses of tickets in memory; expired ones are removed whenever their number has doubled.
#[derive(Debug)]
pub struct MemoryTicketUses {
    bindings: Mutex<Bindings>,
    max: usize,
    clock: SharedClock,
}

impl MemoryTicketUses {
    pub fn new(clock: SharedClock) -> Self {
        Self::with_max(BINDINGS_MAX, clock)
    }

    fn with_max(max: usize, clock: SharedClock) -> Self {
        let bindings = Bindings { by_ticket: HashMap::new(), purge_at: PURGED_FROM.min(max) };
        Self { bindings: Mutex::new(bindings), max, clock }
    }
}

#[async_trait]
impl TicketUses for MemoryTicketUses {
    async fn bind(
        &self,
        ticket: u64,
        request: RequestId,
        expires_at_ms: i64,
    ) -> Result<RequestId, Error> {
        let Bindings { by_ticket, purge_at } = &mut *self.bindings.lock();
        if let Some((bound, _)) = by_ticket.get(&ticket) {
            return Ok(*bound);
        }
        if by_ticket.len() >= *purge_at {
            let now_ms = self.clock.wall_ms();
            by_ticket.retain(|_, (_, expires_at_ms)| *expires_at_ms > now_ms);
            *purge_at = (by_ticket.len() * 2).clamp(PURGED_FROM.min(self.max), self.max);
        }
        if by_ticket.len() >= self.max {
            return Err(Error(format!("{} tickets are in use", self.max)));
        }
        by_ticket.insert(ticket, (request, expires_at_ms));
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::runtime::clock::ManualClock;

    #[test]
    fn a_ticket_stays_bound_and_a_full_memory_refuses_until_tickets_expire() {
        let clock = Arc::new(ManualClock::new(1_000));
        let uses = MemoryTicketUses::with_max(3, Arc::clone(&clock) as SharedClock);
        let request = |number| RequestId::new(number).unwrap();
        let bind = |ticket, number, expires_at_ms| {
            uses.bind(ticket, request(number), expires_at_ms).now_or_never().unwrap()
        };
        assert_eq!(bind(1, 10, 2_000), Ok(request(10)));
        assert_eq!(bind(1, 11, 2_000), Ok(request(10)), "another request");
        assert_eq!(bind(1, 10, 2_000), Ok(request(10)), "a repeat");
        assert_eq!(bind(2, 20, 2_000), Ok(request(20)));
        assert_eq!(bind(3, 30, 9_000), Ok(request(30)));
        assert!(bind(4, 40, 9_000).is_err(), "full");
        assert_eq!(bind(3, 31, 9_000), Ok(request(30)), "known tickets are answered");
        clock.advance(Duration::from_secs(1));
        assert_eq!(bind(4, 40, 9_000), Ok(request(40)), "two have expired");
        assert_eq!(bind(3, 31, 9_000), Ok(request(30)));
    }
}
