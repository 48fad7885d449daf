//! Private Redis, MariaDB and RabbitMQ servers for the tests and the bench: child processes with
//! ports and folders of their own. They end with the process that started them.

mod data;
pub mod mariadb;
mod port;
mod process;
pub mod rabbitmq;
pub mod redis;
mod server;

pub use data::{Folder, folder};
pub use port::Port;
pub use process::{Process, command};
pub use rustix::process::Signal;
pub use server::{MissingProgram, PrivateServer, find_program};
