//! Asking sentinels which server is the master.

use redis::{RedisError, Value};

use super::ConnectionOptions;
use super::connect::{open, said};
use super::url::ServerAddress;
use crate::redis::transport::quorum_read::survey;

/// The master of this name. Sentinels that are cut off tell old news: of those that answer, the one
/// that knows of the latest fail-over is believed. Whether the server agrees is for whoever
/// connects to it to find out.
pub(super) async fn find(
    options: &ConnectionOptions,
    sentinels: &[ServerAddress],
    master: &str,
) -> Result<ServerAddress, String> {
    let found = survey(options, sentinels, |sentinel| ask(options, sentinel, master)).await;
    found.map_err(|why| format!("no sentinel tells where master {master} is: {why}"))
}

async fn ask(
    options: &ConnectionOptions,
    sentinel: ServerAddress,
    master: &str,
) -> Result<(u64, ServerAddress), String> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("MASTER").arg(master);
    let asked = async |credentials| -> Result<Value, RedisError> {
        let mut connection = open(options, &sentinel, credentials, 0, || {}).await?;
        connection.send_packed_command(&command).await?.extract_error()
    };
    // Most sentinels have no password, and refuse one.
    let answer = match asked(None).await {
        Err(error) if said(&error).contains("NOAUTH") => {
            asked(options.url.credentials.as_ref()).await
        }
        answer => answer,
    };
    read(answer.map_err(|error| said(&error))?)
}

/// Reads the fields of a master.
fn read(answer: Value) -> Result<(u64, ServerAddress), String> {
    let odd = |answer: Value| format!("it answered {answer:?}");
    let fields = answer.into_map_iter().map_err(odd)?;
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
