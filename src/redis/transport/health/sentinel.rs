//! The sentinels' view of the master, for health checks.

use futures_util::future::join_all;

use super::{ProbeConnection, RedisHealthError};
use crate::redis::transport::ConnectionOptions;
use crate::redis::transport::url::ServerAddress;

/// Facts about one sentinel.
#[derive(Debug)]
pub struct Sentinel {
    pub node: ServerAddress,
    pub seen: Result<SentinelView, RedisHealthError>,
}

/// A sentinel's view of one master.
#[derive(Debug)]
pub struct SentinelView {
    /// Address of the master; `None`: the sentinel monitors none of that name.
    pub master: Option<ServerAddress>,
    /// Whether enough sentinels are reachable for a fail-over, or the error of `CKQUORUM`.
    pub quorum: Result<(), RedisHealthError>,
}

pub(super) async fn read(
    options: &ConnectionOptions,
    nodes: &[ServerAddress],
    master: &str,
) -> Vec<Sentinel> {
    join_all(nodes.iter().map(|node| async move {
        Sentinel { node: node.clone(), seen: query_sentinel(options, node, master).await }
    }))
    .await
}

/// Every server that at least one sentinel reports as the master.
pub(super) fn masters(sentinels: &[Sentinel]) -> Vec<ServerAddress> {
    let named = |sentinel: &Sentinel| sentinel.seen.as_ref().ok()?.master.clone();
    let mut masters: Vec<ServerAddress> = sentinels.iter().filter_map(named).collect();
    masters.sort_unstable();
    masters.dedup();
    masters
}

async fn query_sentinel(
    options: &ConnectionOptions,
    node: &ServerAddress,
    master: &str,
) -> Result<SentinelView, RedisHealthError> {
    let credentials = options.url.credentials.as_ref();
    let mut probe = match ProbeConnection::open(options, node, None, 0).await {
        // The sentinel requires a password.
        Err(RedisHealthError::Refused { .. }) if credentials.is_some() => {
            ProbeConnection::open(options, node, credentials, 0).await?
        }
        opened => opened?,
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let address: Option<(String, u16)> = match probe.query(&command).await {
        Err(RedisHealthError::Refused { code, .. })
            if code == "NOAUTH" && credentials.is_some() =>
        {
            probe = ProbeConnection::open(options, node, credentials, 0).await?;
            probe.query(&command).await?
        }
        answer => answer?,
    };
    let quorum = probe.query::<String>(redis::cmd("SENTINEL").arg("CKQUORUM").arg(master)).await;
    let master = address.map(|(host, port)| ServerAddress { host, port });
    Ok(SentinelView { master, quorum: quorum.map(drop) })
}
