//! Shared by the routes of both listeners: request bodies, problem documents, trace context,
//! metrics.

pub(super) mod body;
pub(super) mod problem;
pub(super) mod trace_context;
pub(super) mod watch;
