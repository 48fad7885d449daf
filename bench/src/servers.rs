//! The private servers of the bench, in the directory that its flags name.

use anyhow::{Context, Result};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use testkit::redis::Role;
use testkit::{PrivateServer, mariadb, rabbitmq};

use crate::harness::{Harness, Product};

/// Buffer pool and log fit the bench. Each commit waits for the disk.
const MARIA: [&str; 3] = [
    "--innodb-buffer-pool-size=512M",
    "--innodb-log-file-size=512M",
    "--innodb-flush-log-at-trx-commit=1",
];
/// The default is to sync each second.
const APPEND_ONLY: &[&str] = &["appendonly yes"];

/// Starts an empty Redis without snapshots, with further lines of its configuration.
pub fn redis(harness: &Harness, lines: &[&str]) -> Result<PrivateServer> {
    testkit::redis::start(Role::Server, &harness.args.parent(), lines)
}

pub fn redis_url(redis: &PrivateServer) -> String {
    format!("redis://{}", redis.addr())
}

pub fn connect(redis: &PrivateServer) -> Result<redis::Connection> {
    Ok(redis::Client::open(redis_url(redis))?.get_connection()?)
}

pub fn clear(redis: &PrivateServer) -> Result<()> {
    Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut connect(redis)?)?)
}

pub fn maria(harness: &Harness) -> Result<PrivateServer> {
    mariadb::start(&harness.args.parent(), harness.scratch.path(), &MARIA)
}

/// A RabbitMQ with default settings.
pub fn rabbit(harness: &Harness) -> Result<PrivateServer> {
    rabbitmq::start(&harness.args.parent(), harness.scratch.path(), "", &[])
}

/// Creates another empty database and returns the setting that makes it the ledger.
pub async fn new_ledger(maria: &PrivateServer) -> Result<String> {
    let (name, statements) = mariadb::new_database();
    let root = mariadb::url("root", maria.addr(), "floodgate");
    AsyncMysqlConnection::establish(&root).await?.batch_execute(&statements).await?;
    Ok(format!("ledger.url={}", mariadb::url("floodgate", maria.addr(), &name)))
}

/// Empty servers of tier `pipeline`, or without a broker of tier `gate`; several installations can
/// share them.
pub struct Servers {
    pub redis: PrivateServer,
    pub maria: PrivateServer,
    rabbit: Option<PrivateServer>,
}

impl Servers {
    pub fn gate(harness: &Harness) -> Result<Self> {
        Ok(Self { redis: redis(harness, APPEND_ONLY)?, maria: maria(harness)?, rabbit: None })
    }

    pub fn pipeline(harness: &Harness) -> Result<Self> {
        let gate = Self::gate(harness)?;
        Ok(Self { rabbit: Some(rabbit(harness)?), ..gate })
    }

    pub fn rabbit(&self) -> Result<&PrivateServer> {
        self.rabbit.as_ref().context("tier `gate` has no broker")
    }

    /// The settings of an installation with a ledger of its own.
    pub async fn settings(&self, namespace: &str, more: &[&str]) -> Result<Vec<String>> {
        let mut set = vec![
            format!("namespace={namespace}"),
            "redis.durability=aof".to_owned(),
            format!("redis.url={}", redis_url(&self.redis)),
            new_ledger(&self.maria).await?,
        ];
        if let Some(rabbit) = &self.rabbit {
            set.push("tier=pipeline".to_owned());
            set.push(format!("amqp.url={}", rabbitmq::url(rabbit.addr())));
        } else {
            set.push("tier=gate".to_owned());
        }
        set.extend(more.iter().map(|&setting| setting.to_owned()));
        Ok(set)
    }

    /// One process with every role, in its own installation.
    pub async fn product(
        &self,
        harness: &Harness,
        namespace: &str,
        more: &[&str],
    ) -> Result<Product> {
        let mut product = harness.product(&self.settings(namespace, more).await?).await?;
        product.backends.push(("redis", self.redis.id()));
        product.backends.extend(self.rabbit.iter().map(|rabbit| ("rabbitmq", rabbit.id())));
        product.backends.push(("mariadb", self.maria.id()));
        Ok(product)
    }
}
