//! The interface: what buyers and operators ask over HTTP.
//!
//! | file | holds |
//! |---|---|
//! | `server` | the two listeners |
//! | `routes` | every route, who may use it, how it may refuse |
//! | `watch` | what all routes have in common, except the fast one |
//! | `state` | what handlers reach |
//! | `buy` | the purchase |
//! | `request_ids`, `requests`, `orders`, `sales` | the other calls of buyers |
//! | `admin_*`, `request_trace` | the calls of operators |
//! | `health` | the calls of probes |
//! | `auth`, `jwt`, `admin_auth` | who asks |
//! | `body`, `page`, `trace_context` | what comes with a request |
//! | `problem`, `views` | what goes out |
//! | `meter` | counters of the fast route |
//! | `openapi` | the description for programs, and its page |

mod admin_auth;
mod admin_dead_letters;
mod admin_ops;
mod admin_rebuild;
mod admin_sales;
mod auth;
mod body;
mod buy;
mod health;
mod jwt;
mod meter;
mod openapi;
mod orders;
mod page;
mod problem;
mod request_ids;
mod request_trace;
mod requests;
mod routes;
mod sales;
pub mod server;
pub mod state;
mod trace_context;
mod views;
mod watch;

pub use problem::Code;
pub use routes::{Access, Entry, INTERNAL, PUBLIC};
