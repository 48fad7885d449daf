//! The open connections of one listener. Beyond nine tenths of what it may have, the listener is
//! *crowded*: a new connection must send its requests at once and is closed when it idles. So the
//! last tenth is not held, and probes get their turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the connections of one listener.
#[derive(Debug, Clone)]
pub struct OpenConnections {
    open: Arc<AtomicUsize>,
    /// Number from which on the listener is crowded.
    crowded_from: usize,
}

/// One open connection, until drop.
#[derive(Debug)]
pub struct OpenConnection {
    open: Arc<AtomicUsize>,
    /// Whether the listener was crowded when the connection was accepted.
    pub is_crowded: bool,
}

impl OpenConnections {
    /// For a listener that accepts `connections_max` connections.
    pub fn new(connections_max: usize) -> Self {
        let crowded_from = connections_max - connections_max / 10;
        Self { open: Arc::default(), crowded_from }
    }

    /// Counts a new connection.
    pub fn enter(&self) -> OpenConnection {
        let earlier = self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection { open: Arc::clone(&self.open), is_crowded: earlier >= self.crowded_from }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tenth_is_crowded_until_others_leave() {
        let crowd = OpenConnections::new(20);
        let mut seats: Vec<OpenConnection> = (0..18).map(|_| crowd.enter()).collect();
        assert!(seats.iter().all(|seat| !seat.is_crowded));
        assert!(crowd.enter().is_crowded);
        seats.pop();
        assert!(!crowd.enter().is_crowded);
        assert!(!OpenConnections::new(1).enter().is_crowded, "one connection is no crowd");
    }
}
