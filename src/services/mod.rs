//! What operators do: sales and their loading, dead letters, audit, funnel, rebuild.

pub mod audit;
pub mod catalog;
pub mod dead_letters;
pub mod rebuild;
pub mod sales;
