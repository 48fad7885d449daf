//! Servers of other people's making, started for one test: private ports, private folders, gone
//! with the test.

pub mod child;
pub mod cluster;
pub mod mariadb;
pub mod ports;
pub mod rabbitmq;
pub mod redis;
pub mod redis_users;
pub mod sentinel;
