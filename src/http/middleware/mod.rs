//! What the routes of both listeners share: bodies, problems, trace context, log and metrics.

pub(super) mod body;
pub(super) mod problem;
pub(super) mod trace_context;
pub(super) mod watch;
