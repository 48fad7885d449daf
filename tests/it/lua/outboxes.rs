//! An outbox script that does not accept a call leaves the keyspace unchanged, to the byte.

use floodgate::config::OutboxKind;
use floodgate::domain::{BucketNo, SkuNo};
use floodgate::outbox::EntryId;
use floodgate::outbox::scripts::{
    acknowledge, claim, count_entries, read_list, read_stream, reclaim, take_over,
};
use floodgate::redis::scripts::{BucketFence, BucketKeys, Error, Installation, Script, ScriptCall};

use super::fenced_call::FencedCall;
use super::harness::{INSTALLATION, ScriptClient};
use crate::support::servers::redis::Redis;

const KINDS: [OutboxKind; 2] = [OutboxKind::List, OutboxKind::Stream];
const NAME: &str = "node/1.1";

struct Case {
    name: &'static str,
    call: FencedCall,
}

/// The calling installation and the kind of its outbox.
#[derive(Clone, Copy)]
struct Caller {
    kind: OutboxKind,
    installation: Installation,
}

impl Caller {
    fn case<A: 'static>(self, name: &'static str, call: ScriptCall<A>) -> Case {
        // The outbox is kept over restarts of the server.
        let fence = BucketFence { installation: self.installation, server: "any".into() };
        Case { name, call: FencedCall::new(call, &fence) }
    }
}

fn keys() -> BucketKeys {
    BucketKeys::new("test", SkuNo(3), BucketNo(1))
}

/// Flushes the server and fills the outbox: six entries, three of them claimed by the worker.
/// Returns the claimed entries.
fn enter(client: &mut ScriptClient, kind: OutboxKind) -> Vec<EntryId> {
    client.cmd(&["FLUSHALL"]);
    let keys = keys();
    client.cmd(&["HSET", &keys.bucket(), "epoch", "f100d6a7.1", "loaded", "f100d6a7.1"]);
    for no in 0..6 {
        let body = format!("entry {no}");
        match kind {
            OutboxKind::List => drop(client.cmd(&["RPUSH", &keys.outbox(), &body])),
            OutboxKind::Stream => {
                drop(client.cmd(&["XADD", &keys.outbox(), "*", "intents", &body]));
            }
        }
    }
    let case = right_caller(kind).case("claim", claim(&keys, kind, NAME, 3));
    let claimed = claim(&keys, kind, NAME, 3).parse(client.send(&case.call).unwrap()).unwrap();
    assert_eq!(claimed.len(), 3);
    claimed.into_iter().map(|entry| entry.id).collect()
}

/// One call per script of this kind; the right caller's calls are accepted.
fn all(caller: Caller, entries: &[EntryId]) -> Vec<Case> {
    let kind = caller.kind;
    let later: Vec<EntryId> = entries.iter().skip(1).cloned().collect();
    let names = &[NAME.to_owned()];
    let keys = &keys();
    let read = match kind {
        OutboxKind::List => caller.case("read", read_list(keys, &keys.outbox(), (0, 9))),
        OutboxKind::Stream => caller.case("read", read_stream(keys, "0-0", 9)),
    };
    vec![
        caller.case("claim", claim(keys, kind, NAME, 2)),
        caller.case("take over", take_over(keys, kind, "node/1.2", names)),
        caller.case("reclaim", reclaim(keys, kind, names)),
        caller.case("count", count_entries(keys, kind, names.to_vec())),
        caller.case("acknowledge", acknowledge(keys, kind, NAME, entries)),
        caller.case("acknowledge later ones", acknowledge(keys, kind, NAME, &later)),
        read,
    ]
}

fn right_caller(kind: OutboxKind) -> Caller {
    Caller { kind, installation: INSTALLATION }
}

/// The script's answer; `Err`: the code of an error of Redis itself.
fn ended(client: &mut ScriptClient, case: &Case) -> Result<Result<(), Error>, String> {
    match client.send(&case.call) {
        Ok(value) => Ok(case.call.parse(value)),
        Err(error) => Err(error.code().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_script_accepts_valid_keys_also_when_redis_is_full() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let mut seen = Vec::new();
    for kind in KINDS {
        for full in [false, true] {
            let count = all(right_caller(kind), &[]).len();
            for index in 0..count {
                let entries = enter(&mut client, kind);
                let case = all(right_caller(kind), &entries).swap_remove(index);
                let memory = if full { "1mb" } else { "0" };
                client.cmd(&["CONFIG", "SET", "maxmemory", memory]);
                let ended = ended(&mut client, &case);
                client.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
                assert_eq!(ended, Ok(Ok(())), "{kind:?} {} {full}", case.name);
                seen.push(case.call.script());
            }
        }
    }
    let is_outbox_script = |script: &&Script| {
        let name = script.name();
        ["list_", "stream_"].iter().any(|prefix| name.starts_with(prefix))
    };
    for script in Script::ALL.iter().filter(is_outbox_script) {
        assert!(seen.contains(script), "{} was not called", script.name());
    }
}

/// Whether the call reads the key in every case; a script may ignore keys that it does not need.
fn always_reads(case: &Case, key: &str) -> bool {
    let kind = key.rsplit_once("}:").unwrap().1;
    !case.name.starts_with("acknowledge") || kind != "outbox" || !is_list(case)
}

fn is_list(case: &Case) -> bool {
    case.call.script().name().starts_with("list")
}

#[test]
fn a_key_of_another_type_is_refused_before_anything_is_written() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for kind in KINDS {
        let count = all(right_caller(kind), &[]).len();
        for index in 0..count {
            let keys = all(right_caller(kind), &[]).swap_remove(index).call.keys().len();
            for key in 0..keys {
                for other in [&["SET", "text"][..], &["HSET", "1", "1"], &["ZADD", "1", "member"]] {
                    let entries = enter(&mut client, kind);
                    let case = all(right_caller(kind), &entries).swap_remove(index);
                    let key = case.call.keys().swap_remove(key);
                    let key = String::from_utf8(key).unwrap();
                    if !always_reads(&case, &key) || (key.ends_with("bucket") && other[0] == "HSET")
                    {
                        continue;
                    }
                    client.replace(&key, other);
                    let before = client.digest();
                    let ended = ended(&mut client, &case);
                    assert_eq!(ended, Err("WRONGTYPE".to_owned()), "{kind:?} {} {key}", case.name);
                    assert_eq!(client.digest(), before, "{kind:?} {} {key}", case.name);
                }
            }
        }
    }
}

#[test]
fn another_installation_touches_nothing() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for kind in KINDS {
        let caller = Caller { installation: Installation(1), ..right_caller(kind) };
        for index in 0..all(caller, &[]).len() {
            let entries = enter(&mut client, kind);
            let case = all(caller, &entries).swap_remove(index);
            let before = client.digest();
            let ended = ended(&mut client, &case);
            assert_eq!(ended, Ok(Err(Error::Foreign)), "{kind:?} {}", case.name);
            assert_eq!(client.digest(), before, "{kind:?} {}", case.name);
        }
    }
}
