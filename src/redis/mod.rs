//! Redis, as stock, outbox, lease and watermarks use it: connections and typed script calls.

pub mod scripts;
pub mod transport;
