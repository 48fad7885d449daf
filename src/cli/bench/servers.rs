//! The three servers behind a pipeline; several installations can share them.

use super::lab::Lab;
use super::private::{MariaServer, RedisServer};
use super::rabbit::RabbitServer;

/// All three, with nothing on them.
pub(super) struct Servers {
    pub(super) redis: RedisServer,
    pub(super) rabbit: RabbitServer,
    pub(super) maria: MariaServer,
}

impl Servers {
    pub(super) async fn start(lab: &Lab<'_>) -> anyhow::Result<Self> {
        let parent = lab.args.directory.as_deref();
        let redis = RedisServer::start(parent, &["--appendonly", "yes"]).await?;
        let maria = MariaServer::start(parent).await?;
        let rabbit = RabbitServer::start(parent).await?;
        Ok(Self { redis, rabbit, maria })
    }
}
