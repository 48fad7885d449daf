//! What can happen to one process between it and everything else: at a chosen edge of a chosen call
//! it dies, freezes, or hears no answer.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// A call of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Announce,
    TakeOver,
    Claim,
    Publish,
    Acknowledge,
    Reclaim,
    Standing,
    Hold,
}

/// Where in the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Nothing was done.
    Before,
    /// It was done, and nobody was told.
    After,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// The actor that called panics.
    Panic,
    /// Nothing moves until [`Mishaps::thaw`].
    Freeze,
    /// The store says that it cannot be asked.
    Unavailable,
    /// The store says nothing.
    Unknown,
}

/// The mishaps of one process. Each armed one happens once.
#[derive(Debug, Clone)]
pub struct Mishaps {
    armed: Arc<Mutex<Vec<(Call, When, Mishap)>>>,
    frozen: Arc<watch::Sender<bool>>,
}

impl Default for Mishaps {
    fn default() -> Self {
        Self { armed: Arc::default(), frozen: Arc::new(watch::Sender::new(false)) }
    }
}

impl Mishaps {
    pub fn arm(&self, call: Call, when: When, mishap: Mishap) {
        self.armed.lock().push((call, when, mishap));
    }

    /// Whether everything that was armed has happened.
    pub fn have_struck(&self) -> bool {
        self.armed.lock().is_empty()
    }

    /// From here on, nothing of this process moves: killed, or paused.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub fn is_frozen(&self) -> bool {
        *self.frozen.borrow()
    }

    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// Every call comes through here twice.
    pub async fn meet(&self, call: Call, when: When) -> Option<Mishap> {
        self.while_frozen().await;
        let struck = {
            let mut armed = self.armed.lock();
            let found = armed.iter().position(|(c, w, _)| (*c, *w) == (call, when));
            found.map(|at| armed.remove(at).2)
        };
        match struck? {
            Mishap::Panic => panic!("on purpose, {when:?} {call:?}"),
            Mishap::Freeze => {
                self.freeze();
                self.while_frozen().await;
                None
            }
            other => Some(other),
        }
    }

    async fn while_frozen(&self) {
        let mut frozen = self.frozen.subscribe();
        frozen.wait_for(|frozen| !frozen).await.unwrap();
    }
}
