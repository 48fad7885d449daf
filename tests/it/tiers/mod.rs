//! One buying story, told on every tier over real HTTP.

mod crowd;
mod restart;
mod story;
