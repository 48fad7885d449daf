//! Lost answers, late commands and server crashes.

use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::servers::redis::AOF_ALWAYS;

use super::*;

const KINDS: [OutboxKind; 2] = [OutboxKind::List, OutboxKind::Stream];

const WORKER: &str = "node/1.1";

/// A worker whose connection passes through a fault proxy.
struct ProxiedWorker {
    fixture: Fixture,
    proxy: FaultProxy,
    outbox: Arc<dyn Outbox>,
}

impl ProxiedWorker {
    /// Accepts requests 1 to 6 and claims 1 to 3.
    async fn with_claims(kind: OutboxKind) -> (Self, Vec<OutboxEntry>) {
        let fixture = Fixture::single(kind);
        let proxy = FaultProxy::start(fixture.redis().addr());
        let url = format!("redis://{}", proxy.addr());
        let outbox = open(kind, &url, &fixture.namespace);
        fixture.accept_requests(bucket(0), 1..7);
        let entries = claim(outbox.as_ref(), bucket(0), WORKER, 3).await.unwrap();
        (Self { fixture, proxy, outbox }, entries)
    }

    async fn claim(&self) -> Result<Vec<OutboxEntry>, Error> {
        claim(self.outbox.as_ref(), bucket(0), WORKER, 2).await
    }

    /// Takes the entries over for a successor and returns their requests.
    async fn take_over(&self) -> Vec<u64> {
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
            let (worker, _) = ProxiedWorker::with_claims(kind).await;
            worker.proxy.cut_reply("EVALSHA");
            assert_unknown(&worker.claim().await);
            assert_eq!(worker.proxy.cuts(), 1);
            assert_eq!(worker.take_over().await, [1, 2, 3, 4, 5], "{kind:?}");
        }
    });
}

#[test]
fn a_claim_that_never_arrived_has_moved_nothing() {
    run(async {
        for kind in KINDS {
            let (worker, _) = ProxiedWorker::with_claims(kind).await;
            worker.proxy.cut_request("EVALSHA");
            assert_unknown(&worker.claim().await);
            assert_eq!(worker.take_over().await, [1, 2, 3], "{kind:?}");
        }
    });
}

/// A claim that Redis runs after the worker timed out belongs to a worker without heartbeat.
#[test]
fn a_claim_that_arrives_late_is_reclaimed() {
    run(async {
        for kind in KINDS {
            let (worker, _) = ProxiedWorker::with_claims(kind).await;
            let url = format!("redis://{}", worker.proxy.addr());
            let namespace = &worker.fixture.namespace;
            let short_timeout_options = open_with_timeout(kind, &url, namespace, 300);
            held(short_timeout_options.as_ref(), bucket(0), WORKER).await.unwrap();
            worker.proxy.set(Mode::Hold(None));
            assert_unknown(&claim(short_timeout_options.as_ref(), bucket(0), WORKER, 2).await);
            let direct = &worker.fixture.outbox;
            let predecessors = [WORKER.to_owned()];
            let taken = direct.take_over("node/1.2", &predecessors, &[bucket(0)]).await;
            assert_eq!(requests(&only(taken, bucket(0)).unwrap()), [1, 2, 3]);
            worker.proxy.heal();
            until("the late claim to run", async || {
                let status = direct.status(bucket(0)).await.unwrap();
                status.claimed.contains(&(WORKER.to_owned(), 2)).then_some(())
            })
            .await;
            assert_eq!(worker.fixture.reclaim(bucket(0), WORKER).await, 2);
            let rest = worker.fixture.claim(bucket(0), "node/1.2", 9).await;
            assert_eq!(requests(&rest), [4, 5, 6], "{kind:?}");
        }
    });
}

#[test]
fn an_acknowledgement_without_an_answer_is_repeated_without_harm() {
    run(async {
        for kind in KINDS {
            for arrives in [false, true] {
                let (worker, entries) = ProxiedWorker::with_claims(kind).await;
                if arrives {
                    worker.proxy.cut_reply("EVALSHA");
                } else {
                    worker.proxy.cut_request("EVALSHA");
                }
                let (outbox, ended) = (worker.outbox.as_ref(), &entries[..2]);
                assert_unknown(&acknowledge(outbox, bucket(0), WORKER, ended).await);
                until("an answer", async || {
                    acknowledge(outbox, bucket(0), WORKER, ended).await.ok()
                })
                .await;
                let held = worker.fixture.held(bucket(0), WORKER).await;
                assert_eq!(requests(&held), [3], "{kind:?}");
            }
        }
    });
}

#[test]
fn without_a_connection_nothing_is_claimed_and_nothing_is_unknown() {
    run(async {
        for kind in KINDS {
            let (worker, entries) = ProxiedWorker::with_claims(kind).await;
            worker.proxy.set(Mode::Reset);
            let refused = |error: &Error| matches!(error, Error::Unavailable { .. });
            until("the reset to be noticed", async || {
                worker.claim().await.is_err_and(|error| refused(&error)).then_some(())
            })
            .await;
            // The first claim may have reached Redis before the reset.
            let claimed = requests(&worker.fixture.held(bucket(0), WORKER).await);
            assert!(worker.claim().await.is_err_and(|error| refused(&error)));
            let outcome = acknowledge(worker.outbox.as_ref(), bucket(0), WORKER, &entries).await;
            assert!(outcome.is_err_and(|error| refused(&error)));
            // Without an answer from Redis no worker is reported as silent.
            let names = BTreeSet::from([WORKER.to_owned()]);
            assert_eq!(worker.outbox.silent(&names).await, BTreeSet::new());
            worker.proxy.heal();
            assert_eq!(worker.take_over().await, claimed);
        }
    });
}

#[test]
fn a_killed_server_that_keeps_all_it_confirmed_keeps_every_claim() {
    run(async {
        for kind in KINDS {
            let fixture = Fixture::with(kind, Redis::start_with(AOF_ALWAYS));
            fixture.accept_requests(bucket(0), 1..9);
            let first = fixture.claim(bucket(0), "node/1.1", 4).await;
            let ended = [first[1].clone(), first[3].clone()];
            fixture.acknowledge(bucket(0), "node/1.1", &ended).await;
            fixture.claim(bucket(0), "node/2.1", 2).await;
            let status = fixture.outbox.status(bucket(0)).await.unwrap();

            fixture.redis().kill();
            fixture.redis().restart();
            let again = until("the server to restart", async || {
                fixture.outbox.status(bucket(0)).await.ok()
            });
            assert_eq!(again.await, status, "{kind:?}");
            assert_eq!(requests(&fixture.claim(bucket(0), "node/1.1", 1).await), [7]);
            assert_eq!(requests(&fixture.held(bucket(0), "node/1.1").await), [1, 3, 7]);
            assert_eq!(requests(&fixture.held(bucket(0), "node/2.1").await), [5, 6]);
        }
    });
}

#[test]
fn a_server_that_comes_back_empty_is_served() {
    run(async {
        for kind in KINDS {
            let fixture = Fixture::single(kind);
            fixture.accept_requests(bucket(0), 1..4);
            let entries = fixture.claim(bucket(0), WORKER, 9).await;
            fixture.redis().cmd(&["FLUSHALL"]);
            fixture.acknowledge(bucket(0), WORKER, &entries).await;
            fixture.accept_requests(bucket(0), 4..5);
            assert_eq!(requests(&fixture.claim(bucket(0), WORKER, 9).await), [4]);
        }
    });
}

#[test]
fn a_full_server_is_drained() {
    run(async {
        for kind in KINDS {
            let fixture = Fixture::single(kind);
            fixture.accept_requests(bucket(0), 1..9);
            fixture.redis().cmd(&["CONFIG", "SET", "maxmemory", "1mb"]);
            fixture.outbox.renew_heartbeat(WORKER, Duration::from_secs(1)).await.unwrap();
            let entries = fixture.claim(bucket(0), WORKER, 6).await;
            assert_eq!(entries.len(), 6);
            let ended = [entries[0].clone(), entries[3].clone()];
            fixture.acknowledge(bucket(0), WORKER, &ended).await;
            let taken =
                fixture.outbox.take_over("node/1.2", &[WORKER.to_owned()], &[bucket(0)]).await;
            assert_eq!(requests(&only(taken, bucket(0)).unwrap()), [2, 3, 5, 6]);
            assert_eq!(fixture.reclaim(bucket(0), "node/1.2").await, 4);
            assert_eq!(fixture.outbox.status(bucket(0)).await.unwrap().num_waiting, 6);
        }
    });
}

#[test]
fn forgotten_scripts_are_loaded_again() {
    run(async {
        for kind in KINDS {
            let fixture = Fixture::single(kind);
            let wanted: Vec<_> = (0..5).map(|no| (bucket(no), 9)).collect();
            for no in 0..5 {
                fixture.accept_requests(bucket(no), 1..3);
                fixture.held(bucket(no), WORKER).await;
            }
            fixture.redis().cmd(&["SCRIPT", "FLUSH"]);
            for (_, entries) in fixture.outbox.claim(WORKER, &wanted).await {
                assert_eq!(requests(&entries.unwrap()), [1, 2]);
            }
        }
    });
}

#[test]
fn a_foreign_stream_entry_is_shown_whole_and_a_deleted_one_stops_nothing() {
    let fixture = Fixture::single(OutboxKind::Stream);
    run(async {
        let outbox_key = fixture.keys(bucket(0)).outbox();
        let forms: [&[&[u8]]; 3] =
            [&[b"*", b"order", b"1"], &[b"*", b"intents", b"a", b"more", b"b"], &[b"*", b"", b""]];
        for form in forms {
            fixture.cmd::<String>("XADD", &outbox_key, form);
        }
        let claimed = fixture.claim(bucket(0), WORKER, 9).await;
        let bytes: Vec<_> = claimed.iter().map(|entry| &entry.bytes[..]).collect();
        assert_eq!(bytes, [&b"order 1"[..], b"intents a more b", b" "]);
        let deleted: u64 = fixture.cmd("XDEL", &outbox_key, &[&claimed[1].id]);
        assert_eq!(deleted, 1);
        let taken = fixture.outbox.take_over("node/1.2", &[WORKER.to_owned()], &[bucket(0)]).await;
        assert_eq!(only(taken, bucket(0)).unwrap().len(), 2);
        assert_eq!(fixture.outbox.reclaim(bucket(0), &["node/1.2".to_owned()]).await, Ok(2));
        fixture.cmd::<i64>("DEL", &outbox_key, &[]);
        fixture.acknowledge(bucket(0), WORKER, &claimed).await;
        fixture.accept_requests(bucket(0), 3..4);
        assert_eq!(requests(&fixture.claim(bucket(0), WORKER, 9).await), [3]);
    });
}
