//! Answers that get lost, and servers that crash.

use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::servers::redis::AOF_ALWAYS;

use super::*;

const KINDS: [EntryKind; 2] = [EntryKind::List, EntryKind::Stream];

const WORKER: &str = "node/1.1";

/// A worker behind a network that breaks.
struct Broken {
    ground: Ground,
    proxy: FaultProxy,
    outbox: Arc<dyn Outbox>,
}

impl Broken {
    /// Requests 1 to 6 are accepted, 1 to 3 are claimed.
    async fn holding(kind: EntryKind) -> (Self, Vec<OutboxEntry>) {
        let ground = Ground::single(kind);
        let proxy = FaultProxy::start(ground.redis().addr());
        let url = format!("redis://{}", proxy.addr());
        let outbox = open(kind, &url, &ground.namespace, &ground.clock);
        ground.accept_requests(bucket(0), 1..7);
        let entries = claim(outbox.as_ref(), bucket(0), WORKER, 3).await.unwrap();
        (Self { ground, proxy, outbox }, entries)
    }

    async fn claim(&self) -> Result<Vec<OutboxEntry>, Error> {
        claim(self.outbox.as_ref(), bucket(0), WORKER, 2).await
    }

    /// What a successor finds.
    async fn taken_over(&self) -> Vec<u64> {
        let predecessors = [WORKER.to_owned()];
        let entries = until("an answer", async || {
            let outbox = self.outbox.as_ref();
            let taken = outbox.take_over("node/1.2", &predecessors, &[bucket(0)]).await;
            only(taken, bucket(0)).ok()
        });
        requests(&entries.await)
    }
}

fn assert_unknown<T: std::fmt::Debug>(outcome: &Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
}

#[test]
fn a_claim_whose_answer_was_lost_is_found_by_the_successor() {
    run(async {
        for kind in KINDS {
            let (broken, _) = Broken::holding(kind).await;
            broken.proxy.cut_reply("EVALSHA");
            assert_unknown(&broken.claim().await);
            assert_eq!(broken.proxy.cuts(), 1);
            assert_eq!(broken.taken_over().await, [1, 2, 3, 4, 5], "{kind:?}");
        }
    });
}

#[test]
fn a_claim_that_never_arrived_has_moved_nothing() {
    run(async {
        for kind in KINDS {
            let (broken, _) = Broken::holding(kind).await;
            broken.proxy.cut_request("EVALSHA");
            assert_unknown(&broken.claim().await);
            assert_eq!(broken.taken_over().await, [1, 2, 3], "{kind:?}");
        }
    });
}

/// What a claim moves after its worker gave up waiting belongs to a name that nobody announces.
#[test]
fn a_claim_that_arrives_late_is_reclaimed() {
    run(async {
        for kind in KINDS {
            let (broken, _) = Broken::holding(kind).await;
            let url = format!("redis://{}", broken.proxy.addr());
            let (namespace, clock) = (&broken.ground.namespace, &broken.ground.clock);
            let hasty = open_patient(kind, &url, namespace, clock, 300);
            held(hasty.as_ref(), bucket(0), WORKER).await.unwrap();
            broken.proxy.set(Mode::Hold(None));
            assert_unknown(&claim(hasty.as_ref(), bucket(0), WORKER, 2).await);
            let elsewhere = &broken.ground.outbox;
            let predecessors = [WORKER.to_owned()];
            let taken = elsewhere.take_over("node/1.2", &predecessors, &[bucket(0)]).await;
            assert_eq!(requests(&only(taken, bucket(0)).unwrap()), [1, 2, 3]);
            broken.proxy.heal();
            until("the late claim", async || {
                let standing = elsewhere.standing(bucket(0)).await.unwrap();
                standing.in_hand.contains(&(WORKER.to_owned(), 2)).then_some(())
            })
            .await;
            assert_eq!(broken.ground.reclaim(bucket(0), WORKER).await, 2);
            let rest = broken.ground.claim(bucket(0), "node/1.2", 9).await;
            assert_eq!(requests(&rest), [4, 5, 6], "{kind:?}");
        }
    });
}

#[test]
fn an_acknowledgement_without_an_answer_is_repeated_without_harm() {
    run(async {
        for kind in KINDS {
            for arrives in [false, true] {
                let (broken, entries) = Broken::holding(kind).await;
                if arrives {
                    broken.proxy.cut_reply("EVALSHA");
                } else {
                    broken.proxy.cut_request("EVALSHA");
                }
                let ended = [published(&entries[0]), given_up(&entries[1], "why")];
                let outbox = broken.outbox.as_ref();
                assert_unknown(&end(outbox, bucket(0), WORKER, &ended).await);
                until("an answer", async || end(outbox, bucket(0), WORKER, &ended).await.ok())
                    .await;
                assert_eq!(broken.ground.dead(bucket(0)).await.len(), 1, "{kind:?}");
                assert_eq!(requests(&broken.ground.held(bucket(0), WORKER).await), [3]);
            }
        }
    });
}

#[test]
fn without_a_connection_nothing_is_claimed_and_nothing_is_in_doubt() {
    run(async {
        for kind in KINDS {
            let (broken, entries) = Broken::holding(kind).await;
            broken.proxy.set(Mode::Reset);
            let refused = |error: &Error| matches!(error, Error::Unavailable { .. });
            until("a certain refusal", async || {
                broken.claim().await.is_err_and(|error| refused(&error)).then_some(())
            })
            .await;
            // The first claim may have been sent before its connection was reset, and have arrived.
            let claimed = requests(&broken.ground.held(bucket(0), WORKER).await);
            assert!(broken.claim().await.is_err_and(|error| refused(&error)));
            let outcome = acknowledge(broken.outbox.as_ref(), bucket(0), WORKER, &entries).await;
            assert!(outcome.is_err_and(|error| refused(&error)));
            // Whether its worker works cannot be known: it is not called silent.
            let names = BTreeSet::from([WORKER.to_owned()]);
            assert_eq!(broken.outbox.silent(&names).await, BTreeSet::new());
            broken.proxy.heal();
            assert_eq!(broken.taken_over().await, claimed);
        }
    });
}

#[test]
fn a_killed_server_that_keeps_all_it_confirmed_keeps_every_claim() {
    run(async {
        for kind in KINDS {
            let ground = Ground::with(kind, Redis::start_with(AOF_ALWAYS));
            ground.accept_requests(bucket(0), 1..9);
            let first = ground.claim(bucket(0), "node/1.1", 4).await;
            ground
                .end(bucket(0), "node/1.1", &[published(&first[1]), given_up(&first[3], "why")])
                .await;
            ground.claim(bucket(0), "node/2.1", 2).await;
            let standing = ground.outbox.standing(bucket(0)).await.unwrap();
            let dead = ground.dead(bucket(0)).await;

            ground.redis().kill();
            ground.redis().restart();
            let again = until("the server", async || ground.outbox.standing(bucket(0)).await.ok());
            assert_eq!(again.await, standing, "{kind:?}");
            assert_eq!(ground.dead(bucket(0)).await, dead);
            assert_eq!(requests(&ground.claim(bucket(0), "node/1.1", 1).await), [7]);
            assert_eq!(requests(&ground.held(bucket(0), "node/1.1").await), [1, 3, 7]);
            assert_eq!(requests(&ground.held(bucket(0), "node/2.1").await), [5, 6]);
        }
    });
}

#[test]
fn a_server_that_comes_back_empty_is_served_as_ever() {
    run(async {
        for kind in KINDS {
            let ground = Ground::single(kind);
            ground.accept_requests(bucket(0), 1..4);
            let entries = ground.claim(bucket(0), WORKER, 9).await;
            ground.redis().cmd(&["FLUSHALL"]);
            let ended = [published(&entries[0]), given_up(&entries[1], "why")];
            ground.end(bucket(0), WORKER, &ended).await;
            assert_eq!(ground.dead(bucket(0)).await, [], "there was no such entry");
            ground.accept_requests(bucket(0), 4..5);
            assert_eq!(requests(&ground.claim(bucket(0), WORKER, 9).await), [4]);
        }
    });
}

#[test]
fn a_full_server_is_drained() {
    run(async {
        for kind in KINDS {
            let ground = Ground::single(kind);
            ground.accept_requests(bucket(0), 1..9);
            ground.redis().cmd(&["CONFIG", "SET", "maxmemory", "1mb"]);
            ground.outbox.announce(WORKER, Duration::from_secs(1)).await.unwrap();
            let entries = ground.claim(bucket(0), WORKER, 6).await;
            assert_eq!(entries.len(), 6);
            ground
                .end(bucket(0), WORKER, &[published(&entries[0]), given_up(&entries[3], "why")])
                .await;
            let dead = ground.dead(bucket(0)).await;
            ground.outbox.collect(bucket(0), &dead).await.unwrap();
            let taken =
                ground.outbox.take_over("node/1.2", &[WORKER.to_owned()], &[bucket(0)]).await;
            assert_eq!(requests(&only(taken, bucket(0)).unwrap()), [2, 3, 5, 6]);
            assert_eq!(ground.reclaim(bucket(0), "node/1.2").await, 4);
            let standing = ground.outbox.standing(bucket(0)).await.unwrap();
            assert_eq!((standing.num_waiting, standing.num_dead), (6, 0));
        }
    });
}

#[test]
fn forgotten_scripts_are_loaded_again() {
    run(async {
        for kind in KINDS {
            let ground = Ground::single(kind);
            let wanted: Vec<_> = (0..5).map(|no| (bucket(no), 9)).collect();
            for no in 0..5 {
                ground.accept_requests(bucket(no), 1..3);
                ground.held(bucket(no), WORKER).await;
            }
            ground.redis().cmd(&["SCRIPT", "FLUSH"]);
            for (_, entries) in ground.outbox.claim(WORKER, &wanted).await {
                assert_eq!(requests(&entries.unwrap()), [1, 2]);
            }
        }
    });
}

#[test]
fn a_stream_entry_of_another_form_is_shown_whole_and_a_deleted_one_stops_nothing() {
    let ground = Ground::single(EntryKind::Stream);
    run(async {
        let line = ground.keys(bucket(0)).outbox();
        let forms: [&[&[u8]]; 3] =
            [&[b"*", b"order", b"1"], &[b"*", b"intents", b"a", b"more", b"b"], &[b"*", b"", b""]];
        for form in forms {
            ground.cmd::<String>("XADD", &line, form);
        }
        let claimed = ground.claim(bucket(0), WORKER, 9).await;
        let bytes: Vec<_> = claimed.iter().map(|entry| &entry.bytes[..]).collect();
        assert_eq!(bytes, [&b"order 1"[..], b"intents a more b", b" "]);
        let deleted: u64 = ground.cmd("XDEL", &line, &[&claimed[1].id]);
        assert_eq!(deleted, 1);
        let taken = ground.outbox.take_over("node/1.2", &[WORKER.to_owned()], &[bucket(0)]).await;
        assert_eq!(only(taken, bucket(0)).unwrap().len(), 2);
        assert_eq!(ground.outbox.reclaim(bucket(0), &["node/1.2".to_owned()]).await, Ok(2));
        ground.cmd::<i64>("DEL", &line, &[]);
        ground.acknowledge(bucket(0), WORKER, &claimed).await;
        ground.accept_requests(bucket(0), 3..4);
        assert_eq!(requests(&ground.claim(bucket(0), WORKER, 9).await), [3]);
    });
}
