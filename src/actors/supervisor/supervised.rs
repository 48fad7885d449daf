//! The life of one supervised actor: the panic guard, its progress, and the last word.
//!
//! actix does not restart an actor that panicked, and loses its mailbox without a word. Here no
//! panic leaves a handler: it is caught, reported to the supervisor together with its message, and
//! the actor is ended; the supervisor builds a new one. An actor that is dropped in any other way
//! reports itself too, because its [`Incarnation`] is dropped with it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, fut};
use futures_util::FutureExt;
use tokio::sync::{oneshot, watch};

use crate::messages::Quiet;
use crate::runtime::fault_injection::{FaultInjector, FaultPoint, strike};
use crate::runtime::progress::Progress;

/// Why an actor ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// It was told to.
    Stopped,
    /// A step panicked.
    Panicked(String),
    /// It gave up for a reason of its own.
    Failed(String),
    /// It had work and made no progress.
    Stalled,
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Panicked(why) => write!(f, "panicked: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::Stalled => f.write_str("stalled: it had work and made no progress"),
        }
    }
}

/// What a supervised actor carries: its connection to the supervisor.
#[derive(Debug)]
pub struct Incarnation {
    progress: Arc<Progress>,
    drill: FaultInjector,
    exit: Option<oneshot::Sender<ExitReason>>,
}

impl Incarnation {
    /// A life and the ear that hears its last word.
    #[must_use]
    pub fn new(
        progress: Arc<Progress>,
        drill: FaultInjector,
    ) -> (Self, oneshot::Receiver<ExitReason>) {
        let (exit, heard) = oneshot::channel();
        (Self { progress, drill, exit: Some(exit) }, heard)
    }

    /// Says the last word; only the first one counts.
    pub fn end(&mut self, reason: ExitReason) {
        if let Some(exit) = self.exit.take() {
            // Nobody hears it only while the whole process ends.
            drop(exit.send(reason));
        }
    }
}

impl Drop for Incarnation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end(ExitReason::Panicked("outside of a guarded step".to_owned()));
        } else {
            self.end(ExitReason::Stopped);
        }
    }
}

/// An actor under supervision.
pub trait Supervised: Actor<Context = Context<Self>> + Sized {
    /// Its life.
    fn life(&mut self) -> &mut Incarnation;
}

/// Runs a synchronous step; a panic in it ends the actor and nothing else.
pub fn step<A: Supervised>(
    actor: &mut A,
    ctx: &mut Context<A>,
    work: impl FnOnce(&mut A, &mut Context<A>),
) {
    let drawn = actor.life().drill.draw();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        strike(drawn, FaultPoint::Before);
        work(actor, ctx);
        strike(drawn, FaultPoint::After);
    }));
    actor.life().progress.step();
    if let Err(panic) = caught {
        end(actor, ctx, ExitReason::Panicked(text_of(panic.as_ref())));
    }
}

/// Runs `work` beside the mailbox, then `then` as a step of the actor; a panic in either ends the
/// actor and nothing else. Work that neither ends nor has a call answered is a stall.
pub fn spawn_step<A, F, T>(
    actor: &mut A,
    ctx: &mut Context<A>,
    work: F,
    then: impl FnOnce(&mut A, &mut Context<A>, T) + 'static,
) where
    A: Supervised,
    F: Future<Output = T> + 'static,
    T: 'static,
{
    let under_way = actor.life().progress.begin();
    spawn_wait(actor, ctx, under_way.observe(work), move |actor, ctx, done| {
        drop(under_way);
        then(actor, ctx, done);
    });
}

/// The same for a wait for another actor, which may be as long as that one works: no stall of this
/// one.
pub fn spawn_wait<A, F, T>(
    actor: &mut A,
    ctx: &mut Context<A>,
    work: F,
    then: impl FnOnce(&mut A, &mut Context<A>, T) + 'static,
) where
    A: Supervised,
    F: Future<Output = T> + 'static,
    T: 'static,
{
    let drawn = actor.life().drill.draw();
    let guarded = AssertUnwindSafe(async move {
        strike(drawn, FaultPoint::Before);
        work.await
    })
    .catch_unwind();
    ctx.spawn(fut::wrap_future::<_, A>(guarded).map(move |done, actor, ctx| match done {
        Ok(value) => step(actor, ctx, |actor, ctx| then(actor, ctx, value)),
        Err(panic) => end(actor, ctx, ExitReason::Panicked(text_of(panic.as_ref()))),
    }));
}

/// Ends the actor at once, with a reason for the supervisor.
pub fn end<A: Supervised>(actor: &mut A, ctx: &mut Context<A>, reason: ExitReason) {
    actor.life().end(reason);
    // `terminate` and not `stop`: a stopping actor would still be polled while it is dropped, and
    // a second panic there would abort the process.
    ctx.terminate();
}

/// Tells one actor to become quiet, and waits until it is or has died.
pub(in crate::actors) async fn quiet_one<A>(address: &Address<A>)
where
    A: Supervised + Handler<Quiet>,
{
    let Some(actor) = address.get() else { return };
    let (done, idle) = oneshot::channel();
    if actor.try_send(Quiet { done }).is_ok() {
        drop(idle.await);
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Where a supervised actor can be reached now. Looked up for every message, because the supervisor
/// replaces the actor when it dies.
pub struct Address<A: Actor> {
    current: watch::Receiver<Option<Addr<A>>>,
}

impl<A: Actor> fmt::Debug for Address<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("is_up", &self.get().is_some()).finish()
    }
}

impl<A: Actor> Clone for Address<A> {
    fn clone(&self) -> Self {
        Self { current: self.current.clone() }
    }
}

impl<A: Actor> Address<A> {
    pub(super) fn new(current: watch::Receiver<Option<Addr<A>>>) -> Self {
        Self { current }
    }

    /// The actor's address, unless it is down at the moment.
    #[must_use]
    pub fn get(&self) -> Option<Addr<A>> {
        self.current.borrow().as_ref().filter(|addr| addr.connected()).cloned()
    }

    /// Waits until the actor can be reached. Ends only when it can, or never when the supervisor
    /// has given up: the caller has a deadline.
    pub async fn wait_up(&self) -> Addr<A> {
        let mut current = self.current.clone();
        loop {
            if let Some(addr) = self.get() {
                return addr;
            }
            if current.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
