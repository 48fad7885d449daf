use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::Sleep;

use crate::clock;

/// A deadline that moves with every request but re-arms the runtime's timer only when an old
/// deadline passes: re-arming it per request would cost as much as parsing the answer.
///
/// Once polled, it wakes its task when the deadline passes, possibly also earlier.
pub(super) struct LazyTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    deadline: Instant,
}

impl LazyTimer {
    pub(super) fn new(deadline: Instant) -> Self {
        Self { sleep: None, deadline }
    }

    pub(super) fn set(&mut self, deadline: Instant) {
        // The armed timer would fire too late only for an earlier deadline.
        if deadline < self.deadline {
            self.sleep = None;
        }
        self.deadline = deadline;
    }

    /// Ready when the deadline has passed.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        loop {
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if clock::now_monotonic() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline.into());
        }
    }
}
