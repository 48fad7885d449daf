//! The interface: what buyers and operators ask over HTTP.
//!
//! | file | holds |
//! |---|---|
//! | `server` | the two listeners |
//! | `routes` | every route, who may use it, how it may refuse |
//! | `state` | what handlers reach |
//! | `buyers/` | the calls of buyers |
//! | `operators/` | the calls of operators and probes |
//! | `middleware/` | what every route has in common |
//! | `page` | a part of a long list, and where the next begins |
//! | `openapi` | the description for programs, and its page |

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
