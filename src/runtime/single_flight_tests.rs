use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

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

    fn not_attempted(reason: &str) -> Error {
        Error(reason.to_owned())
    }

    fn status(&self) -> ValueStatus<Error> {
        if !self.gone.load(Ordering::SeqCst) {
            return ValueStatus::Usable;
        }
        let proven = self.proven.load(Ordering::SeqCst);
        ValueStatus::Expired { proven, why: Error("expired".to_owned()) }
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}

#[test]
fn concurrent_callers_share_the_first_attempt() {
    run(async {
        let flight = SingleFlight::<Thing>::new(Backoff::between(HOUR, HOUR));
        let attempts = AtomicU32::new(0);
        let io = Handle::current();
        let call = || {
            flight.get(&io, |_| {
                attempts.fetch_add(1, Ordering::SeqCst);
                async {
                    tokio::task::yield_now().await;
                    Ok(Thing::default())
                }
            })
        };
        let all = futures_util::future::join_all((0..10).map(|_| call())).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(attempts.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn after_a_failure_callers_are_refused_until_the_wait_is_over() {
    run(async {
        let flight = SingleFlight::<Thing>::new(Backoff::between(HOUR, HOUR));
        let error = Error("unreachable".to_owned());
        let fail = |_| std::future::ready(Err(Error("unreachable".to_owned())));
        let io = Handle::current();
        assert_eq!(flight.get(&io, fail).await.unwrap_err(), error);
        let never = |_| async { unreachable!("no attempt before the wait is over") };
        assert_eq!(flight.get(&io, never).await.unwrap_err(), error);
    });
}

#[test]
fn a_useful_value_is_replaced_at_once_and_a_useless_one_after_a_backoff() {
    run(async {
        let io = Handle::current();
        let make = |_| std::future::ready(Ok(Thing::default()));
        for proven in [true, false] {
            let flight = SingleFlight::new(Backoff::between(HOUR, HOUR));
            let thing = flight.get(&io, make).await.unwrap();
            thing.proven.store(proven, Ordering::SeqCst);
            thing.gone.store(true, Ordering::SeqCst);
            let next = flight.get(&io, make).await;
            if proven {
                assert_eq!(next.unwrap().status(), ValueStatus::Usable);
            } else {
                assert_eq!(next.unwrap_err(), Error("expired".to_owned()));
            }
        }
    });
}

#[test]
fn a_failed_renewal_keeps_the_old_value() {
    run(async {
        let io = Handle::current();
        let flight = SingleFlight::new(Backoff::between(Duration::ZERO, Duration::ZERO));
        let old = flight.get(&io, |_| std::future::ready(Ok(Thing::default()))).await.unwrap();
        let (new, never) = (Thing::default(), |_| async { unreachable!("the value is usable") });
        let settled = async |result: Result<Thing, Error>| {
            while flight.state.lock().not_before.is_some_and(|at| now_monotonic() < at) {}
            flight.renew(&io, |_| std::future::ready(result));
            while flight.state.lock().running.is_some() {
                tokio::task::yield_now().await;
            }
            flight.get(&io, never).await.unwrap().gone
        };
        let found = settled(Err(Error("unreachable".to_owned()))).await;
        assert!(Arc::ptr_eq(&found, &old.gone));
        let found = settled(Ok(new.clone())).await;
        assert!(Arc::ptr_eq(&found, &new.gone));
    });
}

#[test]
fn an_attempt_that_panicked_is_replaced() {
    run(async {
        let io = Handle::current();
        let flight = SingleFlight::<Thing>::new(Backoff::between(HOUR, HOUR));
        let panics = |_| async { panic!("a bug in an attempt") };
        assert!(flight.get(&io, panics).await.is_err());
        let make = |_| std::future::ready(Ok(Thing::default()));
        assert!(flight.get(&io, make).await.is_ok());
    });
}
