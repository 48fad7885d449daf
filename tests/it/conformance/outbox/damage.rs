//! Keys with a wrong type or content, and buckets of another installation.

use floodgate::redis::executor::CallError;
use floodgate::redis::scripts::Error as ScriptError;

use super::*;

const KINDS: [OutboxKind; 2] = [OutboxKind::List, OutboxKind::Stream];

const CALLS: [&str; 6] = ["acknowledge", "take over", "claim", "status", "find", "reclaim"];

const WORKER: &str = "node/1.1";

/// A bucket with waiting and claimed entries.
async fn filled(kind: OutboxKind) -> (Fixture, Vec<OutboxEntry>) {
    let fixture = Fixture::single(kind);
    fixture.accept_requests(bucket(0), 1..7);
    let entries = fixture.claim(bucket(0), WORKER, 3).await;
    (fixture, entries)
}

/// Makes one call of the port.
async fn invoke(call: &str, fixture: &Fixture, entries: &[OutboxEntry]) -> Option<Error> {
    let (of, outbox) = (bucket(0), fixture.outbox.as_ref());
    match call {
        // The entry is not the oldest, so that the call searches for it.
        "acknowledge" => acknowledge(outbox, of, WORKER, &entries[2..]).await.err(),
        "take over" => {
            only(outbox.take_over("node/1.2", &[WORKER.to_owned()], &[of]).await, of).err()
        }
        "claim" => claim(outbox, of, WORKER, 1).await.err(),
        "status" => outbox.status(of).await.err(),
        "find" => outbox.find(of, request(99)).await.err(),
        "reclaim" => outbox.reclaim(of, &[WORKER.to_owned()]).await.err(),
        other => panic!("no call {other}"),
    }
}

/// The calls that must fail when this key has another type.
fn calls_that_need(key: &str, kind: OutboxKind) -> &'static [&'static str] {
    match (key.rsplit_once("}:").unwrap().1, kind) {
        ("bucket", _) | ("outbox", OutboxKind::Stream) => &CALLS,
        ("claimants", OutboxKind::List) => &["take over", "claim", "status", "find", "reclaim"],
        ("outbox", OutboxKind::List) => &["claim", "status", "find", "reclaim"],
        (_, OutboxKind::List) => &CALLS,
        (_, OutboxKind::Stream) => &[],
    }
}

#[test]
fn a_key_of_another_type_is_named_and_nothing_is_changed() {
    run(async {
        for kind in KINDS {
            let (fixture, entries) = filled(kind).await;
            let keys = fixture.keys(bucket(0));
            let redis = fixture.redis();
            let all = [keys.bucket(), keys.claimants(), keys.outbox(), keys.claimed(WORKER)];
            for key in &all {
                let existed = redis.text(&["EXISTS", key]) == "1";
                if existed {
                    redis.cmd(&["RENAME", key, "saved"]);
                }
                redis.cmd(&["SET", key, "text"]);
                for call in calls_that_need(key, kind) {
                    let before = fixture.digest();
                    let error = invoke(call, &fixture, &entries).await;
                    let is_named =
                        matches!(&error, Some(Error::Damaged { what }) if what.contains(key));
                    assert!(is_named, "{kind:?} {key} {call}: {error:?}");
                    assert_eq!(fixture.digest(), before, "{kind:?} {key} {call}");
                }
                redis.cmd(&["DEL", key]);
                if existed {
                    redis.cmd(&["RENAME", "saved", key]);
                }
            }
            for call in CALLS {
                let error = invoke(call, &fixture, &entries).await;
                assert_eq!(error, None, "{kind:?}: {call}, with all keys intact");
            }
        }
    });
}

#[test]
fn the_outbox_of_the_other_kind_is_refused() {
    run(async {
        for (kind, other) in
            [(OutboxKind::List, OutboxKind::Stream), (OutboxKind::Stream, OutboxKind::List)]
        {
            let (fixture, _) = filled(kind).await;
            let url = fixture.redis().url();
            let outbox = open(other, &url, &fixture.namespace);
            let error = claim(outbox.as_ref(), bucket(0), "other/1.1", 1).await.unwrap_err();
            let outbox_key = fixture.keys(bucket(0)).outbox();
            let what = format!("{outbox_key} is a {}", format!("{kind:?}").to_lowercase());
            assert!(error.to_string().contains(&what), "{error}");
        }
    });
}

#[test]
fn the_bucket_of_another_installation_is_refused() {
    run(async {
        for kind in KINDS {
            let (fixture, entries) = filled(kind).await;
            let key = fixture.keys(bucket(0)).bucket();
            for field in ["epoch", "loaded", "loading"] {
                for own in ["f100d6a7.3", "f100d6a7.0"] {
                    fixture.redis().cmd(&["HSET", &key, field, own]);
                    assert_eq!(invoke("status", &fixture, &entries).await, None);
                }
                fixture.redis().cmd(&["HSET", &key, field, "f100d6a8.3"]);
                let before = fixture.digest();
                for call in CALLS {
                    let error = invoke(call, &fixture, &entries).await.unwrap();
                    let text = error.to_string();
                    assert!(matches!(error, Error::Damaged { .. }), "{call}: {text}");
                    assert!(text.contains(&key) && text.contains("another installation"), "{text}");
                }
                assert_eq!(fixture.digest(), before, "{kind:?} {field}");
                fixture.redis().cmd(&["DEL", &key]);
            }
        }
    });
}

#[test]
fn a_fenced_bucket_and_one_that_is_being_loaded_are_drained() {
    run(async {
        for kind in KINDS {
            let (fixture, entries) = filled(kind).await;
            let key = fixture.keys(bucket(0)).bucket();
            let fenced = ["epoch", "f100d6a7.1", "server", "another", "loading", "f100d6a7.9"];
            fixture.redis().cmd(&[&["HSET", &key][..], &fenced].concat());
            for call in CALLS {
                let error = invoke(call, &fixture, &entries).await;
                assert_eq!(error, None, "{kind:?} {call}");
            }
        }
    });
}

/// The script may have moved entries: their worker must read what it holds.
#[test]
fn an_answer_that_cannot_be_read_leaves_the_effect_of_a_call_unknown() {
    let unexpected =
        ScriptError::Unexpected { script: "list_claim", reply: "simple-string(OK)".to_owned() };
    for error in [unexpected, ScriptError::NotReady, ScriptError::Fenced, ScriptError::OldLoader] {
        let (operation, key) = ("claiming entries", "test:{7:0}:bucket".to_owned());
        let rejected = CallError::Rejected { operation, sku: SkuNo(7), key, error };
        let error = Error::from(rejected);
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
    }
}
