//! Operator services: sales and bucket loading, catalog, dead letters, audit, funnel, rebuild.

pub mod audit;
pub mod catalog;
pub mod dead_letters;
pub mod rebuild;
pub mod sales;
