//! Behaviour of actix that the supervisor, the permits and the panic guard are built on. An upgrade
//! that changes one of these facts fails here.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use actix::{
    Actor, ActorContext, Addr, Arbiter, AsyncContext, Context, Handler, Message, ResponseFuture,
    Supervised, Supervisor, SyncArbiter, SyncContext,
};

use crate::support::harness::in_system;
use crate::support::wait::until;

#[derive(Message)]
#[rtype(result = "u32")]
enum Do {
    Count,
    Panic,
    Stop,
}

#[derive(Default)]
struct Counter {
    count: u32,
    stalled: bool,
}

impl Actor for Counter {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if self.stalled {
            ctx.wait(actix::fut::wrap_future(std::future::pending::<()>()));
        }
    }
}

impl Supervised for Counter {
    fn restarting(&mut self, _: &mut Self::Context) {
        self.count += 100;
    }
}

impl Handler<Do> for Counter {
    type Result = u32;

    fn handle(&mut self, message: Do, ctx: &mut Self::Context) -> u32 {
        match message {
            Do::Count => self.count += 1,
            Do::Panic => panic!("on purpose"),
            Do::Stop => ctx.stop(),
        }
        self.count
    }
}

#[test]
fn a_supervisor_restarts_the_same_value_after_a_stop() {
    in_system(async {
        let addr = Supervisor::start(|_| Counter::default());
        assert_eq!(addr.send(Do::Count).await.unwrap(), 1);
        addr.send(Do::Stop).await.unwrap();
        assert_eq!(addr.send(Do::Count).await.unwrap(), 102);
    });
}

#[test]
fn a_supervisor_does_not_restart_after_a_panic() {
    in_system(async {
        let arbiter = Arbiter::new();
        let addr: Addr<Counter> =
            Supervisor::start_in_arbiter(&arbiter.handle(), |_| Counter::default());
        assert!(addr.send(Do::Panic).await.is_err());
        until("the address to close", || async { (!addr.connected()).then_some(()) }).await;
        assert!(addr.send(Do::Count).await.is_err());
        // The thread keeps running.
        let other = Counter::start_in_arbiter(&arbiter.handle(), |_| Counter::default());
        assert_eq!(other.send(Do::Count).await.unwrap(), 1);
    });
}

#[test]
fn a_mailbox_does_not_bound_senders_with_clones_of_the_address() {
    in_system(async {
        let addr = Counter { stalled: true, ..Counter::default() }.start();
        let clones: Vec<_> = (0..200).map(|_| addr.clone()).collect();
        let accepted = clones.iter().filter(|clone| clone.try_send(Do::Count).is_ok()).count();
        assert_eq!(accepted, 200, "the default capacity is 16");
    });
}

#[test]
fn a_send_to_a_full_mailbox_goes_through() {
    in_system(async {
        let addr = Counter { stalled: true, ..Counter::default() }.start();
        while addr.try_send(Do::Count).is_ok() {}
        let sends: Vec<_> = (0..100).map(|_| addr.send(Do::Count)).collect();
        let waiting = futures_util::future::join_all(sends);
        let waited = tokio::time::timeout(Duration::from_millis(20), waiting).await;
        assert!(waited.is_err(), "all sends are pending, none was rejected");
    });
}

struct Thread;

impl Actor for Thread {
    type Context = SyncContext<Self>;
}

impl Handler<Do> for Thread {
    type Result = u32;

    fn handle(&mut self, message: Do, _: &mut Self::Context) -> u32 {
        assert!(!matches!(message, Do::Panic), "on purpose");
        1
    }
}

#[test]
fn a_sync_arbiter_does_not_replace_a_thread_that_panicked() {
    in_system(async {
        let addr = SyncArbiter::start(1, || Thread);
        assert_eq!(addr.send(Do::Count).await.unwrap(), 1);
        assert!(addr.send(Do::Panic).await.is_err());
        assert!(addr.send(Do::Count).await.is_err(), "no thread is left");
    });
}

struct Concurrent {
    inside: Rc<Cell<u32>>,
}

impl Actor for Concurrent {
    type Context = Context<Self>;
}

impl Handler<Do> for Concurrent {
    type Result = ResponseFuture<u32>;

    fn handle(&mut self, _: Do, _: &mut Self::Context) -> ResponseFuture<u32> {
        let inside = Rc::clone(&self.inside);
        inside.set(inside.get() + 1);
        Box::pin(async move {
            tokio::task::yield_now().await;
            inside.get()
        })
    }
}

#[test]
fn a_handler_that_returns_a_future_does_not_hold_the_mailbox() {
    in_system(async {
        let addr = Concurrent { inside: Rc::default() }.start();
        let (first, second) = tokio::join!(addr.send(Do::Count), addr.send(Do::Count));
        assert_eq!((first.unwrap(), second.unwrap()), (2, 2), "both handlers ran concurrently");
    });
}
