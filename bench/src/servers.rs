//! The private servers of the bench, in the directory that its flags name.

use std::ops::Deref;

use anyhow::Context;
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
pub(crate) const APPEND_ONLY: &[&str] = &["appendonly yes"];

/// A redis-server.
pub(crate) struct RedisServer(Server);

impl Deref for RedisServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl RedisServer {
    /// Starts an empty server without snapshots.
    pub(crate) fn start(harness: &Harness<'_>, lines: &[&str]) -> anyhow::Result<Self> {
        testkit::redis::start(Role::Server, &harness.args.parent(), lines).map(Self)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    pub(crate) fn connect(&self) -> anyhow::Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }

    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.connect()?)?)
    }

    pub(crate) fn used_memory(&self) -> anyhow::Result<f64> {
        let info = redis::cmd("INFO").arg("memory").query::<InfoDict>(&mut self.connect()?)?;
        info.get("used_memory").context("INFO has no used_memory")
    }
}

/// Starts a MariaDB.
pub(crate) fn maria(harness: &Harness<'_>) -> anyhow::Result<Server> {
    mariadb::start(&harness.args.parent(), harness.scratch.path(), &MARIA)
}

/// Creates another empty database and returns its URL.
pub(crate) async fn new_database(maria: &Server) -> anyhow::Result<String> {
    let (name, statements) = mariadb::new_database();
    let root = mariadb::url("root", maria.addr(), "floodgate");
    AsyncMysqlConnection::establish(&root).await?.batch_execute(&statements).await?;
    Ok(mariadb::url("floodgate", maria.addr(), &name))
}

/// A server of tier `gate` with the servers that it needs.
pub(crate) struct GateTier {
    // Dropped first.
    pub(crate) product: Product,
    _redis: RedisServer,
    _maria: Server,
}

impl GateTier {
    /// Redis keeps an append-only file (everysec).
    pub(crate) async fn start(harness: &Harness<'_>) -> anyhow::Result<Self> {
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
pub(crate) fn rabbit(harness: &Harness<'_>) -> anyhow::Result<Server> {
    rabbitmq::start(&harness.args.parent(), harness.scratch.path(), "", &[])
}
