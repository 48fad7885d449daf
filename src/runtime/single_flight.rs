//! Single flight: concurrent callers share one attempt to create a value, such as a connection.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::runtime::backoff::Backoff;
use crate::runtime::clock::now_monotonic;

/// Whether a created value is still usable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueStatus<E> {
    Usable,
    /// No longer usable.
    Expired {
        /// Whether the value was ever used successfully. If not, the next attempt backs off as
        /// after a failure.
        proven: bool,
        why: E,
    },
}

/// A value that can become unusable.
pub(crate) trait Expirable: Clone + Send + Sync + 'static {
    type Error: Clone + Send + Sync + 'static;

    fn status(&self) -> ValueStatus<Self::Error>;

    /// The error of a call without an attempt.
    fn not_attempted(reason: &str) -> Self::Error;
}

type Created<T> = Result<T, <T as Expirable>::Error>;
/// `None` while the attempt runs.
type Outcome<T> = Option<Created<T>>;

/// Creates a value on demand, one attempt at a time, with a backoff between attempts.
pub(crate) struct SingleFlight<T: Expirable> {
    /// The backoff before the first attempt and after a useful value.
    pace: Backoff,
    state: Mutex<FlightState<T>>,
}

struct FlightState<T: Expirable> {
    value: Option<T>,
    running: Option<watch::Receiver<Outcome<T>>>,
    backoff: Backoff,
    not_before: Option<Instant>,
    last_error: Option<T::Error>,
    /// Consecutive failed attempts.
    failures: u32,
}

impl<T: Expirable> FlightState<T> {
    /// Starts an attempt.
    fn begin<F>(
        &mut self,
        flight: &Arc<SingleFlight<T>>,
        io: &Handle,
        make: impl FnOnce(u32) -> F,
    ) -> watch::Receiver<Outcome<T>>
    where
        F: Future<Output = Created<T>> + Send + 'static,
    {
        let (sender, outcome) = watch::channel(None);
        self.running = Some(outcome.clone());
        io.spawn(flight.clone().attempt(make(self.failures), sender));
        outcome
    }

    /// The running attempt; an attempt that panicked does not count.
    fn attempt_running(&self) -> Option<watch::Receiver<Outcome<T>>> {
        let running = self.running.clone()?;
        (running.borrow().is_some() || running.has_changed().is_ok()).then_some(running)
    }

    /// Whether the last value is usable, or was used successfully.
    fn was_useful(&self) -> bool {
        let status = self.value.as_ref().map(Expirable::status);
        matches!(status, Some(ValueStatus::Usable | ValueStatus::Expired { proven: true, .. }))
    }

    /// The error of a caller during an outage.
    fn refusal(&self) -> T::Error {
        self.last_error.clone().unwrap_or_else(|| T::not_attempted("the connection was just lost"))
    }

    /// Sets the earliest time of the next attempt.
    fn back_off(&mut self) {
        let wait = self.backoff.next_wait(fastrand::f64());
        self.not_before = Some(now_monotonic() + wait);
    }
}

impl<T: Expirable> SingleFlight<T> {
    /// Creates nothing yet. Failed attempts wait as long as `pace` says.
    pub(crate) fn new(pace: Backoff) -> Arc<Self> {
        let state = FlightState {
            value: None,
            running: None,
            backoff: pace,
            not_before: None,
            last_error: None,
            failures: 0,
        };
        Arc::new(Self { pace, state: Mutex::new(state) })
    }

    /// The last created value, usable or not.
    pub(crate) fn last(&self) -> Option<T> {
        self.state.lock().value.clone()
    }

    /// The status without a new attempt; `None` before the first one.
    pub(crate) fn status(&self) -> Option<ValueStatus<T::Error>> {
        let state = self.state.lock();
        match (state.value.as_ref().map(Expirable::status), &state.last_error) {
            (Some(ValueStatus::Usable), _) => Some(ValueStatus::Usable),
            (_, Some(why)) => Some(ValueStatus::Expired { proven: false, why: why.clone() }),
            (status, None) => status,
        }
    }

    /// Returns the value if it is usable, else creates it with `make`, whose argument is the number
    /// of consecutive failed attempts. One attempt runs at a time, on `io`, at the pace of the
    /// backoff. All callers share the first attempt. In an outage, the caller that starts the next
    /// attempt waits for it, and every other call fails at once with the last error.
    pub(crate) async fn get<F>(
        self: &Arc<Self>,
        io: &Handle,
        make: impl FnOnce(u32) -> F,
    ) -> Created<T>
    where
        F: Future<Output = Created<T>> + Send + 'static,
    {
        let mut outcome = {
            let mut state = self.state.lock();
            match state.value.as_ref().map(|value| (value, value.status())) {
                Some((value, ValueStatus::Usable)) => return Ok(value.clone()),
                Some((_, ValueStatus::Expired { proven, why })) => {
                    if proven && state.last_error.is_none() {
                        state.backoff = self.pace;
                        state.not_before = None;
                    }
                    state.last_error.get_or_insert(why);
                }
                None => {}
            }
            match state.attempt_running() {
                Some(running) if state.backoff.failures() == 0 => running,
                Some(_) => return Err(state.refusal()),
                None if state.not_before.is_some_and(|at| now_monotonic() < at) => {
                    return Err(state.refusal());
                }
                None => state.begin(self, io, make),
            }
        };
        let closed = |_| T::not_attempted("the connections of this process are closed");
        let outcome = outcome.wait_for(Option::is_some).await.map_err(closed)?;
        outcome.clone().unwrap_or_else(|| Err(T::not_attempted("no attempt was made")))
    }

    /// Replaces the value in the background while callers use the old one; does nothing if an
    /// attempt runs or the backoff has not elapsed.
    pub(crate) fn renew<F>(self: &Arc<Self>, io: &Handle, make: impl FnOnce(u32) -> F)
    where
        F: Future<Output = Created<T>> + Send + 'static,
    {
        let mut state = self.state.lock();
        let is_early = state.not_before.is_some_and(|at| now_monotonic() < at);
        if !is_early && state.attempt_running().is_none() {
            state.begin(self, io, make);
        }
    }

    async fn attempt(
        self: Arc<Self>,
        making: impl Future<Output = Created<T>>,
        sender: watch::Sender<Outcome<T>>,
    ) {
        let created = making.await;
        {
            let mut state = self.state.lock();
            state.running = None;
            match &created {
                Ok(value) => {
                    if state.was_useful() {
                        state.backoff = self.pace;
                    }
                    state.value = Some(value.clone());
                    state.last_error = None;
                    state.failures = 0;
                }
                Err(error) => {
                    state.last_error = Some(error.clone());
                    state.failures = state.failures.saturating_add(1);
                }
            }
            // Also after a success: a value that is never used successfully is not replaced at
            // once.
            state.back_off();
        }
        sender.send_replace(Some(created));
    }
}

#[cfg(test)]
#[path = "single_flight_tests.rs"]
mod tests;
