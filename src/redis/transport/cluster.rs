//! Reads the slot assignment of a cluster.

use redis::{Pipeline, Value};

use super::ConnectionOptions;
use super::connect::{error_message, open};
use super::quorum_read::read_newest;
use super::router::SlotRange;
use super::url::ServerAddress;

/// The slots of every master. Queries the known masters and the seed nodes, and takes the answer
/// with the highest cluster epoch, preferring nodes whose cluster state is `ok`.
pub(super) async fn find_masters(
    options: &ConnectionOptions,
    seeds: &[ServerAddress],
    known: Vec<ServerAddress>,
) -> Result<Vec<SlotRange>, String> {
    let mut nodes = known;
    nodes.extend(seeds.iter().cloned());
    nodes.sort();
    nodes.dedup();
    let found = read_newest(options, &nodes, |node| query(options, node)).await;
    found.map_err(|reasons| format!("no node tells which server has which slots: {reasons}"))
}

/// The cluster state and epoch as this node reports them, and the slots.
async fn query(
    options: &ConnectionOptions,
    node: ServerAddress,
) -> Result<((bool, u64), Vec<SlotRange>), String> {
    let credentials = options.url.credentials.as_ref();
    let connection = open(options, &node, credentials, 0, || {}).await;
    let mut connection = connection.map_err(|error| error_message(&error))?;
    let mut pipeline = Pipeline::new();
    pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let answers = connection.send_packed_commands(&pipeline, 0, 2).await;
    let mut answers = answers.map_err(|error| error_message(&error))?.into_iter();
    let mut next = || {
        let answer = answers.next().ok_or_else(|| "too few answers".to_owned())?;
        answer.extract_error().map_err(|error| error_message(&error))
    };
    let info: String = redis::from_redis_value(next()?).map_err(|error| error.to_string())?;
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let is_ok = field("cluster_state") == Some("ok");
    let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let ranges = parse_slots(&next()?, &node).ok_or("its list of slots is not readable")?;
    if ranges.is_empty() {
        return Err("its list of slots is empty".to_owned());
    }
    Ok(((is_ok, epoch), ranges))
}

/// Parses `CLUSTER SLOTS`: first slot, last slot, master, replicas. A master without address is the
/// queried node.
fn parse_slots(answer: &Value, queried: &ServerAddress) -> Option<Vec<SlotRange>> {
    let range = |range: &Value| {
        let [first, last, master, ..] = range.as_sequence()? else { return None };
        let [host, port, ..] = master.as_sequence()? else { return None };
        let number = |value: &Value| match value {
            Value::Int(number) => u16::try_from(*number).ok(),
            _ => None,
        };
        let host = match host {
            Value::Nil => queried.host.clone(),
            host => Some(redis::from_redis_value_ref::<String>(host).ok()?)
                .filter(|host| !host.is_empty() && host != "?")
                .unwrap_or_else(|| queried.host.clone()),
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
    fn slots_are_parsed_with_their_masters() {
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
        assert_eq!(parse_slots(&answer, &node("a", 7)), Some(expected));

        let out_of_range = Value::Array(vec![range(0, 70_000, &master(text("b"), 2))]);
        for invalid in [Value::Int(1), Value::Array(vec![Value::Int(1)]), out_of_range] {
            assert_eq!(parse_slots(&invalid, &node("a", 7)), None, "{invalid:?}");
        }
    }
}
