//! One buying story, told on every tier over real HTTP.

mod crowd;
mod ids;
mod restart;
mod roles;
mod story;
mod two_processes;
