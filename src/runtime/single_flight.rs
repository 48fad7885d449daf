//! A value that is made by one attempt at a time, however many ask for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::runtime::backoff::Backoff;
use crate::runtime::clock::now_monotonic;

/// What became of a value that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueStatus<E> {
    /// It is of use.
    Good,
    /// It is not any more.
    Gone {
        /// Whether it was ever of use. If not, the next attempt waits as after a failure.
        proven: bool,
        /// Why it is gone.
        why: E,
    },
}

/// A value whose use can end.
pub(crate) trait Expirable: Clone + Send + Sync + 'static {
    /// Why there is none.
    type Error: Clone + Send + Sync + 'static;

    fn standing(&self) -> ValueStatus<Self::Error>;

    /// There is none, for this reason, and nothing was tried.
    fn not_made(reason: &str) -> Self::Error;
}

/// The waits between attempts that fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPace {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl RetryPace {
    fn backoff(self) -> Backoff {
        let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Backoff::new(ms(self.min), ms(self.max))
    }
}

type Made<T> = Result<T, <T as Expirable>::Error>;
type Outcome<T> = Option<Made<T>>;

pub(crate) struct SingleFlight<T: Expirable> {
    pace: RetryPace,
    state: Mutex<FlightState<T>>,
}

struct FlightState<T: Expirable> {
    value: Option<T>,
    running: Option<watch::Receiver<Outcome<T>>>,
    backoff: Backoff,
    not_before: Option<Instant>,
    last: Option<T::Error>,
    /// Attempts that failed since one did not.
    failures: u32,
}

impl<T: Expirable> FlightState<T> {
    /// Begins an attempt.
    fn begin<F>(
        &mut self,
        flight: &Arc<SingleFlight<T>>,
        io: &Handle,
        make: impl FnOnce(u32) -> F,
    ) -> watch::Receiver<Outcome<T>>
    where
        F: Future<Output = Made<T>> + Send + 'static,
    {
        let (told, outcome) = watch::channel(None);
        self.running = Some(outcome.clone());
        io.spawn(flight.clone().attempt(make(self.failures), told));
        outcome
    }

    /// The attempt that runs; one that panicked is none.
    fn attempt_running(&self) -> Option<watch::Receiver<Outcome<T>>> {
        let running = self.running.clone()?;
        (running.borrow().is_some() || running.has_changed().is_ok()).then_some(running)
    }

    /// Whether the value was of use so far.
    fn was_of_use(&self) -> bool {
        let standing = self.value.as_ref().map(Expirable::standing);
        matches!(standing, Some(ValueStatus::Good | ValueStatus::Gone { proven: true, .. }))
    }

    /// Whoever comes in an outage is told at once.
    fn refusal(&self) -> T::Error {
        self.last.clone().unwrap_or_else(|| T::not_made("the connection was just lost"))
    }

    fn wait(&mut self) {
        let wait = self.backoff.next_wait(fastrand::f64());
        self.not_before = Some(now_monotonic() + wait);
    }
}

impl<T: Expirable> SingleFlight<T> {
    pub(crate) fn new(pace: RetryPace) -> Arc<Self> {
        let state = FlightState {
            value: None,
            running: None,
            backoff: pace.backoff(),
            not_before: None,
            last: None,
            failures: 0,
        };
        Arc::new(Self { pace, state: Mutex::new(state) })
    }

    /// The value that was made last, of use or not.
    pub(crate) fn last(&self) -> Option<T> {
        self.state.lock().value.clone()
    }

    /// What is known without trying; `None` if nothing was tried yet.
    pub(crate) fn standing(&self) -> Option<ValueStatus<T::Error>> {
        let state = self.state.lock();
        match (state.value.as_ref().map(Expirable::standing), &state.last) {
            (Some(ValueStatus::Good), _) => Some(ValueStatus::Good),
            (_, Some(why)) => Some(ValueStatus::Gone { proven: false, why: why.clone() }),
            (standing, None) => standing,
        }
    }

    /// The value, made by `make` if need be: by one attempt at a time, on `io`, and not more often
    /// than the pace allows. The first attempt is shared by all who ask; in an outage, all but the
    /// one whose call begins the next attempt are refused at once. `make` is told how many attempts
    /// failed before.
    pub(crate) async fn get<F>(
        self: &Arc<Self>,
        io: &Handle,
        make: impl FnOnce(u32) -> F,
    ) -> Made<T>
    where
        F: Future<Output = Made<T>> + Send + 'static,
    {
        let mut outcome = {
            let mut state = self.state.lock();
            match state.value.as_ref().map(Expirable::standing) {
                Some(ValueStatus::Good) => {
                    return state.value.clone().ok_or_else(|| state.refusal());
                }
                Some(ValueStatus::Gone { proven, why }) => {
                    if proven && state.last.is_none() {
                        state.backoff = self.pace.backoff();
                        state.not_before = None;
                    }
                    state.last.get_or_insert(why);
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
        let ended = |_| T::not_made("the connections of this process are closed");
        let outcome = outcome.wait_for(Option::is_some).await.map_err(ended)?;
        outcome.clone().unwrap_or_else(|| Err(T::not_made("no attempt was made")))
    }

    /// Makes the value anew behind the backs of those who use it, if no attempt runs and the pace
    /// allows one.
    pub(crate) fn renew<F>(self: &Arc<Self>, io: &Handle, make: impl FnOnce(u32) -> F)
    where
        F: Future<Output = Made<T>> + Send + 'static,
    {
        let mut state = self.state.lock();
        let early = state.not_before.is_some_and(|at| now_monotonic() < at);
        if !early && state.attempt_running().is_none() {
            state.begin(self, io, make);
        }
    }

    async fn attempt(
        self: Arc<Self>,
        making: impl Future<Output = Made<T>>,
        told: watch::Sender<Outcome<T>>,
    ) {
        let made = making.await;
        {
            let mut state = self.state.lock();
            state.running = None;
            match &made {
                Ok(value) => {
                    if state.was_of_use() {
                        state.backoff = self.pace.backoff();
                    }
                    state.value = Some(value.clone());
                    state.last = None;
                    state.failures = 0;
                }
                Err(error) => {
                    state.last = Some(error.clone());
                    state.failures = state.failures.saturating_add(1);
                }
            }
            // Also after a success: what never proves to be of use is not made again at once.
            state.wait();
        }
        told.send_replace(Some(made));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Error(String);

    #[derive(Debug, Clone, Default)]
    struct Thing {
        gone: Arc<AtomicBool>,
        proven: Arc<AtomicBool>,
    }

    impl Expirable for Thing {
        type Error = Error;

        fn not_made(reason: &str) -> Error {
            Error(reason.to_owned())
        }

        fn standing(&self) -> ValueStatus<Error> {
            if !self.gone.load(Ordering::SeqCst) {
                return ValueStatus::Good;
            }
            let proven = self.proven.load(Ordering::SeqCst);
            ValueStatus::Gone { proven, why: Error("worn out".to_owned()) }
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    #[test]
    fn many_who_ask_share_the_first_attempt() {
        run(async {
            let flight = SingleFlight::<Thing>::new(RetryPace { min: HOUR, max: HOUR });
            let made = AtomicU32::new(0);
            let io = Handle::current();
            let ask = || {
                flight.get(&io, |_| {
                    made.fetch_add(1, Ordering::SeqCst);
                    async {
                        tokio::task::yield_now().await;
                        Ok(Thing::default())
                    }
                })
            };
            let all = futures_util::future::join_all((0..10).map(|_| ask())).await;
            assert!(all.iter().all(Result::is_ok));
            assert_eq!(made.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn after_a_failure_callers_are_refused_until_the_wait_is_over() {
        run(async {
            let flight = SingleFlight::<Thing>::new(RetryPace { min: HOUR, max: HOUR });
            let error = Error("nobody there".to_owned());
            let fail = |_| std::future::ready(Err(Error("nobody there".to_owned())));
            let io = Handle::current();
            assert_eq!(flight.get(&io, fail).await.unwrap_err(), error);
            let never = |_| async { unreachable!("no attempt before the wait is over") };
            assert_eq!(flight.get(&io, never).await.unwrap_err(), error);
        });
    }

    #[test]
    fn what_was_of_use_is_replaced_at_once_and_what_never_was_is_not() {
        run(async {
            let io = Handle::current();
            let make = |_| std::future::ready(Ok(Thing::default()));
            for proven in [true, false] {
                let flight = SingleFlight::new(RetryPace { min: HOUR, max: HOUR });
                let thing = flight.get(&io, make).await.unwrap();
                thing.proven.store(proven, Ordering::SeqCst);
                thing.gone.store(true, Ordering::SeqCst);
                let next = flight.get(&io, make).await;
                if proven {
                    assert_eq!(next.unwrap().standing(), ValueStatus::Good);
                } else {
                    assert_eq!(next.unwrap_err(), Error("worn out".to_owned()));
                }
            }
        });
    }

    #[test]
    fn a_renewal_disturbs_nobody_and_may_fail() {
        run(async {
            let io = Handle::current();
            let flight = SingleFlight::new(RetryPace { min: Duration::ZERO, max: Duration::ZERO });
            let old = flight.get(&io, |_| std::future::ready(Ok(Thing::default()))).await.unwrap();
            let (new, never) = (Thing::default(), |_| async { unreachable!("it is of use") });
            let settled = async |result: Result<Thing, Error>| {
                while flight.state.lock().not_before.is_some_and(|at| now_monotonic() < at) {}
                flight.renew(&io, |_| std::future::ready(result));
                while flight.state.lock().running.is_some() {
                    tokio::task::yield_now().await;
                }
                flight.get(&io, never).await.unwrap().gone
            };
            let found = settled(Err(Error("nobody there".to_owned()))).await;
            assert!(Arc::ptr_eq(&found, &old.gone));
            let found = settled(Ok(new.clone())).await;
            assert!(Arc::ptr_eq(&found, &new.gone));
        });
    }

    #[test]
    fn an_attempt_that_panics_is_not_waited_for() {
        run(async {
            let io = Handle::current();
            let flight = SingleFlight::<Thing>::new(RetryPace { min: HOUR, max: HOUR });
            let panics = |_| async { panic!("a bug in an attempt") };
            assert!(flight.get(&io, panics).await.is_err());
            let make = |_| std::future::ready(Ok(Thing::default()));
            assert!(flight.get(&io, make).await.is_ok());
        });
    }
}
