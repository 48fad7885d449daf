//! Outbox relays, over an outbox and a broker in memory: what they bring, what they hold, and what
//! they do while broker or outbox fail.

use floodgate::broker::BrokerStatus;
use floodgate::domain::{BucketNo, Phase, SkuNo};
use floodgate::messages::envelope;
use floodgate::redis::scripts::intent;
use floodgate::runtime::clock::Clock;
use floodgate::stock::BucketKey;

use crate::support::relays::{Call, INSTALLATION, Mishap, Process, SKU, When, World};
use crate::support::rig::in_system;
use crate::support::wait::until;

/// Waits until the relays of a process have announced themselves.
async fn until_begun(world: &World, process: &Process) {
    until("a heartbeat", || async {
        let heartbeats = world.store.heartbeats();
        heartbeats.keys().any(|name| name.starts_with(&*process.name)).then_some(())
    })
    .await;
}

/// Waits until the workers have gone around so often.
async fn rounds(process: &Process, num: u64) {
    let steps = || process.reports("outbox_relay").iter().map(|r| r.steps).min().unwrap();
    let before = steps();
    until("some steps", || async { (steps() >= before + num).then_some(()) }).await;
}

#[test]
fn every_entry_becomes_one_message_with_its_bytes() {
    in_system(async {
        let world = World::new(4);
        world.accept(1..=500);
        let process = world.relays();
        world.until_out(1..=500).await;
        assert!(world.queues.kept().values().all(|copies| *copies == 1), "nothing failed");
        for message in world.queues.messages() {
            let opened = envelope::open(&message.headers, &message.body, INSTALLATION).unwrap();
            let request = opened[0].read.as_ref().unwrap().request.get();
            assert_eq!(message.body, intent::pack(&world.intent(request)));
        }
        assert!((process.metric("floodgate_relay_published_total") - 500.0).abs() < 0.5);
        until("empty hands", || async {
            (process.metric("floodgate_relay_in_flight") < 0.5).then_some(())
        })
        .await;
    });
}

#[test]
fn a_worker_holds_no_more_than_it_may() {
    in_system(async {
        let mut world = World::new(3);
        world.settings.relay.claim_max = 8;
        world.settings.relay.confirm_window = 16;
        world.accept(1..=600);
        let _process = world.relays();
        world.until_out(1..=600).await;
        assert!(world.store.facts().claimed_max <= 8, "{:?}", world.store.facts());
        // Two shares of a window at most: of buckets that gave the last time, and of the others.
        assert!(world.queues.batch_max() <= 24, "{}", world.queues.batch_max());
        assert!(world.queues.windows().iter().all(|window| *window == 16));
    });
}

#[test]
fn a_poke_is_heard_before_the_next_look() {
    in_system(async {
        let mut world = World::new(2);
        // Nobody looks by themselves within the time of this test.
        world.settings.relay.poll_min_ms = 3_600_000;
        world.settings.relay.poll_max_ms = 3_600_000;
        let process = world.relays();
        until_begun(&world, &process).await;
        rounds(&process, 2).await;
        world.accept(1..=10);
        for bucket in [0, 1] {
            process.door.poke(BucketKey { sku: SKU, bucket: BucketNo(bucket) });
        }
        world.until_out(1..=10).await;
    });
}

#[test]
fn all_buckets_are_claimed_in_one_exchange_and_new_sales_are_served() {
    in_system(async {
        let world = World::new(200);
        world.accept(1..=2_000);
        let _process = world.relays();
        world.until_out(1..=2_000).await;
        assert_eq!(world.store.facts().buckets_per_claim, 200);
        let later = SkuNo(8);
        world.offer(later, 1, Phase::Open);
        let bytes = intent::pack(&world.intent(3_000));
        world.store.put(BucketKey { sku: later, bucket: BucketNo(0) }, bytes.into());
        world.until_out([3_000]).await;
    });
}

#[test]
fn a_closed_sale_is_served_while_it_holds_anything() {
    in_system(async {
        let world = World::new(1);
        world.accept(1..=100);
        world.offer(SKU, 1, Phase::Closed);
        let _process = world.relays();
        world.until_out(1..=100).await;
        world.accept(101..=110);
        world.until_out(1..=110).await;
    });
}

#[test]
fn while_the_broker_takes_nothing_nothing_is_claimed_and_no_attempt_counts() {
    in_system(async {
        for reach in [BrokerStatus::Down, BrokerStatus::Blocked] {
            let mut world = World::new(2);
            world.settings.relay.attempts_max = 1;
            world.queues.set_reach(reach);
            world.accept(1..=50);
            let process = world.relays();
            until_begun(&world, &process).await;
            rounds(&process, 50).await;
            assert_eq!(world.store.counts(), (50, 0), "{reach:?}");
            world.queues.set_reach(BrokerStatus::Up);
            world.until_out(1..=50).await;
            assert!(world.store.dead().is_empty());
        }
    });
}

#[test]
fn a_broker_that_goes_away_leaves_what_is_in_hand_there() {
    in_system(async {
        let mut world = World::new(1);
        world.settings.relay.attempts_max = 1;
        let frozen = |process: &mut Process| {
            process.mishaps.arm(Call::Publish, When::Before, Mishap::Freeze);
        };
        world.accept(1..=200);
        let process = world.relays_with(frozen);
        until("a round in hand", || async { process.mishaps.is_frozen().then_some(()) }).await;
        world.queues.set_reach(BrokerStatus::Down);
        process.mishaps.thaw();
        let before = world.store.facts().claims;
        rounds(&process, 50).await;
        let (in_line, in_hand) = world.store.counts();
        assert!(in_hand > 0 && in_line + in_hand == 200, "{in_line} {in_hand}");
        // Another worker may have been in the middle of its claim.
        assert!(world.store.facts().claims <= before + 1);
        world.queues.set_reach(BrokerStatus::Up);
        world.until_out(1..=200).await;
        assert!(world.store.dead().is_empty());
    });
}

#[test]
fn what_the_broker_refuses_again_and_again_becomes_a_dead_letter_and_blocks_nobody() {
    in_system(async {
        let mut world = World::new(1);
        world.settings.relay.attempts_max = 3;
        world.queues.refuse(5);
        world.accept(1..=20);
        let process = world.relays();
        // A refusal counts as an attempt where the queue accepted others since.
        let mut next = 100;
        until("a dead letter", || {
            world.accept([next]);
            next += 1;
            let num_dead = world.store.dead().len();
            async move { (num_dead == 1).then_some(()) }
        })
        .await;
        world.until_out(1..=20).await;
        let dead = world.store.dead();
        assert_eq!(envelope::requests_in(&dead[0].bytes)[0].get(), 5);
        assert_eq!(dead[0].reason, "refused in 3 attempts, last: on purpose");
        assert_eq!(dead[0].attempts, 3);
        assert!(process.metric("floodgate_relay_failures_total{kind=\"refused\"}") > 2.5);
        assert!(process.metric("floodgate_relay_failures_total{kind=\"dead\"}") > 0.5);
    });
}

#[test]
fn a_broker_that_refuses_everything_or_answers_nothing_costs_no_attempt() {
    in_system(async {
        for kind in ["refused", "unknown"] {
            let mut world = World::new(1);
            world.settings.relay.attempts_max = 1;
            (1..=30).for_each(|request| world.queues.refuse(request));
            world.queues.set_deaf(kind == "unknown");
            world.accept(1..=30);
            let process = world.relays();
            until("many rounds in vain", || async {
                let metric = format!("floodgate_relay_failures_total{{kind=\"{kind}\"}}");
                (process.metric(&metric) > 300.0).then_some(())
            })
            .await;
            world.queues.accept_all();
            world.until_out(1..=30).await;
            assert!(world.store.dead().is_empty(), "{kind}");
        }
    });
}

/// A round that a lost connection cuts is no attempt, although the queue confirmed others in it.
#[test]
fn an_entry_without_an_answer_is_no_attempt_although_its_queue_confirms_others() {
    in_system(async {
        let mut world = World::new(1);
        world.settings.relay.attempts_max = 1;
        world.queues.never_confirm(6);
        world.accept(1..=20);
        let process = world.relays();
        let mut next = 100;
        until("many rounds without an answer for one", || {
            world.accept([next]);
            next += 1;
            let unknown = process.metric("floodgate_relay_failures_total{kind=\"unknown\"}");
            async move { (unknown > 20.0).then_some(()) }
        })
        .await;
        world.queues.accept_all();
        world.until_out(1..=20).await;
        assert!(world.store.dead().is_empty());
    });
}

#[test]
fn an_intent_that_cannot_be_read_is_a_dead_letter_without_its_neighbours() {
    in_system(async {
        let world = World::new(1);
        let packed = |no| intent::pack(&world.intent(no));
        let mut broken = packed(3);
        broken[19] = 99;
        let torn = packed(5)[..70].to_vec();
        let entry = [packed(1), packed(2), broken.clone(), packed(4), torn.clone()].concat();
        world.store.put(world.bucket_of(1), entry.into());
        let _process = world.relays();
        world.until_out([1, 2, 4]).await;
        let messages = world.queues.messages();
        let opened = envelope::open(&messages[0].headers, &messages[0].body, INSTALLATION).unwrap();
        let read = opened.iter().map(|part| part.read.as_ref().unwrap().request.get());
        assert_eq!((read.collect::<Vec<_>>(), messages.len()), (vec![1, 2, 4], 1));
        let dead = world.store.dead();
        assert_eq!((dead.len(), &dead[0].bytes[..]), (1, &[broken, torn].concat()[..]));
        assert!(dead[0].reason.contains("an unknown version"), "{}", dead[0].reason);
    });
}

#[test]
fn an_entry_that_is_none_becomes_a_dead_letter_at_once() {
    in_system(async {
        let world = World::new(1);
        world.accept(1..=10);
        world.store.put(world.bucket_of(1), vec![1, 2, 3].into());
        world.store.put(world.bucket_of(1), Vec::new().into());
        world.accept(11..=20);
        let _process = world.relays();
        world.until_out(1..=20).await;
        let dead = world.store.dead();
        assert_eq!(dead.len(), 2);
        assert!(dead.iter().all(|letter| letter.attempts == 0 && !letter.reason.is_empty()));
    });
}

#[test]
fn an_outbox_that_fails_is_asked_again_and_loses_nothing() {
    in_system(async {
        for call in [Call::Announce, Call::Claim, Call::TakeOver, Call::Acknowledge] {
            for (when, mishap) in [
                (When::Before, Mishap::Unavailable),
                (When::Before, Mishap::Unknown),
                (When::After, Mishap::Unknown),
            ] {
                let world = World::new(2);
                world.accept(1..=100);
                let fails = |process: &mut Process| {
                    if call == Call::TakeOver {
                        // A claim without an answer makes its worker take over from itself.
                        process.mishaps.arm(Call::Claim, When::After, Mishap::Unknown);
                    }
                    process.mishaps.arm(call, when, mishap);
                };
                let process = world.relays_with(fails);
                world.until_out(1..=100).await;
                assert!(process.mishaps.have_struck(), "{call:?} {when:?} {mishap:?}");
                assert!(process.reports("outbox_relay").iter().all(|r| r.restarts == 0));
                let kept = world.queues.kept();
                assert!(kept.values().all(|copies| *copies == 1), "{call:?} {when:?} {kept:?}");
            }
        }
    });
}

#[test]
fn a_clean_stop_leaves_nothing_behind() {
    in_system(async {
        let world = World::new(3);
        world.queues.set_deaf(true);
        world.accept(1..=100);
        let process = world.relays();
        until("a round in hand", || async { (world.store.counts().1 > 0).then_some(()) }).await;
        process.quiet().await;
        assert_eq!(world.store.counts(), (100, 0), "given back");
        assert!(world.store.workers().is_empty());
        let now = world.clock.now();
        assert!(world.store.heartbeats().values().all(|until| *until <= now), "no heartbeat");
        process.quiet().await;
        world.queues.set_deaf(false);
        let _next = world.relays();
        world.until_out(1..=100).await;
    });
}

#[test]
fn a_stop_in_the_middle_of_a_round_waits_for_it() {
    in_system(async {
        let world = World::new(1);
        world.accept(1..=10);
        let process =
            world.relays_with(|of| of.mishaps.arm(Call::Publish, When::After, Mishap::Freeze));
        until("a round", || async { process.mishaps.is_frozen().then_some(()) }).await;
        let thaws = async {
            tokio::task::yield_now().await;
            process.mishaps.thaw();
        };
        futures_util::future::join(process.quiet(), thaws).await;
        world.until_out(1..=10).await;
        assert!(world.queues.kept().values().all(|copies| *copies == 1), "it was reported");
        assert!(world.store.workers().is_empty());
    });
}
