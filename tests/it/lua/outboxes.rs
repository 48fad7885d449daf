//! The scripts of the outboxes: whatever they find, unless they accept, the keyspace stays as it
//! was, to the byte.

use floodgate::domain::{BucketNo, SkuNo};
use floodgate::outbox::{DeadEntry, EndedEntry, GivenUpEntry, OutboxEntry};
use floodgate::redis::scripts::outbox::{
    Acknowledge, ClaimEntries, Collect, CountEntries, EntryKind, OutboxTarget, ReadList,
    ReadStream, Reclaim, TakeOver,
};
use floodgate::redis::scripts::{Error, Installation, OutboxKeys, Script, ScriptCall};
use redis::Value;

use super::rig::{INSTALLATION, Wire};
use crate::support::servers::redis::Redis;

const KINDS: [EntryKind; 2] = [EntryKind::List, EntryKind::Stream];
const NAME: &str = "node/1.1";

/// Reads an answer, and tells whether the script accepted.
type Parse = Box<dyn Fn(Value) -> Result<(), Error>>;

/// One call, and how its answer is read.
struct Asked {
    name: &'static str,
    call: ScriptCall,
    parse: Parse,
}

/// Who asks for what.
#[derive(Clone, Copy)]
struct Asker {
    kind: EntryKind,
    installation: Installation,
}

fn keys() -> OutboxKeys {
    OutboxKeys::new("test", SkuNo(3), BucketNo(1))
}

/// Six entries accepted, three of them claimed by the worker, one letter among the dead.
fn enter(wire: &mut Wire, kind: EntryKind) -> Vec<OutboxEntry> {
    wire.cmd(&["FLUSHALL"]);
    let keys = keys();
    wire.cmd(&["HSET", &keys.bucket(), "epoch", "f100d6a7.1", "loaded", "f100d6a7.1"]);
    wire.cmd(&["RPUSH", &keys.dead(), "letter"]);
    for no in 0..6 {
        let body = format!("entry {no}");
        match kind {
            EntryKind::List => drop(wire.cmd(&["RPUSH", &keys.outbox(), &body])),
            EntryKind::Stream => drop(wire.cmd(&["XADD", &keys.outbox(), "*", "intents", &body])),
        }
    }
    let target = OutboxTarget { keys: &keys, installation: INSTALLATION, kind };
    let claim = ClaimEntries { target, worker: NAME, max: 3 };
    let claimed = claim.parse(wire.send(&claim.call()).unwrap()).unwrap();
    assert_eq!(claimed.len(), 3);
    claimed
}

/// Every script of a kind, with calls that it accepts if the asker is right.
fn all(asker: Asker, entries: &[OutboxEntry]) -> Vec<Asked> {
    let Asker { kind, installation } = asker;
    let keys = &keys();
    let target = OutboxTarget { keys, installation, kind };
    let ended = |entry: &OutboxEntry, letter| EndedEntry { id: entry.id.clone(), letter };
    let letter =
        || GivenUpEntry { bytes: b"entry"[..].into(), reason: "why".to_owned(), attempts: 1 };
    let published: Vec<EndedEntry> = entries.iter().map(|entry| ended(entry, None)).collect();
    let given_up: Vec<EndedEntry> =
        entries.iter().skip(1).map(|entry| ended(entry, Some(letter()))).collect();
    let acknowledge = |ended| Acknowledge { target, worker: NAME, ended, now_ms: 1 }.call();
    let names = &[NAME.to_owned()];
    // How an answer is read does not depend on what was asked.
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
        Asked {
            name: "claim",
            call: ClaimEntries { target, worker: NAME, max: 2 }.call(),
            parse: parse!(kind, target, ClaimEntries { target, worker: NAME, max: 2 }),
        },
        Asked {
            name: "take over",
            call: TakeOver { target, worker: "node/1.2", predecessors: names }.call(),
            parse: parse!(kind, target, TakeOver { target, worker: NAME, predecessors: &[] }),
        },
        Asked {
            name: "reclaim",
            call: Reclaim { target, workers: names }.call(),
            parse: parse!(kind, target, Reclaim { target, workers: &[] }),
        },
        Asked {
            name: "standing",
            call: CountEntries { target, workers: names }.call(),
            parse: parse!(kind, target, CountEntries { target, workers: &[] }),
        },
    ];
    for (name, ended) in [("acknowledge", &published), ("give up", &given_up)] {
        let read =
            parse!(kind, target, Acknowledge { target, worker: NAME, ended: &[], now_ms: 1 });
        all.push(Asked { name, call: acknowledge(ended), parse: read });
    }
    all.extend(others(asker));
    all
}

/// What is no worker's affair.
fn others(Asker { kind, installation }: Asker) -> Vec<Asked> {
    let keys = &keys();
    let letter = DeadEntry {
        id: b"letter"[..].into(),
        bytes: Vec::new().into(),
        reason: String::new(),
        attempts: 0,
        dead_at_ms: 0,
    };
    let letters = &[letter];
    let collect = Asked {
        name: "collect",
        call: Collect { keys, installation, letters }.call(),
        parse: Box::new(|value| {
            let keys = &self::keys();
            Collect { keys, installation: INSTALLATION, letters: &[] }.parse(value).map(drop)
        }),
    };
    let list = &keys.outbox();
    let read = match kind {
        EntryKind::List => Asked {
            name: "read",
            call: ReadList { keys, installation, list, places: (0, 9) }.call(),
            parse: Box::new(|value| {
                let (keys, installation) = (&self::keys(), INSTALLATION);
                ReadList { keys, installation, list: "", places: (0, 9) }.parse(value).map(drop)
            }),
        },
        EntryKind::Stream => Asked {
            name: "read",
            call: ReadStream { keys, installation, from: "0-0", max: 9 }.call(),
            parse: Box::new(|value| ReadStream::parse(value).map(drop)),
        },
    };
    vec![collect, read]
}

fn right(kind: EntryKind) -> Asker {
    Asker { kind, installation: INSTALLATION }
}

/// Whether the call was accepted; the first word of Redis' own error is the refusal otherwise.
fn ended(wire: &mut Wire, asked: &Asked) -> Result<Result<(), Error>, String> {
    match wire.send(&asked.call) {
        Ok(value) => Ok((asked.parse)(value)),
        Err(error) => Err(error.code().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_script_accepts_what_is_right_also_when_redis_is_full() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let mut seen = Vec::new();
    for kind in KINDS {
        for full in [false, true] {
            let count = all(right(kind), &[]).len();
            for place in 0..count {
                let entries = enter(&mut wire, kind);
                let asked = all(right(kind), &entries).swap_remove(place);
                let memory = if full { "1mb" } else { "0" };
                wire.cmd(&["CONFIG", "SET", "maxmemory", memory]);
                let ended = ended(&mut wire, &asked);
                wire.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
                // The answers of a standing depend on the workers that were asked for.
                if asked.name != "standing" || kind == EntryKind::Stream {
                    assert_eq!(ended, Ok(Ok(())), "{kind:?} {} {full}", asked.name);
                }
                seen.push(asked.call.script());
            }
        }
    }
    let of_outboxes = |script: &&Script| {
        let name = script.name();
        ["list_", "stream_", "collect"].iter().any(|begin| name.starts_with(begin))
    };
    for script in Script::ALL.iter().filter(of_outboxes) {
        assert!(seen.contains(script), "{} was not called", script.name());
    }
}

/// Whether the call looks at a key in every case: what it may not need, it may not notice.
fn always_looks(asked: &Asked, key: &str) -> bool {
    let kind = key.rsplit_once("}:").unwrap().1;
    match asked.name {
        "acknowledge" => !matches!(kind, "dead") && (kind != "outbox" || !is_list(asked)),
        "give up" => kind != "outbox" || !is_list(asked),
        _ => true,
    }
}

fn is_list(asked: &Asked) -> bool {
    asked.call.script().name().starts_with("list")
}

#[test]
fn a_key_of_another_type_is_refused_before_anything_is_written() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for kind in KINDS {
        let count = all(right(kind), &[]).len();
        for place in 0..count {
            let keys = all(right(kind), &[]).swap_remove(place).call.keys().len();
            for key in 0..keys {
                for other in [&["SET", "text"][..], &["HSET", "1", "1"], &["ZADD", "1", "member"]] {
                    let entries = enter(&mut wire, kind);
                    let asked = all(right(kind), &entries).swap_remove(place);
                    let key = asked.call.keys().nth(key).unwrap().to_vec();
                    let key = String::from_utf8(key).unwrap();
                    if !always_looks(&asked, &key)
                        || (key.ends_with("bucket") && other[0] == "HSET")
                    {
                        continue;
                    }
                    wire.replace(&key, other);
                    let before = wire.digest();
                    let ended = ended(&mut wire, &asked);
                    assert_eq!(ended, Err("WRONGTYPE".to_owned()), "{kind:?} {} {key}", asked.name);
                    assert_eq!(wire.digest(), before, "{kind:?} {} {key}", asked.name);
                }
            }
        }
    }
}

#[test]
fn another_installation_touches_nothing() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for kind in KINDS {
        let asker = Asker { installation: Installation(1), ..right(kind) };
        for place in 0..all(asker, &[]).len() {
            let entries = enter(&mut wire, kind);
            let asked = all(asker, &entries).swap_remove(place);
            let before = wire.digest();
            let ended = ended(&mut wire, &asked);
            assert_eq!(ended, Ok(Err(Error::Foreign)), "{kind:?} {}", asked.name);
            assert_eq!(wire.digest(), before, "{kind:?} {}", asked.name);
        }
    }
}
