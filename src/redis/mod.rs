//! Redis access for stock, outbox, lease and watermarks: connections and typed script calls.

pub mod executor;
pub mod scripts;
pub mod transport;
