//! Tests of the Lua scripts on a private redis-server.

mod batches;
pub mod fenced_call;
pub mod harness;
mod hints;
mod loading;
mod memory;
mod moving;
mod outboxes;
mod phases;
mod queueing;
mod refusing;
mod repeating;
mod reserving;
mod scenarios;
mod texts;
