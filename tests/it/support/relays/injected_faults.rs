//! Fault injection for one process: at a chosen edge of a chosen call the actor panics, the process
//! freezes, or the call fails.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// A call into outbox, broker or lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Announce,
    TakeOver,
    Claim,
    Publish,
    Acknowledge,
    Reclaim,
    Status,
    Hold,
}

/// The edge of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before the call takes effect.
    Before,
    /// After the call took effect, before its answer.
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// The calling actor panics.
    Panic,
    /// The process is suspended until [`InjectedFaults::thaw`].
    Freeze,
    /// The call fails as unavailable.
    Unavailable,
    /// The call fails with an unknown outcome.
    Unknown,
}

/// The faults of one process. Each armed fault fires once.
#[derive(Debug, Clone)]
pub struct InjectedFaults {
    armed: Arc<Mutex<Vec<(Call, When, InjectedFault)>>>,
    /// While set, one edge in five fails at random.
    random: Arc<Mutex<Option<fastrand::Rng>>>,
    frozen: Arc<watch::Sender<bool>>,
}

impl Default for InjectedFaults {
    fn default() -> Self {
        let frozen = Arc::new(watch::Sender::new(false));
        Self { armed: Arc::default(), random: Arc::default(), frozen }
    }
}

impl InjectedFaults {
    pub fn arm(&self, call: Call, when: When, fault: InjectedFault) {
        self.armed.lock().push((call, when, fault));
    }

    /// Whether every armed fault has fired.
    pub fn all_fired(&self) -> bool {
        self.armed.lock().is_empty()
    }

    /// Makes calls fail at random, until [`Self::calm`].
    pub fn disturb(&self, seed: u64) {
        *self.random.lock() = Some(fastrand::Rng::with_seed(seed));
    }

    pub fn calm(&self) {
        *self.random.lock() = None;
    }

    /// Whether a failed call takes effect later; at random.
    pub fn is_late(&self) -> bool {
        self.random.lock().as_mut().is_some_and(fastrand::Rng::bool)
    }

    fn random_fault(&self, when: When) -> Option<InjectedFault> {
        let mut random = self.random.lock();
        let random = random.as_mut()?;
        if random.u8(..5) > 0 {
            return None;
        }
        let is_unavailable = when == When::Before && random.bool();
        Some(if is_unavailable { InjectedFault::Unavailable } else { InjectedFault::Unknown })
    }

    /// Suspends every call of this process until [`Self::thaw`].
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub fn is_frozen(&self) -> bool {
        *self.frozen.borrow()
    }

    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// Runs at both edges of every call: waits while the process is frozen, then fires the fault
    /// armed for this edge.
    pub async fn apply(&self, call: Call, when: When) -> Option<InjectedFault> {
        self.wait_while_frozen().await;
        let fired = {
            let mut armed = self.armed.lock();
            let found = armed.iter().position(|(c, w, _)| (*c, *w) == (call, when));
            found.map(|at| armed.remove(at).2)
        };
        match fired.or_else(|| self.random_fault(when))? {
            InjectedFault::Panic => panic!("on purpose, {when:?} {call:?}"),
            InjectedFault::Freeze => {
                self.freeze();
                self.wait_while_frozen().await;
                None
            }
            other => Some(other),
        }
    }

    async fn wait_while_frozen(&self) {
        let mut frozen = self.frozen.subscribe();
        frozen.wait_for(|frozen| !frozen).await.unwrap();
    }
}
