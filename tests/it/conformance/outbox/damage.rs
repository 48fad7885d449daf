//! Keys that hold what no version of this program wrote, and buckets of others.

use super::*;

const KINDS: [EntryKind; 2] = [EntryKind::List, EntryKind::Stream];

const CALLS: [&str; 8] =
    ["give up", "acknowledge", "take over", "claim", "standing", "find", "dead", "reclaim"];

const WORKER: &str = "node/1.1";

/// A bucket with entries that wait, that are claimed and that are dead.
async fn filled(kind: EntryKind) -> (Ground, Vec<OutboxEntry>) {
    let ground = Ground::single(kind);
    ground.accept_requests(bucket(0), 1..7);
    let mut entries = ground.claim(bucket(0), WORKER, 4).await;
    let last = entries.pop().unwrap();
    ground.end(bucket(0), WORKER, &[given_up(&last, "why")]).await;
    (ground, entries)
}

/// One call of the port.
async fn ask(call: &str, ground: &Ground, entries: &[OutboxEntry]) -> Option<Error> {
    let (of, outbox) = (bucket(0), ground.outbox.as_ref());
    match call {
        "give up" => end(outbox, of, WORKER, &[given_up(&entries[1], "why")]).await.err(),
        // Not the oldest one: it has to be looked for.
        "acknowledge" => acknowledge(outbox, of, WORKER, &entries[2..]).await.err(),
        "take over" => {
            only(outbox.take_over("node/1.2", &[WORKER.to_owned()], &[of]).await, of).err()
        }
        "claim" => claim(outbox, of, WORKER, 1).await.err(),
        "standing" => outbox.standing(of).await.err(),
        "find" => outbox.find(of, request(99)).await.err(),
        "dead" => outbox.dead(of, 9).await.err(),
        "reclaim" => outbox.reclaim(of, &[WORKER.to_owned()]).await.err(),
        other => panic!("no call {other}"),
    }
}

/// The calls that must not go on when this key holds something else.
fn that_need(key: &str, kind: EntryKind) -> &'static [&'static str] {
    match (key.rsplit_once("}:").unwrap().1, kind) {
        ("bucket", _) => &CALLS,
        ("claimants", EntryKind::List) => &["take over", "claim", "standing", "find", "reclaim"],
        ("outbox", EntryKind::List) => &["claim", "standing", "find", "reclaim"],
        ("outbox", EntryKind::Stream) => {
            &["give up", "acknowledge", "take over", "claim", "standing", "find", "reclaim"]
        }
        ("dead", _) => &["give up", "standing", "find", "dead"],
        (_, EntryKind::List) => {
            &["give up", "acknowledge", "take over", "claim", "standing", "find", "reclaim"]
        }
        (_, EntryKind::Stream) => &[],
    }
}

#[test]
fn a_key_of_another_type_is_named_and_nothing_is_changed() {
    run(async {
        for kind in KINDS {
            let (ground, entries) = filled(kind).await;
            let keys = ground.keys(bucket(0));
            let redis = ground.redis();
            let all =
                [keys.bucket(), keys.claimants(), keys.outbox(), keys.dead(), keys.claimed(WORKER)];
            for key in &all {
                let had = redis.text(&["EXISTS", key]) == "1";
                if had {
                    redis.cmd(&["RENAME", key, "saved"]);
                }
                redis.cmd(&["SET", key, "text"]);
                for call in that_need(key, kind) {
                    let before = ground.digest();
                    let error = ask(call, &ground, &entries).await;
                    let is_told =
                        matches!(&error, Some(Error::Damaged { what }) if what.contains(key));
                    assert!(is_told, "{kind:?} {key} {call}: {error:?}");
                    assert_eq!(ground.digest(), before, "{kind:?} {key} {call}");
                }
                redis.cmd(&["DEL", key]);
                if had {
                    redis.cmd(&["RENAME", "saved", key]);
                }
            }
            for call in CALLS {
                let error = ask(call, &ground, &entries).await;
                assert_eq!(error, None, "{kind:?}: {call}, with all as it should be");
            }
        }
    });
}

#[test]
fn the_outbox_of_the_other_kind_is_refused() {
    run(async {
        for (kind, other) in
            [(EntryKind::List, EntryKind::Stream), (EntryKind::Stream, EntryKind::List)]
        {
            let (ground, _) = filled(kind).await;
            let url = ground.redis().url();
            let outbox = open(other, &url, &ground.namespace, &ground.clock);
            let error = claim(outbox.as_ref(), bucket(0), "other/1.1", 1).await.unwrap_err();
            let line = ground.keys(bucket(0)).outbox();
            let what = format!("{line} is a {}", format!("{kind:?}").to_lowercase());
            assert!(error.to_string().contains(&what), "{error}");
        }
    });
}

#[test]
fn the_bucket_of_another_installation_is_refused() {
    run(async {
        for kind in KINDS {
            let (ground, entries) = filled(kind).await;
            let key = ground.keys(bucket(0)).bucket();
            for field in ["epoch", "loaded", "loading"] {
                for own in ["f100d6a7.3", "f100d6a7.0"] {
                    ground.redis().cmd(&["HSET", &key, field, own]);
                    assert_eq!(ask("standing", &ground, &entries).await, None);
                }
                ground.redis().cmd(&["HSET", &key, field, "f100d6a8.3"]);
                let before = ground.digest();
                for call in CALLS {
                    let error = ask(call, &ground, &entries).await.unwrap();
                    let text = error.to_string();
                    assert!(matches!(error, Error::Damaged { .. }), "{call}: {text}");
                    assert!(text.contains(&key) && text.contains("another installation"), "{text}");
                }
                assert_eq!(ground.digest(), before, "{kind:?} {field}");
                ground.redis().cmd(&["DEL", &key]);
            }
        }
    });
}

#[test]
fn a_fenced_bucket_and_one_that_is_being_loaded_are_drained() {
    run(async {
        for kind in KINDS {
            let (ground, entries) = filled(kind).await;
            let key = ground.keys(bucket(0)).bucket();
            let fenced = ["epoch", "f100d6a7.1", "server", "another", "loading", "f100d6a7.9"];
            ground.redis().cmd(&[&["HSET", &key][..], &fenced].concat());
            for call in CALLS {
                let error = ask(call, &ground, &entries).await;
                assert_eq!(error, None, "{kind:?} {call}");
            }
        }
    });
}
