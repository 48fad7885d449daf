//! One incarnation of a supervised actor: panic guard, progress, last error, exit reason.
//!
//! actix does not restart an actor that panicked, and drops its mailbox silently. Here every
//! handler catches panics: the panic is reported to the supervisor with its message, the actor is
//! terminated, and the supervisor starts a new one. An actor that is dropped in any other way is
//! reported too, because its [`Incarnation`] is dropped with it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, fut};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::messages::{Quiet, reply};
use crate::runtime::fault_injection::{FaultInjector, FaultPoint, panic_if_chosen};
use crate::runtime::progress::Progress;

/// Why an actor exited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExitReason {
    /// The supervisor ended the actor, or it was dropped.
    #[error("stopped")]
    Stopped,
    /// A step panicked with this message.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The actor ended itself with this error.
    #[error("failed: {0}")]
    Failed(String),
    #[error("stalled: it had work and made no progress")]
    Stalled,
}

/// The connection of one supervised actor to its supervisor.
#[derive(Debug)]
pub struct Incarnation {
    progress: Arc<Progress>,
    fault_injector: FaultInjector,
    exit: Option<oneshot::Sender<ExitReason>>,
    /// Cancelled once the actor is quiet.
    quiet: CancellationToken,
    /// Told once the actor is quiet and idle.
    quiet_waiters: Vec<oneshot::Sender<()>>,
    /// Dropped with the actor.
    _running: TaskTrackerToken,
}

impl Incarnation {
    /// An incarnation, and the receiver of its exit reason. `running` is held while it runs.
    pub fn new(
        progress: Arc<Progress>,
        fault_injector: FaultInjector,
        running: TaskTrackerToken,
    ) -> (Self, oneshot::Receiver<ExitReason>) {
        let (exit, receiver) = oneshot::channel();
        let incarnation = Self {
            progress,
            fault_injector,
            exit: Some(exit),
            quiet: CancellationToken::new(),
            quiet_waiters: Vec::new(),
            _running: running,
        };
        (incarnation, receiver)
    }

    /// Begins to be quiet: from now on the actor accepts no new work. The sender of the message is
    /// answered by [`Self::report_quiet`].
    pub(in crate::actors) fn quiet(&mut self, quiet: Quiet) {
        self.quiet.cancel();
        self.quiet_waiters.push(quiet.done);
    }

    pub(in crate::actors) fn is_quiet(&self) -> bool {
        self.quiet.is_cancelled()
    }

    /// For a worker that the actor runs.
    pub(in crate::actors) fn supervision(&self) -> Supervision {
        Supervision { progress: Arc::clone(&self.progress), quiet: self.quiet.clone() }
    }

    /// Answers those who have sent [`Quiet`]: no work is in flight.
    pub(in crate::actors) fn report_quiet(&mut self) {
        self.quiet_waiters.drain(..).for_each(|done| reply(done, ()));
    }

    /// Reports the exit reason; calls after the first one have no effect.
    pub fn end(&mut self, reason: ExitReason) {
        if let Some(exit) = self.exit.take() {
            // The receiver is gone during shutdown, and once the last address is dropped.
            drop(exit.send(reason));
        }
    }
}

impl Drop for Incarnation {
    fn drop(&mut self) {
        self.end(if std::thread::panicking() {
            ExitReason::Panicked("outside of a guarded step".to_owned())
        } else {
            ExitReason::Stopped
        });
    }
}

/// How the work that a worker does beside the steps of its actor is supervised and ended.
#[derive(Debug, Clone)]
pub(in crate::actors) struct Supervision {
    progress: Arc<Progress>,
    quiet: CancellationToken,
}

impl Supervision {
    /// Makes a call; one that neither ends nor has a call within it answered is a stall.
    pub(in crate::actors) async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        let guard = self.progress.begin();
        guard.observe(call).await
    }

    /// Waits until the actor is quiet at most; `None`: it is quiet. The wait is never a stall.
    pub(in crate::actors) async fn wait<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        self.quiet.run_until_cancelled(wait).await
    }

    /// Returns once the actor is quiet.
    pub(in crate::actors) async fn quiet(&self) {
        self.quiet.cancelled().await;
    }

    pub(in crate::actors) fn is_quiet(&self) -> bool {
        self.quiet.is_cancelled()
    }
}

/// An actor under supervision.
pub trait Supervised: Actor<Context = Context<Self>> + Sized {
    fn incarnation(&mut self) -> &mut Incarnation;
}

/// Implements [`Supervised`] for an actor with the field `incarnation`.
macro_rules! supervised {
    ($actor:ty) => {
        impl $crate::actors::supervisor::supervised::Supervised for $actor {
            fn incarnation(&mut self) -> &mut $crate::actors::supervisor::supervised::Incarnation {
                &mut self.incarnation
            }
        }
    };
}
pub(in crate::actors) use supervised;

/// A step of an actor.
type Step<A> = Box<dyn FnOnce(&mut A, &mut Context<A>)>;

/// Runs a synchronous step; a panic in it terminates this actor only.
pub fn step<A: Supervised>(
    actor: &mut A,
    ctx: &mut Context<A>,
    work: impl FnOnce(&mut A, &mut Context<A>),
) {
    let fault = actor.incarnation().fault_injector.choose();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        panic_if_chosen(fault, FaultPoint::Before);
        work(actor, ctx);
        panic_if_chosen(fault, FaultPoint::After);
    }));
    actor.incarnation().progress.step();
    if let Err(panic) = caught {
        end(actor, ctx, ExitReason::Panicked(text_of(panic.as_ref())));
    }
}

/// Runs a step after a pause, which is never a stall.
pub fn step_later<A: Supervised>(
    ctx: &mut Context<A>,
    pause: Duration,
    work: impl FnOnce(&mut A, &mut Context<A>) + 'static,
) {
    ctx.run_later(pause, |actor, ctx| step(actor, ctx, work));
}

/// Runs `work` concurrently with the mailbox, then `then` as a step of the actor; a panic in either
/// terminates this actor only. Work that neither ends nor has a call answered is a stall.
pub fn spawn_step<A: Supervised, T: 'static>(
    actor: &mut A,
    ctx: &mut Context<A>,
    work: impl Future<Output = T> + 'static,
    then: impl FnOnce(&mut A, &mut Context<A>, T) + 'static,
) {
    let guard = actor.incarnation().progress.begin();
    spawn_wait(actor, ctx, guard.observe(work), move |actor, ctx, done| {
        drop(guard);
        then(actor, ctx, done);
    });
}

/// Like [`spawn_step`], for waiting on another actor: the wait is never a stall of this actor.
pub fn spawn_wait<A: Supervised, T: 'static>(
    actor: &mut A,
    ctx: &mut Context<A>,
    work: impl Future<Output = T> + 'static,
    then: impl FnOnce(&mut A, &mut Context<A>, T) + 'static,
) {
    // Boxed: panic guard and mailbox are compiled for each actor, and not for each step.
    let work: LocalBoxFuture<'static, Step<A>> = Box::pin(async move {
        let value = work.await;
        Box::new(move |actor: &mut A, ctx: &mut Context<A>| then(actor, ctx, value)) as Step<A>
    });
    let fault = actor.incarnation().fault_injector.choose();
    let guarded = AssertUnwindSafe(async move {
        panic_if_chosen(fault, FaultPoint::Before);
        work.await
    })
    .catch_unwind();
    ctx.spawn(fut::wrap_future::<_, A>(guarded).map(move |done, actor, ctx| match done {
        Ok(then) => step(actor, ctx, then),
        Err(panic) => end(actor, ctx, ExitReason::Panicked(text_of(panic.as_ref()))),
    }));
}

/// Terminates the actor at once and reports the reason to the supervisor.
pub fn end<A: Supervised>(actor: &mut A, ctx: &mut Context<A>, reason: ExitReason) {
    actor.incarnation().end(reason);
    // `terminate` and not `stop`: a stopping actor would still be polled while it is dropped, and
    // a second panic there would abort the process.
    ctx.terminate();
}

/// The last error of repeated work: each change is logged once.
#[derive(Debug, Default)]
pub(in crate::actors) struct LastError(Option<String>);

impl LastError {
    /// Records how the work ended. Returns an error that is not the last one, to be logged.
    pub(in crate::actors) fn changed<E: fmt::Display>(
        &mut self,
        ended: Result<(), E>,
    ) -> Option<E> {
        let error = ended.err();
        let text = error.as_ref().map(E::to_string);
        let is_same = self.0 == text;
        self.0 = text;
        error.filter(|_| !is_same)
    }

    /// Records a success. Returns whether the work had failed before.
    pub(in crate::actors) fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Whether the work failed the last time.
    pub(in crate::actors) fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

/// Sends [`Quiet`] to one actor and waits until the actor is quiet or has exited.
pub(in crate::actors) async fn quiet_one<A: Supervised + Handler<Quiet>>(address: Address<A>) {
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

/// The current address of a supervised actor. Read it for every message: the supervisor replaces an
/// actor that exits.
pub struct Address<A: Actor> {
    pub(super) current: watch::Receiver<Option<Addr<A>>>,
}

impl<A: Actor> Clone for Address<A> {
    fn clone(&self) -> Self {
        Self { current: self.current.clone() }
    }
}

impl<A: Actor> Address<A> {
    /// The address of the running actor; `None` while it is restarted or down.
    pub fn get(&self) -> Option<Addr<A>> {
        self.current.borrow().as_ref().filter(|addr| addr.connected()).cloned()
    }

    /// Waits until the actor is up. Never returns after the component is down: the caller sets the
    /// deadline.
    pub async fn wait_up(&self) -> Addr<A> {
        let mut current = self.current.clone();
        let is_up = |addr: &Option<Addr<A>>| addr.as_ref().is_some_and(Addr::connected);
        let found = current.wait_for(is_up).await.ok().and_then(|addr| addr.clone());
        let Some(addr) = found else { return std::future::pending().await };
        addr
    }
}
