//! Routes of operators and probes, on the internal listener.

pub(super) mod auth;
pub(super) mod dead_letters;
pub(super) mod health;
pub(super) mod ops;
pub(super) mod sales;
pub(super) mod trace;
