//! Random operations on the books, the scripts and the ledgers, compared with a reference model.

mod conflict_resolution;
mod gate_book;
mod gate_lua;
mod order_life;
mod sql_ledgers;
