//! The same purchases on every tier over real HTTP.

mod crowd;
mod ids;
mod one_buyer;
mod order_life;
mod phases;
mod restart;
mod roles;
mod story;
mod two_processes;
