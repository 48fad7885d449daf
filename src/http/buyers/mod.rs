//! Buyers' routes, on the public listener.

pub(super) mod auth;
pub(super) mod buy;
pub(super) mod jwt;
pub(super) mod meter;
pub(super) mod orders;
pub mod request_tokens;
pub(super) mod requests;
pub(super) mod sales;
pub(super) mod views;
