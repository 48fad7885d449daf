//! What the sentinels say.

use futures_util::future::join_all;

use super::{ProbeConnection, RedisHealthError};
use crate::redis::transport::ConnectionOptions;
use crate::redis::transport::url::ServerAddress;

/// One sentinel.
#[derive(Debug)]
pub struct Sentinel {
    /// Where it is.
    pub node: ServerAddress,
    /// What it told.
    pub seen: Result<SentinelView, RedisHealthError>,
}

/// What a sentinel says of a master.
#[derive(Debug)]
pub struct SentinelView {
    /// Where the master is; `None`: it watches none of that name.
    pub master: Option<ServerAddress>,
    /// Whether enough sentinels reach each other to replace it; or what it says instead.
    pub quorum: Result<(), RedisHealthError>,
}

pub(super) async fn look(
    options: &ConnectionOptions,
    nodes: &[ServerAddress],
    master: &str,
) -> Vec<Sentinel> {
    join_all(nodes.iter().map(|node| async move {
        Sentinel { node: node.clone(), seen: ask(options, node, master).await }
    }))
    .await
}

/// Every server that a sentinel names as the master.
pub(super) fn masters(sentinels: &[Sentinel]) -> Vec<ServerAddress> {
    let named = |sentinel: &Sentinel| sentinel.seen.as_ref().ok()?.master.clone();
    let mut masters: Vec<ServerAddress> = sentinels.iter().filter_map(named).collect();
    masters.sort_unstable();
    masters.dedup();
    masters
}

async fn ask(
    options: &ConnectionOptions,
    node: &ServerAddress,
    master: &str,
) -> Result<SentinelView, RedisHealthError> {
    let credentials = options.url.credentials.as_ref();
    let mut line = match ProbeConnection::open(options, node, None, 0).await {
        // It asks who we are.
        Err(RedisHealthError::Refused { .. }) if credentials.is_some() => {
            ProbeConnection::open(options, node, credentials, 0).await?
        }
        opened => opened?,
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let address: Option<(String, u16)> = match line.ask(&command).await {
        Err(RedisHealthError::Refused { code, .. })
            if code == "NOAUTH" && credentials.is_some() =>
        {
            line = ProbeConnection::open(options, node, credentials, 0).await?;
            line.ask(&command).await?
        }
        answer => answer?,
    };
    let quorum = line.ask::<String>(redis::cmd("SENTINEL").arg("CKQUORUM").arg(master)).await;
    let master = address.map(|(host, port)| ServerAddress { host, port });
    Ok(SentinelView { master, quorum: quorum.map(drop) })
}
