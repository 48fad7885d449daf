//! The HTTP interface for buyers, operators and probes.

mod admission;
mod connection;
mod openapi;
mod routes;
mod secret_reload;
pub mod server;
mod signing;
pub mod state;

/// Buyers' routes, on the public listener.
pub mod buyers {
    pub(super) mod auth;
    pub(super) mod buy;
    pub(super) mod demo_page;
    pub(super) mod events;
    pub(super) mod jwt;
    mod jwt_crypto;
    pub(super) mod mine;
    pub(super) mod orders;
    pub(super) mod payments;
    mod poll_interval;
    pub mod request_ids;
    pub(super) mod requests;
    pub(super) mod sales;
    pub mod storefront;
    pub(super) mod tickets;
    pub(super) mod views;
}

/// Shared by the routes of both listeners: request bodies, problem documents, trace context,
/// metrics.
pub(crate) mod middleware {
    pub(super) mod body;
    pub(crate) mod embedded;
    pub(super) mod problem;
    mod problem_code;
    pub(super) mod trace_context;
    pub(super) mod watch;
}

/// Routes of operators and probes, on the internal listener.
mod operators {
    pub(super) mod audits;
    pub(super) mod auth;
    pub(super) mod bulk;
    mod dead_letter_filter;
    mod dead_letter_views;
    pub(super) mod dead_letters;
    pub(super) mod health;
    pub(super) mod ops;
    pub(super) mod order_events;
    pub(super) mod page;
    pub(super) mod payments;
    pub(super) mod retention;
    pub(super) mod sale_changes;
    mod sale_views;
    pub(super) mod sales;
    pub(super) mod series;
    pub(super) mod trace;
    mod trace_stages;
    pub(super) mod verbs;
}

pub use middleware::problem::ProblemCode;
pub use routes::{INTERNAL, PUBLIC, RouteAccess, RouteEntry};
