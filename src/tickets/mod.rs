//! Which request a ticket stands for: the first that it was used with. A repeat of that request may
//! use the ticket again, another request may not.
//!
//! Asked only for purchases that this process cannot refuse by itself: the crowd that comes too
//! late costs nothing here. With Redis the binding holds for all processes, else for this one.
//!
//! On error: not known; the purchase is `busy`. If a process without Redis crashes: its bindings
//! are forgotten, and a ticket may be used once more. May repeat: every call.

mod memory;
mod redis;

use async_trait::async_trait;

use crate::domain::RequestId;

pub use memory::MemoryTicketUses;
pub use redis::RedisTicketUses;

/// The use of a ticket could not be recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the use of a ticket could not be recorded: {0}")]
pub struct Error(pub String);

/// The uses of all tickets of an installation.
#[async_trait]
pub trait TicketUses: Send + Sync {
    /// Binds a ticket to a request until the ticket's expiry, unless it is bound already. Returns
    /// the request that it is bound to.
    async fn bind(
        &self,
        ticket: u64,
        request: RequestId,
        expires_at_ms: i64,
    ) -> Result<RequestId, Error>;
}
