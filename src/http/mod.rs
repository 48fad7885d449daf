//! The HTTP interface for buyers, operators and probes.
//!
//! | file | holds |
//! |---|---|
//! | `server` | the two listeners |
//! | `routes` | every route with its access and its refusals |
//! | `state` | dependencies of the handlers |
//! | `buyers/` | routes of buyers |
//! | `operators/` | routes of operators and probes |
//! | `middleware/` | shared by all routes |
//! | `page` | pagination of lists |
//! | `openapi` | the OpenAPI document and its page |

pub mod buyers;
mod middleware;
mod openapi;
mod operators;
mod page;
mod routes;
pub mod server;
pub mod state;

pub use middleware::problem::ProblemCode;
pub use routes::{INTERNAL, PUBLIC, RouteAccess, RouteEntry};
