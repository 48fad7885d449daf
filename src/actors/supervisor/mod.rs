//! Flow step 12/12: exited actor -> its successor.
//!
//! Each child has a monitor task that owns its factory. The task receives the child's exit reason,
//! or detects that work under way makes no progress. It starts a new actor after a backoff and
//! publishes the new address. A child that exits too often within a time window exhausts its
//! restart budget: the component is down, and the process exits on purpose, so that its service
//! manager can act.
//!
//! On crash: the monitor tasks run on the main thread and do no work of their own.

pub mod supervised;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{ActorFutureExt, Addr, AsyncContext, Context, fut};
use actix_rt::ArbiterHandle;
use async_trait::async_trait;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_util::task::TaskTracker;

use crate::actors::supervisor::supervised::{Address, ExitReason, Incarnation, Supervised, end};
use crate::config::SupervisorSettings;
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::progress::{ChildReport, ChildState, Progress};
use crate::runtime::shutdown::Shutdown;

/// How a child is started.
pub struct ChildSpec<A: Supervised> {
    /// Unique among the children.
    pub name: String,
    /// Kind of actor, for metrics and fault injection.
    pub kind: &'static str,
    /// The thread of the actor.
    pub arbiter: ArbiterHandle,
    /// Mailbox capacity: at least the number of permits to send messages.
    pub mailbox: usize,
    /// Whether the child ends with the last clone of its address.
    pub ends_with_last_address: bool,
    /// Injects panics.
    pub fault_injector: FaultInjector,
    /// Creates the actor of one incarnation.
    pub factory: Arc<dyn Fn(Incarnation) -> A + Send + Sync>,
}

/// A component exhausted its restart budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} is down: it ended more than {restarts_max} times in {window_ms} ms, last: {last_exit}"
)]
pub struct ComponentDown {
    pub name: String,
    pub restarts_max: u32,
    pub window_ms: u64,
    pub last_exit: String,
}

/// Where the address of a child is published, whatever the type of its actor: monitor tasks are
/// compiled once.
#[async_trait]
trait Publication: Send + Sync {
    /// Starts an actor, which ends when `unwatched` does, and publishes its address.
    fn start(&self, incarnation: Incarnation, unwatched: oneshot::Receiver<()>);

    /// Withdraws the address of an actor that has ended.
    fn withdraw(&self);

    /// Returns once the child is to end, because the last clone of its address is dropped.
    async fn abandoned(&self);
}

#[async_trait]
impl<A: Supervised> Publication for (ChildSpec<A>, watch::Sender<Option<Addr<A>>>) {
    fn start(&self, incarnation: Incarnation, unwatched: oneshot::Receiver<()>) {
        let (spec, address) = self;
        let (factory, mailbox) = (Arc::clone(&spec.factory), spec.mailbox);
        let actor = A::start_in_arbiter(&spec.arbiter, move |ctx: &mut Context<A>| {
            ctx.set_mailbox_capacity(mailbox);
            let unwatched = fut::wrap_future::<_, A>(unwatched);
            ctx.spawn(unwatched.map(|_, actor, ctx| end(actor, ctx, ExitReason::Stopped)));
            factory(incarnation)
        });
        address.send_replace(Some(actor));
    }

    fn withdraw(&self) {
        self.1.send_replace(None);
    }

    async fn abandoned(&self) {
        let (spec, address) = self;
        if spec.ends_with_last_address {
            address.closed().await;
        } else {
            std::future::pending::<()>().await;
        }
    }
}

#[derive(Debug)]
struct Child {
    report: Mutex<ChildReport>,
    progress: Arc<Progress>,
}

impl Child {
    fn record_exit(&self, reason: &ExitReason, restarts: bool) {
        let mut report = self.report.lock();
        report.state = if restarts { ChildState::Restarting } else { ChildState::Down };
        report.restarts += u64::from(restarts);
        report.panics += u64::from(matches!(reason, ExitReason::Panicked(_)));
        report.stalls += u64::from(*reason == ExitReason::Stalled);
        report.last_exit = Some(reason.to_string());
        let (name, restarts) = (&report.name, report.restarts);
        tracing::warn!(actor.name = name, actor.restarts = restarts, %reason, "actor ended");
    }
}

/// Starts children and restarts them when they exit or stall. Clones share the children.
#[derive(Debug, Clone)]
pub struct Supervisor {
    settings: SupervisorSettings,
    clock: SharedClock,
    shutdown: Shutdown,
    home: ArbiterHandle,
    children: Arc<Mutex<Vec<Arc<Child>>>>,
    /// Last reports of the children that were restarted and have ended with their last address.
    ended: Arc<Mutex<Vec<ChildReport>>>,
    down: watch::Sender<Option<ComponentDown>>,
    /// The actors that run.
    running: TaskTracker,
}

impl Supervisor {
    /// A supervisor without children; its monitor tasks run on the thread of `home`.
    pub fn new(
        settings: SupervisorSettings,
        clock: SharedClock,
        shutdown: Shutdown,
        home: ArbiterHandle,
    ) -> Self {
        let (down, _) = watch::channel(None);
        Self {
            settings,
            clock,
            shutdown,
            home,
            children: Arc::default(),
            ended: Arc::default(),
            down,
            running: TaskTracker::new(),
        }
    }

    /// Starts a child and restarts it until the shutdown begins, or until it ends with its last
    /// address.
    pub fn start<A: Supervised>(&self, spec: ChildSpec<A>) -> Address<A> {
        let report = ChildReport {
            name: spec.name.clone(),
            kind: spec.kind,
            state: ChildState::Restarting,
            restarts: 0,
            panics: 0,
            stalls: 0,
            steps: 0,
            last_exit: None,
        };
        let child = Arc::new(Child { report: Mutex::new(report), progress: Arc::default() });
        self.children.lock().push(Arc::clone(&child));
        let (address, current) = watch::channel(None);
        let fault_injector = spec.fault_injector;
        let monitor = self.clone().monitor(Box::new((spec, address)), child, fault_injector);
        self.shutdown.spawn_on(&self.home, monitor);
        Address { current }
    }

    async fn monitor(
        self,
        publication: Box<dyn Publication>,
        child: Arc<Child>,
        fault_injector: FaultInjector,
    ) {
        let mut spent = VecDeque::new();
        let mut backoff = self.new_backoff();
        while publication.abandoned().now_or_never().is_none() {
            let (progress, running) = (Arc::clone(&child.progress), self.running.token());
            let (incarnation, exit) = Incarnation::new(progress, fault_injector, running);
            let (watched, unwatched) = oneshot::channel::<()>();
            publication.start(incarnation, unwatched);
            child.report.lock().state = ChildState::Up;
            let started_at = self.clock.now();
            let reason = {
                // Its drop ends the actor: one whose stalled call ends later must not run beside
                // its successor, and none runs on after the shutdown has begun.
                let _watched = watched;
                tokio::select! {
                    exit = exit => exit.unwrap_or(ExitReason::Stopped),
                    () = self.stalled(&child.progress) => ExitReason::Stalled,
                    () = publication.abandoned() => break,
                }
            };
            publication.withdraw();
            let now = self.clock.now();
            if now.duration_since(started_at)
                > Duration::from_millis(self.settings.restart_window_ms)
            {
                backoff = self.new_backoff();
            }
            let allowed = self.spend(&mut spent, now);
            child.record_exit(&reason, allowed);
            if !allowed {
                let name = child.report.lock().name.clone();
                self.give_up(&name, &reason);
                return;
            }
            tokio::time::sleep(backoff.next_wait(fastrand::f64())).await;
        }
        self.children.lock().retain(|other| !Arc::ptr_eq(other, &child));
        let last = child.report.lock().clone();
        if last.restarts > 0 {
            self.ended.lock().push(last);
        }
    }

    /// Returns when work of the child has made no progress for `stalled_after_ms`.
    async fn stalled(&self, progress: &Progress) {
        let limit = Duration::from_millis(self.settings.stalled_after_ms);
        let interval = Duration::from_millis(self.settings.heartbeat_ms.max(1));
        let mut seen: HashMap<u64, (u64, Instant)> = HashMap::new();
        loop {
            tokio::time::sleep(interval).await;
            let now = self.clock.now();
            let since = |no, answers| match seen.get(&no) {
                Some((before, since)) if *before == answers => *since,
                _ => now,
            };
            let open = progress.open().into_iter();
            seen = open.map(|(no, answers)| (no, (answers, since(no, answers)))).collect();
            if seen.values().any(|(_, since)| now.duration_since(*since) >= limit) {
                return;
            }
        }
    }

    fn new_backoff(&self) -> Backoff {
        Backoff::new(self.settings.backoff_min_ms, self.settings.backoff_max_ms)
    }

    /// Adds a restart at `now` to `spent`, the restarts of the sliding window. Returns whether the
    /// budget allows it.
    fn spend(&self, spent: &mut VecDeque<Instant>, now: Instant) -> bool {
        let window = Duration::from_millis(self.settings.restart_window_ms);
        while spent.front().is_some_and(|then| now.duration_since(*then) > window) {
            spent.pop_front();
        }
        spent.push_back(now);
        spent.len() <= self.settings.restarts_max as usize
    }

    fn give_up(&self, name: &str, reason: &ExitReason) {
        let down = ComponentDown {
            name: name.to_owned(),
            restarts_max: self.settings.restarts_max,
            window_ms: self.settings.restart_window_ms,
            last_exit: reason.to_string(),
        };
        tracing::error!(actor.name = name, %reason, "restart budget exhausted, the process exits");
        self.down.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(down);
            is_first
        });
    }

    /// The status of every child, in the order of their start.
    pub fn report(&self) -> Vec<ChildReport> {
        let children = self.children.lock();
        let report = |child: &Arc<Child>| ChildReport {
            steps: child.progress.steps(),
            ..child.report.lock().clone()
        };
        children.iter().map(report).collect()
    }

    /// The reports that count restarts: also of children that have ended.
    pub fn restarts(&self) -> Vec<ChildReport> {
        let mut reports = self.report();
        reports.extend(self.ended.lock().iter().cloned());
        reports
    }

    /// Waits until no actor runs. The shutdown must have begun.
    pub async fn ended(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Whether every child is up.
    pub fn all_up(&self) -> bool {
        self.children.lock().iter().all(|child| child.report.lock().state == ChildState::Up)
    }

    /// Waits until a component has exhausted its restart budget.
    pub async fn component_down(&self) -> ComponentDown {
        let mut down = self.down.subscribe();
        let found = down.wait_for(Option::is_some).await.ok().and_then(|down| down.clone());
        let Some(down) = found else { return std::future::pending().await };
        down
    }
}
