//! What buyers ask, on the public listener.
//!
//! | file | holds |
//! |---|---|
//! | `buy` | the purchase |
//! | `request_ids`, `requests`, `orders`, `sales` | the other calls |
//! | `auth`, `jwt`, `request_tokens` | whose request it is |
//! | `views` | what the answers look like |
//! | `meter` | counters of the purchase |

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
