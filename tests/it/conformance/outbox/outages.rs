//! Answers that get lost, and servers that die.

use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::servers::redis::AOF_ALWAYS;
use crate::support::wait::until;

use super::*;

const KINDS: [Kind; 2] = [Kind::List, Kind::Stream];

/// A worker behind a network that breaks.
struct Broken {
    ground: Ground,
    proxy: FaultProxy,
    outbox: Arc<dyn Outbox>,
    worker: Worker,
}

impl Broken {
    /// Requests 1 to 6 are accepted, 1 to 3 are in hand.
    async fn holding(kind: Kind) -> (Self, Hand) {
        let ground = Ground::single(kind);
        let proxy = FaultProxy::start(ground.redis().addr());
        let url = format!("redis://{}", proxy.addr());
        let outbox = open(kind, &url, &ground.namespace, &ground.clock);
        let worker = worker("node/1", 1);
        ground.accept_requests(bucket(0), 1..7);
        let entries = claim(outbox.as_ref(), bucket(0), &worker, 3).await.unwrap();
        (Self { ground, proxy, outbox, worker }, Hand { bucket: bucket(0), entries })
    }

    async fn claim(&self) -> Result<Vec<Entry>, Error> {
        claim(self.outbox.as_ref(), bucket(0), &self.worker, 2).await
    }

    async fn report(&self, hand: &Hand, fate: &Fate) -> Result<(), Error> {
        let fates = vec![fate.clone(); hand.entries.len()];
        report(self.outbox.as_ref(), &self.worker, hand.clone(), fates).await
    }

    /// Looks until somebody answers.
    async fn look(&self) -> Vec<Entry> {
        let look = || self.outbox.in_hand(bucket(0), &self.worker);
        until("an answer", async || look().await.ok()).await.entries
    }
}

fn assert_unknown<T: std::fmt::Debug>(outcome: &Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
}

#[test]
fn a_claim_whose_answer_was_lost_is_found_in_the_hand() {
    run(async {
        for kind in KINDS {
            let (broken, hand) = Broken::holding(kind).await;
            broken.proxy.cut_reply("EVALSHA");
            assert_unknown(&broken.claim().await);
            assert_eq!(broken.proxy.cuts(), 1);
            // Nothing more is claimed before somebody has looked.
            assert_unknown(&broken.claim().await);
            let found = broken.look().await;
            assert_eq!(requests(&found), [1, 2, 3, 4, 5], "{kind:?}");
            assert_eq!(found[..3], hand.entries);
            assert_eq!(requests(&broken.claim().await.unwrap()), [6]);
        }
    });
}

#[test]
fn a_claim_that_never_arrived_has_moved_nothing() {
    run(async {
        for kind in KINDS {
            let (broken, hand) = Broken::holding(kind).await;
            broken.proxy.cut_request("EVALSHA");
            assert_unknown(&broken.claim().await);
            assert_eq!(broken.look().await, hand.entries);
            assert_eq!(requests(&broken.claim().await.unwrap()), [4, 5]);
        }
    });
}

#[test]
fn a_life_whose_first_claim_got_no_answer_begins_again() {
    run(async {
        for kind in KINDS {
            let (mut broken, _) = Broken::holding(kind).await;
            broken.worker.life = 2;
            broken.proxy.cut_reply("EVALSHA");
            assert_unknown(&broken.claim().await);
            // It begins once more, and is told all that it has.
            let found = broken.claim().await.unwrap();
            assert_eq!(requests(&found), [1, 2, 3, 4, 5, 6]);
            assert_eq!(broken.look().await, found);
        }
    });
}

#[test]
fn a_report_whose_answer_was_lost_was_made_once() {
    run(async {
        for kind in KINDS {
            for fate in [Fate::Published, Fate::Failed, dead_of("why")] {
                let (broken, hand) = Broken::holding(kind).await;
                broken.proxy.cut_reply("EVALSHA");
                assert_unknown(&broken.report(&hand, &fate).await);
                let found = broken.look().await;
                let stays = fate == Fate::Failed;
                assert_eq!(requests(&found), if stays { vec![1, 2, 3] } else { Vec::new() });
                assert!(attempts(&found).iter().all(|attempts| *attempts == 1));
                let dead = broken.ground.dead(bucket(0)).await.len();
                assert_eq!(dead, if matches!(fate, Fate::Dead { .. }) { 3 } else { 0 });
                if !stays {
                    // A repeat does no more, whatever has come into the hand since.
                    broken.claim().await.unwrap();
                    assert_unknown(&broken.report(&hand, &fate).await);
                    assert_eq!(requests(&broken.look().await), [4, 5]);
                    assert_eq!(broken.ground.dead(bucket(0)).await.len(), dead);
                }
            }
        }
    });
}

#[test]
fn a_report_that_arrives_after_its_worker_gave_up_waiting_does_no_harm() {
    run(async {
        for kind in KINDS {
            let (broken, hand) = Broken::holding(kind).await;
            let url = format!("redis://{}", broken.proxy.addr());
            let (namespace, clock) = (&broken.ground.namespace, &broken.ground.clock);
            let hasty = open_patient(kind, &url, namespace, clock, 300);
            assert_eq!(hasty.in_hand(bucket(0), &broken.worker).await.unwrap(), hand);
            broken.proxy.set(Mode::Hold(None));
            let fates = vec![Fate::Published; 3];
            let late = report(hasty.as_ref(), &broken.worker, hand.clone(), fates).await;
            assert_unknown(&late);
            // Meanwhile the hand is reported over another way, and fills with as many others.
            let elsewhere = &broken.ground.outbox;
            let again = elsewhere.in_hand(bucket(0), &broken.worker).await.unwrap();
            let fates = vec![Fate::Published; 3];
            report(elsewhere.as_ref(), &broken.worker, again, fates).await.unwrap();
            let others = claim(elsewhere.as_ref(), bucket(0), &broken.worker, 3).await.unwrap();
            assert_eq!(requests(&others), [4, 5, 6]);
            let calls = || broken.ground.redis().info("cmdstat_evalsha");
            let before = calls();
            broken.proxy.heal();
            until("the late report", async || (calls() != before).then_some(())).await;
            let found = elsewhere.in_hand(bucket(0), &broken.worker).await.unwrap();
            assert_eq!(found.entries, others, "{kind:?}");
        }
    });
}

#[test]
fn without_a_connection_nothing_is_claimed_and_nothing_is_in_doubt() {
    run(async {
        for kind in KINDS {
            let (broken, hand) = Broken::holding(kind).await;
            broken.proxy.set(Mode::Reset);
            let refused = |error: &Error| matches!(error, Error::Unavailable { .. });
            until("a certain refusal", async || {
                let looked = broken.outbox.in_hand(bucket(0), &broken.worker).await;
                looked.is_err_and(|error| refused(&error)).then_some(())
            })
            .await;
            for outcome in broken.outbox.claim(&broken.worker, &[(bucket(8), 1)]).await {
                assert!(outcome.1.is_err_and(|error| refused(&error)));
            }
            let outcome = broken.report(&hand, &Fate::Published).await;
            assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
            broken.proxy.heal();
            assert_eq!(broken.look().await, hand.entries);
        }
    });
}

#[test]
fn a_killed_server_that_keeps_all_it_confirmed_keeps_every_hand() {
    run(async {
        for kind in KINDS {
            let ground = Ground::with(kind, Redis::start_with(AOF_ALWAYS));
            ground.accept_requests(bucket(0), 1..9);
            let (one, two) = (worker("node/1", 1), worker("node/2", 1));
            let first = ground.claim(bucket(0), &one, 4).await;
            let hand = Hand { bucket: bucket(0), entries: first };
            let fates = vec![Fate::Failed, Fate::Published, Fate::Kept, dead_of("why")];
            ground.report(&one, hand, fates).await.unwrap();
            let second = ground.claim(bucket(0), &two, 2).await;
            let first = ground.hand(bucket(0), &one).await.entries;
            let standing = ground.outbox.standing(bucket(0)).await.unwrap();
            let dead = ground.dead(bucket(0)).await;

            ground.redis().kill();
            ground.redis().restart();
            let again = until("the server", async || ground.outbox.standing(bucket(0)).await.ok());
            assert_eq!(again.await, standing, "{kind:?}");
            assert_eq!(ground.dead(bucket(0)).await, dead);
            // The lives go on where they were.
            assert_eq!(requests(&ground.claim(bucket(0), &one, 1).await), [7]);
            assert_eq!(ground.hand(bucket(0), &two).await.entries, second);
            let hand = ground.hand(bucket(0), &one).await;
            assert_eq!(hand.entries[..2], first);
            assert_eq!(
                (requests(&hand.entries), attempts(&hand.entries)),
                (vec![1, 3, 7], vec![1, 0, 0])
            );
            let earlier = worker("node/1", 0);
            let refused = ground.elsewhere().in_hand(bucket(0), &earlier).await;
            assert_eq!(refused, Err(replaced(&earlier)));
        }
    });
}

#[test]
fn a_server_that_comes_back_empty_is_noticed_at_once() {
    run(async {
        for kind in KINDS {
            let ground = Ground::single(kind);
            ground.accept_requests(bucket(0), 1..4);
            let one = worker("node/1", 1);
            let entries = ground.claim(bucket(0), &one, 9).await;
            let hand = Hand { bucket: bucket(0), entries };
            ground.redis().cmd(&["FLUSHALL"]);
            let outcome = ground.report(&one, hand, vec![Fate::Published; 3]).await;
            assert_eq!(outcome, Err(replaced(&one)), "its life is not on record");
            let two = worker("node/1", 2);
            assert_eq!(ground.hand(bucket(0), &two).await.entries, []);
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
            let one = worker("node/1", 1);
            let entries = ground.claim(bucket(0), &one, 6).await;
            assert_eq!(entries.len(), 6);
            let fates = vec![
                Fate::Published,
                Fate::Kept,
                Fate::Failed,
                dead_of("why"),
                Fate::Published,
                Fate::Failed,
            ];
            let hand = Hand { bucket: bucket(0), entries };
            ground.report(&one, hand, fates).await.unwrap();
            let dead = ground.dead(bucket(0)).await;
            ground.outbox.collect(bucket(0), &dead).await.unwrap();
            assert_eq!(ground.outbox.give_back(bucket(0), "node/1").await, Ok(3));
            let standing = ground.outbox.standing(bucket(0)).await.unwrap();
            assert_eq!((standing.num_waiting, standing.num_dead), (5, 0));
        }
    });
}

#[test]
fn forgotten_scripts_are_loaded_again() {
    run(async {
        for kind in KINDS {
            let ground = Ground::single(kind);
            let worker = worker("node/1", 1);
            let wanted: Vec<_> = (0..5).map(|no| (bucket(no), 9)).collect();
            for no in 0..5 {
                ground.accept_requests(bucket(no), 1..3);
                ground.hand(bucket(no), &worker).await;
            }
            ground.redis().cmd(&["SCRIPT", "FLUSH"]);
            for (_, entries) in ground.outbox.claim(&worker, &wanted).await {
                assert_eq!(requests(&entries.unwrap()), [1, 2]);
            }
        }
    });
}
