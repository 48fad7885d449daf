//! Asking the nodes of a cluster which of them has which slots.

use redis::{Pipeline, Value};

use super::ConnectionOptions;
use super::connect::{open, said};
use super::router::SlotRange;
use super::url::ServerAddress;
use crate::redis::transport::quorum_read::survey;

/// The slots of every master. Asks the masters known so far and the nodes of the URL; of those that
/// answer, the one that knows of the latest change is believed.
pub(super) async fn find(
    options: &ConnectionOptions,
    seeds: &[ServerAddress],
    known: Vec<ServerAddress>,
) -> Result<Vec<SlotRange>, String> {
    let mut nodes = known;
    nodes.extend(seeds.iter().cloned());
    nodes.sort();
    nodes.dedup();
    let found = survey(options, &nodes, |node| ask(options, node)).await;
    found.map_err(|why| format!("no node tells which server has which slots: {why}"))
}

/// Whether the cluster is whole to this node, and how many changes it knows of; and the slots.
async fn ask(
    options: &ConnectionOptions,
    node: ServerAddress,
) -> Result<((bool, u64), Vec<SlotRange>), String> {
    let credentials = options.url.credentials.as_ref();
    let connection = open(options, &node, credentials, 0, || {}).await;
    let mut connection = connection.map_err(|error| said(&error))?;
    let mut pipeline = Pipeline::new();
    pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let answers = connection.send_packed_commands(&pipeline, 0, 2).await;
    let mut answers = answers.map_err(|error| said(&error))?.into_iter();
    let mut next = || {
        let answer = answers.next().ok_or_else(|| "too few answers".to_owned())?;
        answer.extract_error().map_err(|error| said(&error))
    };
    let info: String = redis::from_redis_value(next()?).map_err(|error| error.to_string())?;
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let whole = field("cluster_state") == Some("ok");
    let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let ranges = read(&next()?, &node).ok_or("its list of slots is not readable")?;
    if ranges.is_empty() {
        return Err("it knows of no slots".to_owned());
    }
    Ok(((whole, epoch), ranges))
}

/// Reads `CLUSTER SLOTS`: first slot, last slot, master, replicas. A master without address is the
/// node that was asked.
fn read(answer: &Value, asked: &ServerAddress) -> Option<Vec<SlotRange>> {
    let range = |range: &Value| {
        let [first, last, master, ..] = range.as_sequence()? else { return None };
        let [host, port, ..] = master.as_sequence()? else { return None };
        let number = |value: &Value| match value {
            Value::Int(number) => u16::try_from(*number).ok(),
            _ => None,
        };
        let host = match host {
            Value::Nil => asked.host.clone(),
            host => Some(redis::from_redis_value_ref::<String>(host).ok()?)
                .filter(|host| !host.is_empty() && host != "?")
                .unwrap_or_else(|| asked.host.clone()),
        };
        Some((number(first)?, number(last)?, ServerAddress { host, port: number(port)? }))
    };
    let mut ranges = answer.as_sequence()?.iter().map(range).collect::<Option<Vec<_>>>()?;
    ranges.sort();
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> ServerAddress {
        ServerAddress { host: host.to_owned(), port }
    }

    #[test]
    fn slots_are_read_with_their_masters() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let master = |host, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, master: &Value| {
            let replica = Value::Array(vec![text("r"), Value::Int(9), text("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master.clone(), replica])
        };
        let answer = Value::Array(vec![
            range(100, 16_383, &master(text("b"), 2)),
            range(0, 98, &master(Value::Nil, 1)),
            range(99, 99, &master(text(""), 1)),
        ]);
        let expected =
            vec![(0, 98, node("a", 1)), (99, 99, node("a", 1)), (100, 16_383, node("b", 2))];
        assert_eq!(read(&answer, &node("a", 7)), Some(expected));

        let beyond = Value::Array(vec![range(0, 70_000, &master(text("b"), 2))]);
        for odd in [Value::Int(1), Value::Array(vec![Value::Int(1)]), beyond] {
            assert_eq!(read(&odd, &node("a", 7)), None, "{odd:?}");
        }
    }
}
