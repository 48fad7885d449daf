//! Reads the address of the master from the sentinels.

use redis::{RedisError, Value};

use super::ConnectionOptions;
use super::connect::{error_message, open};
use super::quorum_read::read_newest;
use super::url::ServerAddress;

/// The master of this name. Partitioned sentinels may be outdated, so the answer with the highest
/// `config-epoch` counts. Whether that server is a master is checked on connect.
pub(super) async fn find_master(
    options: &ConnectionOptions,
    sentinels: &[ServerAddress],
    master: &str,
) -> Result<ServerAddress, String> {
    let found =
        read_newest(options, sentinels, |sentinel| query_sentinel(options, sentinel, master)).await;
    found.map_err(|reasons| format!("no sentinel tells where master {master} is: {reasons}"))
}

async fn query_sentinel(
    options: &ConnectionOptions,
    sentinel: ServerAddress,
    master: &str,
) -> Result<(u64, ServerAddress), String> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("MASTER").arg(master);
    let query = async |credentials| -> Result<Value, RedisError> {
        let mut connection = open(options, &sentinel, credentials, 0, || {}).await?;
        connection.send_packed_command(&command).await?.extract_error()
    };
    // Most sentinels have no password and reject one.
    let answer = match query(None).await {
        Err(error) if error_message(&error).contains("NOAUTH") => {
            query(options.url.credentials.as_ref()).await
        }
        answer => answer,
    };
    parse_master(answer.map_err(|error| error_message(&error))?)
}

/// Parses the answer to `SENTINEL MASTER`.
fn parse_master(answer: Value) -> Result<(u64, ServerAddress), String> {
    let unreadable = |answer: Value| format!("it answered {answer:?}");
    let fields = answer.into_map_iter().map_err(unreadable)?;
    let (mut host, mut port, mut epoch) = (None, None, None);
    for (name, value) in fields {
        let text = |value| redis::from_redis_value::<String>(value).ok();
        match text(name).as_deref() {
            Some("ip") => host = text(value),
            Some("port") => port = text(value).and_then(|port| port.parse().ok()),
            Some("config-epoch") => epoch = text(value).and_then(|epoch| epoch.parse().ok()),
            _ => {}
        }
    }
    match (host, port, epoch) {
        (Some(host), Some(port), Some(epoch)) => Ok((epoch, ServerAddress { host, port })),
        _ => Err("its answer lacks ip, port or config-epoch".to_owned()),
    }
}
