//! Flow step 12/12: any actor -> a new one.
//!
//! Each child has a watching task that owns its factory. The task hears the child's last word, or
//! sees that it has work and makes no progress; it builds a fresh actor after a backoff and
//! publishes its new address. A child that ends too often in a time window uses up its restart
//! budget: the component is down, and the process ends on purpose, so that whatever watches the
//! process can act.
//!
//! On death: the watching tasks run on the main thread and contain no work of their own.

pub mod supervised;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Addr, Context, Handler};
use actix_rt::ArbiterHandle;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{oneshot, watch};

use crate::actors::supervisor::supervised::{Address, ExitReason, Incarnation, Supervised};
use crate::config::SupervisorSettings;
use crate::messages::Stop;
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::progress::Progress;
use crate::runtime::shutdown::Shutdown;

/// How a child is made.
pub struct ChildSpec<A: Supervised> {
    /// Unique among the children.
    pub name: String,
    /// What it is; for metrics and drills.
    pub kind: &'static str,
    /// The thread it lives on.
    pub arbiter: ArbiterHandle,
    /// Room for messages: at least as many as there are permits to send any.
    pub mailbox: usize,
    /// Panics on purpose.
    pub drill: FaultInjector,
    /// Makes a fresh actor around its life.
    pub factory: Arc<dyn Fn(Incarnation) -> A + Send + Sync>,
}

/// Where a child stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildState {
    /// It works.
    Up,
    /// It ended and a new one is coming.
    Restarting,
    /// Its restart budget is used up.
    Down,
}

/// What is known of one child.
#[derive(Debug, Clone, Serialize)]
pub struct ChildReport {
    /// Unique among the children.
    pub name: String,
    /// What it is.
    pub kind: &'static str,
    /// Where it stands.
    pub state: ChildState,
    /// How often it was replaced.
    pub restarts: u64,
    /// How often a step panicked.
    pub panics: u64,
    /// How often it made no progress.
    pub stalls: u64,
    /// Steps completed by the present one and all before it.
    pub steps: u64,
    /// Why the last one ended.
    pub last_exit: Option<String>,
}

/// A component used up its restart budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} is down: it ended more than {restarts_max} times in {window_ms} ms, last: {last_exit}"
)]
pub struct ComponentDown {
    /// The child.
    pub name: String,
    /// The budget.
    pub restarts_max: u32,
    /// The window of the budget, milliseconds.
    pub window_ms: u64,
    /// Why it ended the last time.
    pub last_exit: String,
}

#[derive(Debug)]
struct Entry {
    report: ChildReport,
    progress: Arc<Progress>,
}

/// Keeps children alive.
#[derive(Debug, Clone)]
pub struct Supervisor {
    settings: SupervisorSettings,
    clock: SharedClock,
    shutdown: Shutdown,
    home: ArbiterHandle,
    children: Arc<Mutex<Vec<Entry>>>,
    down: watch::Sender<Option<ComponentDown>>,
}

impl Supervisor {
    /// A supervisor without children, whose watching tasks run on the thread of `home`.
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

    /// Starts a child and keeps it alive until the way down begins.
    pub fn start<A>(&self, spec: ChildSpec<A>) -> Address<A>
    where
        A: Supervised + Handler<Stop>,
    {
        let progress = Arc::new(Progress::default());
        let index = {
            let mut children = self.children.lock();
            children.push(Entry {
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
        let (publish, current) = watch::channel(None);
        let watcher = self.clone();
        self.shutdown.spawn_on(&self.home, async move {
            watcher.watch(spec, index, progress, publish).await;
        });
        Address::new(current)
    }

    async fn watch<A>(
        self,
        spec: ChildSpec<A>,
        index: usize,
        progress: Arc<Progress>,
        publish: watch::Sender<Option<Addr<A>>>,
    ) where
        A: Supervised + Handler<Stop>,
    {
        let mut budget = Budget::new(&self.settings);
        let mut backoff = self.new_backoff();
        loop {
            let (addr, heard) = Self::give_birth(&spec, &progress);
            publish.send_replace(Some(addr.clone()));
            self.note(index, |report| report.state = ChildState::Up);
            let born = self.clock.now();
            let reason = tokio::select! {
                heard = heard => heard.unwrap_or(ExitReason::Stopped),
                () = self.stalled(&progress) => ExitReason::Stalled,
            };
            publish.send_replace(None);
            if reason == ExitReason::Stalled {
                // It may be stuck in a call that never ends; it must not wake up as a second one.
                drop(addr.try_send(Stop));
            }
            let now = self.clock.now();
            if now.duration_since(born) > Duration::from_millis(self.settings.restart_window_ms) {
                backoff = self.new_backoff();
            }
            let allowed = budget.spend(now);
            self.note_exit(index, &reason, allowed);
            if !allowed {
                self.give_up(&spec.name, &reason);
                return;
            }
            tokio::time::sleep(backoff.next_wait(fastrand::f64())).await;
        }
    }

    fn give_birth<A>(
        spec: &ChildSpec<A>,
        progress: &Arc<Progress>,
    ) -> (Addr<A>, oneshot::Receiver<ExitReason>)
    where
        A: Supervised,
    {
        let (life, heard) = Incarnation::new(Arc::clone(progress), spec.drill);
        let factory = Arc::clone(&spec.factory);
        let mailbox = spec.mailbox;
        let addr = A::start_in_arbiter(&spec.arbiter, move |ctx: &mut Context<A>| {
            ctx.set_mailbox_capacity(mailbox);
            factory(life)
        });
        (addr, heard)
    }

    /// Ends when a piece of the child's work makes no progress for `stalled_after_ms`.
    async fn stalled(&self, progress: &Progress) {
        let limit = Duration::from_millis(self.settings.stalled_after_ms);
        let beat = Duration::from_millis(self.settings.heartbeat_ms.max(1));
        let mut seen: HashMap<u64, (u64, Instant)> = HashMap::new();
        loop {
            tokio::time::sleep(beat).await;
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

    fn note(&self, index: usize, change: impl FnOnce(&mut ChildReport)) {
        if let Some(entry) = self.children.lock().get_mut(index) {
            change(&mut entry.report);
        }
    }

    fn note_exit(&self, index: usize, reason: &ExitReason, restarts: bool) {
        self.note(index, |report| {
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
        tracing::error!(actor.name = name, %reason, "restart budget used up, the process will end");
        self.down.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                *first = Some(down);
            }
            is_first
        });
    }

    /// What is known of every child.
    #[must_use]
    pub fn report(&self) -> Vec<ChildReport> {
        let children = self.children.lock();
        children
            .iter()
            .map(|entry| ChildReport { steps: entry.progress.steps(), ..entry.report.clone() })
            .collect()
    }

    /// Whether every child works.
    #[must_use]
    pub fn all_up(&self) -> bool {
        self.children.lock().iter().all(|entry| entry.report.state == ChildState::Up)
    }

    /// Waits until a component has used up its restart budget.
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

    /// Whether one more restart is allowed at `now`.
    fn spend(&mut self, now: Instant) -> bool {
        while self.spent.front().is_some_and(|then| now.duration_since(*then) > self.window) {
            self.spent.pop_front();
        }
        self.spent.push_back(now);
        self.spent.len() <= self.restarts_max
    }
}
