//! Third-party servers for one test, with private ports and folders; they end with the test.

pub mod child;
pub mod cluster;
pub mod mariadb;
pub mod ports;
pub mod rabbitmq;
pub mod redis;
pub mod redis_users;
pub mod sentinel;
