//! Proves that the audit detects violations: for each invariant a test disables one guard, and the
//! audit must report that invariant.

mod guards;
