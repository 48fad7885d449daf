//! Buyers' routes, on the public listener.
//!
//! | file | holds |
//! |---|---|
//! | `buy` | the purchase route |
//! | `request_ids`, `requests`, `orders`, `sales` | the other routes |
//! | `auth`, `jwt`, `request_tokens` | authentication of buyers and of request ids |
//! | `views` | JSON shapes of the answers |
//! | `meter` | metrics of the purchase route |

pub(super) mod auth;
pub(super) mod buy;
pub(super) mod jwt;
pub(super) mod meter;
pub(super) mod orders;
pub(super) mod request_ids;
pub mod request_tokens;
pub(super) mod requests;
pub(super) mod sales;
pub(super) mod views;
