//! Keys that hold what no version of this program wrote, and buckets of others.

use super::*;

const KINDS: [Kind; 2] = [Kind::List, Kind::Stream];

const CALLS: [&str; 8] =
    ["report", "in_hand", "claim", "standing", "find", "dead", "collect", "give_back"];

/// A bucket with entries in the line, in a hand and among the dead.
async fn filled(kind: Kind) -> (Ground, Hand) {
    let ground = Ground::single(kind);
    ground.accept_requests(bucket(0), 1..7);
    let worker = worker("node/1", 1);
    ground.claim(bucket(0), &worker, 3).await;
    let hand = ground.hand(bucket(0), &worker).await;
    let fates = vec![Fate::Kept, Fate::Failed, dead_of("why")];
    ground.report(&worker, hand, fates).await.unwrap();
    let hand = ground.hand(bucket(0), &worker).await;
    (ground, hand)
}

/// One call of the port, by a process that remembers nothing; a report by the one that has looked.
async fn ask(call: &str, ground: &Ground, hand: &Hand) -> Option<Error> {
    let (of, worker) = (bucket(0), worker("node/1", 1));
    let outbox = &*ground.elsewhere();
    match call {
        "report" => {
            let fates = vec![dead_of("why"); hand.entries.len()];
            ground.report(&worker, hand.clone(), fates).await.err()
        }
        "in_hand" => outbox.in_hand(of, &worker).await.err(),
        "claim" => claim(outbox, of, &worker, 1).await.err(),
        "standing" => outbox.standing(of).await.err(),
        "find" => outbox.find(of, request(99)).await.err(),
        "dead" => outbox.dead(of, 9).await.err(),
        "collect" => {
            let letter = DeadEntry {
                id: [1].into(),
                bytes: Vec::new().into(),
                reason: String::new(),
                attempts: 0,
                dead_at_ms: 0,
            };
            outbox.collect(of, &[letter]).await.err()
        }
        "give_back" => outbox.give_back(of, "node/1").await.err(),
        other => panic!("no call {other}"),
    }
}

/// The calls that must not go on when this key holds something else.
fn that_need(key: &str, kind: Kind) -> &'static [&'static str] {
    let kind_of_key = key.rsplit_once("}:").unwrap().1;
    match (kind_of_key, kind) {
        ("bucket", _) => &CALLS,
        ("claims", Kind::List) => &["report", "in_hand", "claim", "standing", "find", "give_back"],
        ("claims", Kind::Stream) => &["report", "in_hand", "claim", "standing", "give_back"],
        ("outbox", Kind::List) => &["in_hand", "claim", "standing", "find", "give_back"],
        ("outbox", Kind::Stream) => {
            &["report", "in_hand", "claim", "standing", "find", "give_back"]
        }
        ("dead", _) => &["report", "standing", "find", "dead", "collect"],
        (_, Kind::List) => &["report", "in_hand", "claim", "standing", "find", "give_back"],
        (_, Kind::Stream) => &[],
    }
}

#[test]
fn a_key_of_another_type_is_named_and_nothing_is_changed() {
    run(async {
        for kind in KINDS {
            let (ground, hand) = filled(kind).await;
            let keys = ground.keys(bucket(0));
            let all = [keys.bucket(), keys.claims(), keys.line(), keys.dead(), keys.hand("node/1")];
            for key in &all {
                let redis = ground.redis();
                let had = redis.text(&["EXISTS", key]) == "1";
                if had {
                    redis.cmd(&["RENAME", key, "saved"]);
                }
                redis.cmd(&["SET", key, "text"]);
                for call in that_need(key, kind) {
                    let before = ground.digest();
                    let error = ask(call, &ground, &hand).await;
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
                let error = ask(call, &ground, &hand).await;
                assert_eq!(error, None, "{kind:?}: {call}, with all as it should be");
            }
        }
    });
}

#[test]
fn the_line_of_the_other_kind_is_refused() {
    run(async {
        for (kind, other) in [(Kind::List, Kind::Stream), (Kind::Stream, Kind::List)] {
            let (ground, _) = filled(kind).await;
            let url = ground.redis().url();
            let outbox = open(other, &url, &ground.namespace, &ground.clock);
            let error = outbox.in_hand(bucket(0), &worker("other/1", 1)).await.unwrap_err();
            let line = ground.keys(bucket(0)).line();
            let what = format!("{line} is a {}", format!("{kind:?}").to_lowercase());
            assert!(error.to_string().contains(&what), "{error}");
        }
    });
}

#[test]
fn the_bucket_of_another_installation_is_refused() {
    run(async {
        for kind in KINDS {
            let (ground, hand) = filled(kind).await;
            let key = ground.keys(bucket(0)).bucket();
            for field in ["epoch", "loaded", "loading"] {
                for own in ["f100d6a7.3", "f100d6a7.0"] {
                    ground.redis().cmd(&["HSET", &key, field, own]);
                    assert_eq!(ask("standing", &ground, &hand).await, None);
                }
                ground.redis().cmd(&["HSET", &key, field, "f100d6a8.3"]);
                let before = ground.digest();
                for call in CALLS {
                    let error = ask(call, &ground, &hand).await.unwrap();
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
            let (ground, hand) = filled(kind).await;
            let key = ground.keys(bucket(0)).bucket();
            let fenced = ["epoch", "f100d6a7.1", "server", "another", "loading", "f100d6a7.9"];
            ground.redis().cmd(&[&["HSET", &key][..], &fenced].concat());
            for call in CALLS {
                let error = ask(call, &ground, &hand).await;
                assert_eq!(error, None, "{kind:?} {call}");
            }
        }
    });
}

#[test]
fn a_life_that_nobody_wrote_is_damage() {
    run(async {
        for kind in KINDS {
            let (ground, hand) = filled(kind).await;
            let claims = ground.keys(bucket(0)).claims();
            for life in ["", "1", "-1.7", "1.x", ".7", "1.7.7", "many", "1234567890123456.7"] {
                ground.redis().cmd(&["HSET", &claims, "node/1", life]);
                let before = ground.digest();
                for call in ["report", "in_hand", "claim"] {
                    let error = ask(call, &ground, &hand).await;
                    let is_told =
                        matches!(&error, Some(Error::Damaged { what }) if what.contains("claims"));
                    assert!(is_told, "{life:?} {call}: {error:?}");
                }
                assert_eq!(ground.digest(), before);
            }
        }
    });
}
