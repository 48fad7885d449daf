//! Flow step 12/12: any actor -> a new one.
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

use actix::{Addr, Context, Handler};
use actix_rt::ArbiterHandle;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::actors::supervisor::supervised::{Address, ExitReason, Incarnation, Supervised};
use crate::config::SupervisorSettings;
use crate::messages::Stop;
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::progress::Progress;
use crate::runtime::progress::{ChildReport, ChildState};
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

#[derive(Debug)]
struct Child {
    report: ChildReport,
    progress: Arc<Progress>,
}

/// Starts children and restarts them when they exit or stall. Clones share the children.
#[derive(Debug, Clone)]
pub struct Supervisor {
    settings: SupervisorSettings,
    clock: SharedClock,
    shutdown: Shutdown,
    home: ArbiterHandle,
    children: Arc<Mutex<Vec<Child>>>,
    down: watch::Sender<Option<ComponentDown>>,
}

impl Supervisor {
    /// A supervisor without children; its monitor tasks run on the thread of `home`.
    #[must_use]
    pub fn new(
        settings: SupervisorSettings,
        clock: SharedClock,
        shutdown: Shutdown,
        home: ArbiterHandle,
    ) -> Self {
        let (down, _) = watch::channel(None);
        Self { settings, clock, shutdown, home, children: Arc::default(), down }
    }

    /// Starts a child and restarts it until the shutdown begins.
    pub fn start<A>(&self, spec: ChildSpec<A>) -> Address<A>
    where
        A: Supervised + Handler<Stop>,
    {
        let progress = Arc::new(Progress::default());
        let index = {
            let mut children = self.children.lock();
            children.push(Child {
                report: ChildReport {
                    name: spec.name.clone(),
                    kind: spec.kind,
                    state: ChildState::Restarting,
                    restarts: 0,
                    panics: 0,
                    stalls: 0,
                    steps: 0,
                    last_exit: None,
                },
                progress: Arc::clone(&progress),
            });
            children.len() - 1
        };
        let (address, current) = watch::channel(None);
        let supervisor = self.clone();
        self.shutdown.spawn_on(&self.home, async move {
            supervisor.monitor(spec, index, progress, address).await;
        });
        Address::new(current)
    }

    async fn monitor<A>(
        self,
        spec: ChildSpec<A>,
        index: usize,
        progress: Arc<Progress>,
        address: watch::Sender<Option<Addr<A>>>,
    ) where
        A: Supervised + Handler<Stop>,
    {
        let mut budget = Budget::new(&self.settings);
        let mut backoff = self.new_backoff();
        loop {
            let (addr, exit) = Self::spawn(&spec, &progress);
            address.send_replace(Some(addr.clone()));
            self.update(index, |report| report.state = ChildState::Up);
            let started_at = self.clock.now();
            let reason = tokio::select! {
                exit = exit => exit.unwrap_or(ExitReason::Stopped),
                () = self.stalled(&progress) => ExitReason::Stalled,
            };
            address.send_replace(None);
            if reason == ExitReason::Stalled {
                // If the stalled call ends later, the actor must not run beside its successor.
                drop(addr.try_send(Stop));
            }
            let now = self.clock.now();
            if now.duration_since(started_at)
                > Duration::from_millis(self.settings.restart_window_ms)
            {
                backoff = self.new_backoff();
            }
            let allowed = budget.spend(now);
            self.record_exit(index, &reason, allowed);
            if !allowed {
                self.give_up(&spec.name, &reason);
                return;
            }
            tokio::time::sleep(backoff.next_wait(fastrand::f64())).await;
        }
    }

    fn spawn<A>(
        spec: &ChildSpec<A>,
        progress: &Arc<Progress>,
    ) -> (Addr<A>, oneshot::Receiver<ExitReason>)
    where
        A: Supervised,
    {
        let (incarnation, exit) = Incarnation::new(Arc::clone(progress), spec.fault_injector);
        let factory = Arc::clone(&spec.factory);
        let mailbox = spec.mailbox;
        let addr = A::start_in_arbiter(&spec.arbiter, move |ctx: &mut Context<A>| {
            ctx.set_mailbox_capacity(mailbox);
            factory(incarnation)
        });
        (addr, exit)
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

    fn update(&self, index: usize, change: impl FnOnce(&mut ChildReport)) {
        if let Some(child) = self.children.lock().get_mut(index) {
            change(&mut child.report);
        }
    }

    fn record_exit(&self, index: usize, reason: &ExitReason, restarts: bool) {
        self.update(index, |report| {
            report.state = if restarts { ChildState::Restarting } else { ChildState::Down };
            report.restarts += u64::from(restarts);
            report.panics += u64::from(matches!(reason, ExitReason::Panicked(_)));
            report.stalls += u64::from(*reason == ExitReason::Stalled);
            report.last_exit = Some(reason.to_string());
            tracing::warn!(
                actor.name = report.name,
                actor.restarts = report.restarts,
                %reason,
                "actor ended"
            );
        });
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
            if is_first {
                *first = Some(down);
            }
            is_first
        });
    }

    /// The status of every child, in the order of their start.
    #[must_use]
    pub fn report(&self) -> Vec<ChildReport> {
        let children = self.children.lock();
        children
            .iter()
            .map(|child| ChildReport { steps: child.progress.steps(), ..child.report.clone() })
            .collect()
    }

    /// Whether every child is up.
    #[must_use]
    pub fn all_up(&self) -> bool {
        self.children.lock().iter().all(|child| child.report.state == ChildState::Up)
    }

    /// Waits until a component has exhausted its restart budget.
    pub async fn component_down(&self) -> ComponentDown {
        let mut down = self.down.subscribe();
        loop {
            if let Some(down) = down.borrow_and_update().clone() {
                return down;
            }
            if down.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Restarts allowed in a sliding window.
struct Budget {
    spent: VecDeque<Instant>,
    restarts_max: usize,
    window: Duration,
}

impl Budget {
    fn new(settings: &SupervisorSettings) -> Self {
        Self {
            spent: VecDeque::new(),
            restarts_max: settings.restarts_max as usize,
            window: Duration::from_millis(settings.restart_window_ms),
        }
    }

    /// Counts a restart at `now` and returns whether the budget allows it.
    fn spend(&mut self, now: Instant) -> bool {
        while self.spent.front().is_some_and(|then| now.duration_since(*then) > self.window) {
            self.spent.pop_front();
        }
        self.spent.push_back(now);
        self.spent.len() <= self.restarts_max
    }
}
