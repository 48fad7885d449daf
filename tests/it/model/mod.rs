//! The reference model against everything that counts, over random operations.

mod gate_book;
mod gate_lua;
mod sql_ledgers;
