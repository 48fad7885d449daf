//! What the supervisor reports of its children.

use serde::Serialize;

/// State of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildState {
    Up,
    /// The actor exited and is started again after a backoff.
    Restarting,
    /// The restart budget is exhausted.
    Down,
}

/// Status of one child.
#[derive(Debug, Clone, Serialize)]
pub struct ChildReport {
    pub name: String,
    pub kind: &'static str,
    pub state: ChildState,
    pub restarts: u64,
    pub panics: u64,
    pub stalls: u64,
    /// Steps completed by all incarnations.
    pub steps: u64,
    /// Exit reason of the last incarnation.
    pub last_exit: Option<String>,
}
