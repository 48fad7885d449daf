//! What the sentinels say.

use futures_util::future::join_all;

use super::{Line, Trouble};
use crate::redis_link::LinkOptions;
use crate::redis_link::url::Node;

/// One sentinel.
#[derive(Debug)]
pub struct Sentinel {
    /// Where it is.
    pub node: Node,
    /// What it told.
    pub seen: Result<Watch, Trouble>,
}

/// What a sentinel says of a master.
#[derive(Debug)]
pub struct Watch {
    /// Where the master is; `None`: it watches none of that name.
    pub master: Option<Node>,
    /// Whether enough sentinels reach each other to replace it; or what it says instead.
    pub quorum: Result<(), Trouble>,
}

pub(super) async fn look(options: &LinkOptions, nodes: &[Node], master: &str) -> Vec<Sentinel> {
    join_all(nodes.iter().map(|node| async move {
        Sentinel { node: node.clone(), seen: ask(options, node, master).await }
    }))
    .await
}

/// Every server that a sentinel names as the master.
pub(super) fn masters(sentinels: &[Sentinel]) -> Vec<Node> {
    let named = |sentinel: &Sentinel| sentinel.seen.as_ref().ok()?.master.clone();
    let mut masters: Vec<Node> = sentinels.iter().filter_map(named).collect();
    masters.sort_unstable();
    masters.dedup();
    masters
}

async fn ask(options: &LinkOptions, node: &Node, master: &str) -> Result<Watch, Trouble> {
    let credentials = options.url.credentials.as_ref();
    let mut line = match Line::open(options, node, None, 0).await {
        // It asks who we are.
        Err(Trouble::Refused { .. }) if credentials.is_some() => {
            Line::open(options, node, credentials, 0).await?
        }
        opened => opened?,
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let address: Option<(String, u16)> = match line.ask(&command).await {
        Err(Trouble::Refused { code, .. }) if code == "NOAUTH" && credentials.is_some() => {
            line = Line::open(options, node, credentials, 0).await?;
            line.ask(&command).await?
        }
        answer => answer?,
    };
    let quorum = line.ask::<String>(redis::cmd("SENTINEL").arg("CKQUORUM").arg(master)).await;
    let master = address.map(|(host, port)| Node { host, port });
    Ok(Watch { master, quorum: quorum.map(drop) })
}
