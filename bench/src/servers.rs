//! The private servers of the bench, in the directory that its flags name.

use std::ops::Deref;

use anyhow::{Context, Result};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use redis::InfoDict;
use testkit::redis::Role;
use testkit::{Server, mariadb, rabbitmq};

use crate::harness::{Harness, Product};

/// Buffer pool and log fit the bench. Each commit waits for the disk.
const MARIA: [&str; 3] = [
    "--innodb-buffer-pool-size=512M",
    "--innodb-log-file-size=512M",
    "--innodb-flush-log-at-trx-commit=1",
];
pub const APPEND_ONLY: &[&str] = &["appendonly yes"];

/// A redis-server.
pub struct RedisServer(Server);

impl Deref for RedisServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl RedisServer {
    /// Starts an empty server without snapshots.
    pub fn start(harness: &Harness, lines: &[&str]) -> Result<Self> {
        testkit::redis::start(Role::Server, &harness.args.parent(), lines).map(Self)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    pub fn connect(&self) -> Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }

    pub fn clear(&self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.connect()?)?)
    }

    pub fn used_memory(&self) -> Result<f64> {
        let info = redis::cmd("INFO").arg("memory").query::<InfoDict>(&mut self.connect()?)?;
        info.get("used_memory").context("INFO has no used_memory")
    }
}

/// Starts a MariaDB.
pub fn maria(harness: &Harness) -> Result<Server> {
    mariadb::start(&harness.args.parent(), harness.scratch.path(), &MARIA)
}

/// Creates another empty database and returns its URL.
pub async fn new_database(maria: &Server) -> Result<String> {
    let (name, statements) = mariadb::new_database();
    let root = mariadb::url("root", maria.addr(), "floodgate");
    AsyncMysqlConnection::establish(&root).await?.batch_execute(&statements).await?;
    Ok(mariadb::url("floodgate", maria.addr(), &name))
}

/// A server of tier `gate` with the servers that it needs.
pub struct GateTier {
    // Dropped first.
    pub product: Product,
    _redis: RedisServer,
    _maria: Server,
}

impl GateTier {
    /// Redis keeps an append-only file (everysec).
    pub async fn start(harness: &Harness) -> Result<Self> {
        let (redis, maria) = (RedisServer::start(harness, APPEND_ONLY)?, maria(harness)?);
        let settings = [
            "tier=gate".to_owned(),
            "redis.durability=aof".to_owned(),
            format!("redis.url={}", redis.url()),
            format!("ledger.url={}", mariadb::url("floodgate", maria.addr(), "floodgate")),
        ];
        let mut product = harness.product(&settings).await?;
        product.backends = vec![("redis", redis.id()), ("mariadb", maria.id())];
        Ok(Self { product, _redis: redis, _maria: maria })
    }
}

/// Starts a RabbitMQ with default settings.
pub fn rabbit(harness: &Harness) -> Result<Server> {
    rabbitmq::start(&harness.args.parent(), harness.scratch.path(), "", &[])
}
