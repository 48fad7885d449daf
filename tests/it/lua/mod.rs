//! The scripts of the Redis gate on a real, private redis-server.

mod batches;
mod loading;
mod memory;
mod moving;
mod outboxes;
mod queueing;
mod refusing;
mod repeating;
mod reserving;
pub mod rig;
mod scenarios;
mod speed;
mod turning;
