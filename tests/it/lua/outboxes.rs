//! An outbox script that does not accept a call leaves the keyspace unchanged, to the byte.

use floodgate::domain::{BucketNo, SkuNo};
use floodgate::outbox::scripts::{
    Acknowledge, ClaimEntries, Collect, CountEntries, EntryKind, OutboxTarget, ReadList,
    ReadStream, Reclaim, TakeOver,
};
use floodgate::outbox::{DeadEntry, EndedEntry, GivenUpEntry, OutboxEntry};
use floodgate::redis::scripts::{Error, Installation, OutboxKeys, Script, ScriptCall};
use redis::Value;

use super::harness::{INSTALLATION, ScriptClient};
use crate::support::servers::redis::Redis;

const KINDS: [EntryKind; 2] = [EntryKind::List, EntryKind::Stream];
const NAME: &str = "node/1.1";

/// Parses an answer; `Ok` when the script accepted the call.
type Parse = Box<dyn Fn(Value) -> Result<(), Error>>;

/// One call with the parser of its answer.
struct Case {
    name: &'static str,
    call: ScriptCall,
    parse: Parse,
}

/// The calling installation and the kind of its outbox.
#[derive(Clone, Copy)]
struct Caller {
    kind: EntryKind,
    installation: Installation,
}

fn keys() -> OutboxKeys {
    OutboxKeys::new("test", SkuNo(3), BucketNo(1))
}

/// Flushes the server and fills the outbox: six entries, three of them claimed by the worker, and
/// one dead letter. Returns the claimed entries.
fn enter(client: &mut ScriptClient, kind: EntryKind) -> Vec<OutboxEntry> {
    client.cmd(&["FLUSHALL"]);
    let keys = keys();
    client.cmd(&["HSET", &keys.bucket(), "epoch", "f100d6a7.1", "loaded", "f100d6a7.1"]);
    client.cmd(&["RPUSH", &keys.dead(), "letter"]);
    for no in 0..6 {
        let body = format!("entry {no}");
        match kind {
            EntryKind::List => drop(client.cmd(&["RPUSH", &keys.outbox(), &body])),
            EntryKind::Stream => drop(client.cmd(&["XADD", &keys.outbox(), "*", "intents", &body])),
        }
    }
    let target = OutboxTarget { keys: &keys, installation: INSTALLATION, kind };
    let claim = ClaimEntries { target, worker: NAME, max: 3 };
    let claimed = claim.parse(client.send(&claim.call()).unwrap()).unwrap();
    assert_eq!(claimed.len(), 3);
    claimed
}

/// One call per script of this kind; the right caller's calls are accepted.
fn all(caller: Caller, entries: &[OutboxEntry]) -> Vec<Case> {
    let Caller { kind, installation } = caller;
    let keys = &keys();
    let target = OutboxTarget { keys, installation, kind };
    let ended = |entry: &OutboxEntry, dead_letter| EndedEntry { id: entry.id.clone(), dead_letter };
    let given_up_entry =
        || GivenUpEntry { bytes: b"entry"[..].into(), reason: "why".to_owned(), attempts: 1 };
    let published: Vec<EndedEntry> = entries.iter().map(|entry| ended(entry, None)).collect();
    let given_up: Vec<EndedEntry> =
        entries.iter().skip(1).map(|entry| ended(entry, Some(given_up_entry()))).collect();
    let acknowledge = |ended| Acknowledge { target, worker: NAME, ended, now_ms: 1 }.call();
    let names = &[NAME.to_owned()];
    // The parser does not depend on the arguments of the call.
    macro_rules! parse {
        ($kind:ident, $target:ident, $read:expr) => {
            Box::new(move |value| {
                let keys = &self::keys();
                let $target = OutboxTarget { keys, installation, kind: $kind };
                $read.parse(value).map(drop)
            })
        };
    }
    let mut all = vec![
        Case {
            name: "claim",
            call: ClaimEntries { target, worker: NAME, max: 2 }.call(),
            parse: parse!(kind, target, ClaimEntries { target, worker: NAME, max: 2 }),
        },
        Case {
            name: "take over",
            call: TakeOver { target, worker: "node/1.2", predecessors: names }.call(),
            parse: parse!(kind, target, TakeOver { target, worker: NAME, predecessors: &[] }),
        },
        Case {
            name: "reclaim",
            call: Reclaim { target, workers: names }.call(),
            parse: parse!(kind, target, Reclaim { target, workers: &[] }),
        },
        Case {
            name: "count",
            call: CountEntries { target, workers: names }.call(),
            parse: parse!(kind, target, CountEntries { target, workers: &[] }),
        },
    ];
    for (name, ended) in [("acknowledge", &published), ("give up", &given_up)] {
        let read =
            parse!(kind, target, Acknowledge { target, worker: NAME, ended: &[], now_ms: 1 });
        all.push(Case { name, call: acknowledge(ended), parse: read });
    }
    all.extend(others(caller));
    all
}

/// The scripts that no relay worker calls.
fn others(Caller { kind, installation }: Caller) -> Vec<Case> {
    let keys = &keys();
    let dead_entry = DeadEntry {
        id: b"letter"[..].into(),
        bytes: Vec::new().into(),
        reason: String::new(),
        attempts: 0,
        dead_at_ms: 0,
    };
    let letters = &[dead_entry];
    let collect = Case {
        name: "collect",
        call: Collect { keys, installation, letters }.call(),
        parse: Box::new(|value| {
            let keys = &self::keys();
            Collect { keys, installation: INSTALLATION, letters: &[] }.parse(value).map(drop)
        }),
    };
    let list = &keys.outbox();
    let read = match kind {
        EntryKind::List => Case {
            name: "read",
            call: ReadList { keys, installation, list, places: (0, 9) }.call(),
            parse: Box::new(|value| {
                let (keys, installation) = (&self::keys(), INSTALLATION);
                ReadList { keys, installation, list: "", places: (0, 9) }.parse(value).map(drop)
            }),
        },
        EntryKind::Stream => Case {
            name: "read",
            call: ReadStream { keys, installation, from: "0-0", max: 9 }.call(),
            parse: Box::new(|value| ReadStream::parse(value).map(drop)),
        },
    };
    vec![collect, read]
}

fn right_caller(kind: EntryKind) -> Caller {
    Caller { kind, installation: INSTALLATION }
}

/// The script's answer; `Err`: the code of an error of Redis itself.
fn ended(client: &mut ScriptClient, case: &Case) -> Result<Result<(), Error>, String> {
    match client.send(&case.call) {
        Ok(value) => Ok((case.parse)(value)),
        Err(error) => Err(error.code().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_script_accepts_what_is_right_also_when_redis_is_full() {
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
                // The answer of a list's count has one value per worker: the parser above has none.
                if case.name != "count" || kind == EntryKind::Stream {
                    assert_eq!(ended, Ok(Ok(())), "{kind:?} {} {full}", case.name);
                }
                seen.push(case.call.script());
            }
        }
    }
    let is_outbox_script = |script: &&Script| {
        let name = script.name();
        ["list_", "stream_", "collect"].iter().any(|prefix| name.starts_with(prefix))
    };
    for script in Script::ALL.iter().filter(is_outbox_script) {
        assert!(seen.contains(script), "{} was not called", script.name());
    }
}

/// Whether the call reads the key in every case; a script may ignore keys that it does not need.
fn always_reads(case: &Case, key: &str) -> bool {
    let kind = key.rsplit_once("}:").unwrap().1;
    match case.name {
        "acknowledge" => !matches!(kind, "dead") && (kind != "outbox" || !is_list(case)),
        "give up" => kind != "outbox" || !is_list(case),
        _ => true,
    }
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
                    let key = case.call.keys().nth(key).unwrap().to_vec();
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
