//! The HTTP interface for buyers, operators and probes.

pub mod buyers;
mod middleware;
mod openapi;
mod operators;
mod routes;
pub mod server;
pub mod state;

pub use middleware::problem::ProblemCode;
pub use routes::{INTERNAL, PUBLIC, RouteAccess, RouteEntry};
