//! Outbox relays, over an in-memory outbox and broker: what they publish, how much they claim, and
//! how they handle failures of the broker or the outbox.

use floodgate::broker::BrokerStatus;
use floodgate::domain::{BucketKey, BucketNo, Phase, SkuNo};
use floodgate::runtime::clock::Clock;

use crate::support::harness::in_system;
use crate::support::intents::{INTENT_BYTES, pack, reader};
use crate::support::relays::{Call, INSTALLATION, InjectedFault, Process, SKU, Simulation, When};
use crate::support::wait::until;

/// Waits for the first heartbeat of a relay worker of the process.
async fn until_begun(simulation: &Simulation, process: &Process) {
    until("a heartbeat", || async {
        let heartbeats = simulation.store.heartbeats();
        heartbeats.keys().any(|name| name.starts_with(&*process.name)).then_some(())
    })
    .await;
}

/// Waits until every worker has taken `num` more steps.
pub async fn rounds(process: &Process, num: u64) {
    let steps = || process.reports("outbox_relay").iter().map(|r| r.steps).min().unwrap();
    let before = steps();
    until("some steps", || async { (steps() >= before + num).then_some(()) }).await;
}

#[test]
fn every_entry_becomes_one_message_with_its_bytes() {
    in_system(async {
        let simulation = Simulation::new(4);
        simulation.accept(1..=500);
        let process = simulation.relays();
        simulation.until_published(1..=500).await;
        assert!(
            simulation.queues.kept().values().all(|copies| *copies == 1),
            "no message was published twice"
        );
        for message in simulation.queues.messages() {
            let intents = reader(INSTALLATION).decode(&message.headers, &message.body).unwrap();
            let request = intents[0].as_ref().unwrap().request.get();
            assert_eq!(message.body, pack(&simulation.intent(request)));
        }
        assert_eq!(process.metric("floodgate_relay_published_total"), 500);
        until("no entry in flight", || async {
            (process.metric("floodgate_relay_in_flight") == 0).then_some(())
        })
        .await;
    });
}

#[test]
fn a_worker_holds_no_more_than_it_may() {
    in_system(async {
        let mut simulation = Simulation::new(3);
        simulation.settings.relay.claim_max = 8;
        simulation.settings.relay.confirm_window = 16;
        simulation.accept(1..=600);
        let _process = simulation.relays();
        simulation.until_published(1..=600).await;
        assert!(simulation.store.facts().claimed_max <= 8, "{:?}", simulation.store.facts());
        // At most two shares of a window: buckets that had entries at the last claim, and the rest.
        assert!(simulation.queues.batch_max() <= 24, "{}", simulation.queues.batch_max());
        assert!(simulation.queues.windows().iter().all(|window| *window == 16));
    });
}

/// No worker polls on its own within the time of a test.
fn without_polls(buckets: u16) -> Simulation {
    let mut simulation = Simulation::new(buckets);
    simulation.settings.relay.poll_min_ms = 3_600_000;
    simulation.settings.relay.poll_max_ms = 3_600_000;
    simulation
}

#[test]
fn a_notified_worker_polls_at_once() {
    in_system(async {
        let simulation = without_polls(2);
        let process = simulation.relays();
        until_begun(&simulation, &process).await;
        rounds(&process, 2).await;
        simulation.accept(1..=10);
        for bucket in [0, 1] {
            process.relay_handle.notify(BucketKey { sku: SKU, bucket: BucketNo(bucket) });
        }
        simulation.until_published(1..=10).await;
    });
}

#[test]
fn a_worker_that_waits_for_the_broker_takes_no_notification() {
    in_system(async {
        let mut simulation = without_polls(1);
        simulation.settings.relay.workers = 1;
        let process = simulation.relays_with(|process| {
            process.faults.arm(Call::Publish, When::Before, InjectedFault::Freeze);
        });
        let other = simulation.relays_with(|other| {
            other.relay_handle = process.relay_handle.clone();
        });
        rounds(&process, 4).await;
        rounds(&other, 4).await;
        simulation.queues.set_reach(BrokerStatus::Down);
        until("a probe", || async { process.faults.is_frozen().then_some(()) }).await;
        simulation.accept([1]);
        process.relay_handle.notify(simulation.bucket_of(1));
        rounds(&other, 100).await;
        other.kill();
        simulation.queues.set_reach(BrokerStatus::Up);
        process.faults.thaw();
        simulation.until_published([1]).await;
    });
}

#[test]
fn all_buckets_are_claimed_in_one_exchange_and_new_sales_are_served() {
    in_system(async {
        let simulation = Simulation::new(200);
        simulation.accept(1..=2_000);
        let _process = simulation.relays();
        simulation.until_published(1..=2_000).await;
        assert_eq!(simulation.store.facts().buckets_per_claim, 200);
        let later = SkuNo(8);
        simulation.offer(later, 1, Phase::Open);
        let bytes = pack(&simulation.intent(3_000));
        simulation.store.put(BucketKey { sku: later, bucket: BucketNo(0) }, bytes.into());
        simulation.until_published([3_000]).await;
    });
}

#[test]
fn a_closed_sale_is_served_while_it_holds_anything() {
    in_system(async {
        let simulation = Simulation::new(1);
        simulation.accept(1..=100);
        simulation.offer(SKU, 1, Phase::Closed);
        let _process = simulation.relays();
        simulation.until_published(1..=100).await;
        simulation.accept(101..=110);
        simulation.until_published(1..=110).await;
    });
}

#[test]
fn while_the_broker_takes_nothing_nothing_is_claimed_and_no_attempt_counts() {
    in_system(async {
        for reach in [BrokerStatus::Down, BrokerStatus::Blocked] {
            let mut simulation = Simulation::new(2);
            simulation.settings.relay.attempts_max = 1;
            simulation.queues.set_reach(reach);
            simulation.accept(1..=50);
            let process = simulation.relays();
            until_begun(&simulation, &process).await;
            rounds(&process, 50).await;
            assert_eq!(simulation.store.counts(), (50, 0), "{reach:?}");
            simulation.queues.set_reach(BrokerStatus::Up);
            simulation.until_published(1..=50).await;
            assert!(simulation.queues.dead().is_empty());
        }
    });
}

#[test]
fn a_lost_broker_leaves_claimed_entries_claimed() {
    in_system(async {
        let mut simulation = Simulation::new(1);
        simulation.settings.relay.attempts_max = 1;
        let freeze = |process: &mut Process| {
            process.faults.arm(Call::Publish, When::Before, InjectedFault::Freeze);
        };
        simulation.accept(1..=200);
        let process = simulation.relays_with(freeze);
        until("a claimed batch", || async { process.faults.is_frozen().then_some(()) }).await;
        simulation.queues.set_reach(BrokerStatus::Down);
        process.faults.thaw();
        let before = simulation.store.facts().claims;
        rounds(&process, 50).await;
        let (waiting, claimed) = simulation.store.counts();
        assert!(claimed > 0 && waiting + claimed == 200, "{waiting} {claimed}");
        // Another worker may have had a claim in progress.
        assert!(simulation.store.facts().claims <= before + 1);
        simulation.queues.set_reach(BrokerStatus::Up);
        simulation.until_published(1..=200).await;
        assert!(simulation.queues.dead().is_empty());
    });
}

#[test]
fn a_broker_that_refuses_everything_or_answers_nothing_costs_no_attempt() {
    in_system(async {
        for kind in ["refused", "unknown"] {
            let mut simulation = Simulation::new(1);
            simulation.settings.relay.attempts_max = 1;
            (1..=30).for_each(|request| simulation.queues.refuse(request));
            simulation.queues.set_refusing(kind == "unknown");
            simulation.accept(1..=30);
            let process = simulation.relays();
            until("many failed rounds", || async {
                let metric = format!("floodgate_relay_failures_total{{kind=\"{kind}\"}}");
                (process.metric(&metric) > 300).then_some(())
            })
            .await;
            simulation.queues.accept_all();
            simulation.until_published(1..=30).await;
            assert!(simulation.queues.dead().is_empty(), "{kind}");
        }
    });
}

/// A round that a lost connection interrupts counts no attempt, although the queue confirmed other
/// messages of the round.
#[test]
fn an_entry_without_an_answer_is_no_attempt_although_its_queue_confirms_others() {
    in_system(async {
        let mut simulation = Simulation::new(1);
        simulation.settings.relay.attempts_max = 1;
        simulation.queues.never_confirm(6);
        simulation.accept(1..=20);
        let process = simulation.relays();
        let mut next = 100;
        until("many rounds without a confirm of one entry", || {
            simulation.accept([next]);
            next += 1;
            let unknown = process.metric("floodgate_relay_failures_total{kind=\"unknown\"}");
            async move { (unknown > 20).then_some(()) }
        })
        .await;
        simulation.queues.accept_all();
        simulation.until_published(1..=20).await;
        assert!(simulation.queues.dead().is_empty());
    });
}

/// The order consumer separates what it cannot read.
#[test]
fn an_unreadable_entry_is_published_as_it_is() {
    in_system(async {
        let simulation = Simulation::new(1);
        let packed = |no| pack(&simulation.intent(no));
        let mut broken = packed(2);
        broken[22] = 99;
        let mixed = [packed(1), broken, packed(3)].concat();
        for entry in [&mixed[..], &[1, 2, 3], &[]] {
            simulation.store.put(simulation.bucket_of(1), entry.to_vec().into());
        }
        let _process = simulation.relays();
        simulation.until_published([1, 3]).await;
        let messages = simulation.queues.messages();
        let mut bodies: Vec<_> = messages.iter().map(|message| &message.body[..]).collect();
        bodies.sort_by_key(|body| body.len());
        let expected: [&[u8]; 3] = [&[], &[1, 2, 3], &mixed];
        assert_eq!(bodies, expected);
        for message in messages.iter().filter(|message| message.body.len() < INTENT_BYTES) {
            assert!(message.headers.message_id.starts_with("nameless-"), "{message:?}");
        }
    });
}

#[test]
fn an_outbox_that_fails_is_retried_and_loses_nothing() {
    in_system(async {
        for call in [Call::Announce, Call::Claim, Call::TakeOver, Call::Acknowledge] {
            for (when, fault) in [
                (When::Before, InjectedFault::Unavailable),
                (When::Before, InjectedFault::Unknown),
                (When::After, InjectedFault::Unknown),
            ] {
                let simulation = Simulation::new(2);
                simulation.accept(1..=100);
                let inject = |process: &mut Process| {
                    if call == Call::TakeOver {
                        // After a claim without an answer, a worker takes over its own entries.
                        process.faults.arm(Call::Claim, When::After, InjectedFault::Unknown);
                    }
                    process.faults.arm(call, when, fault);
                };
                let process = simulation.relays_with(inject);
                simulation.until_published(1..=100).await;
                assert!(process.faults.all_fired(), "{call:?} {when:?} {fault:?}");
                assert!(process.reports("outbox_relay").iter().all(|r| r.restarts == 0));
                let kept = simulation.queues.kept();
                assert!(kept.values().all(|copies| *copies == 1), "{call:?} {when:?} {kept:?}");
            }
        }
    });
}

#[test]
fn a_clean_stop_leaves_nothing_behind() {
    in_system(async {
        let simulation = Simulation::new(3);
        simulation.queues.set_refusing(true);
        simulation.accept(1..=100);
        let process = simulation.relays();
        until("a claimed batch", || async { (simulation.store.counts().1 > 0).then_some(()) })
            .await;
        process.quiet().await;
        assert_eq!(simulation.store.counts(), (100, 0), "every entry was given back");
        assert!(simulation.store.workers().is_empty());
        let now = simulation.clock.now();
        assert!(
            simulation.store.heartbeats().values().all(|until| *until <= now),
            "every heartbeat has expired"
        );
        process.quiet().await;
        simulation.queues.set_refusing(false);
        let _next = simulation.relays();
        simulation.until_published(1..=100).await;
    });
}

#[test]
fn a_stop_in_the_middle_of_a_round_waits_for_it() {
    in_system(async {
        let simulation = Simulation::new(1);
        simulation.accept(1..=10);
        let process = simulation.relays_with(|process| {
            process.faults.arm(Call::Publish, When::After, InjectedFault::Freeze);
        });
        until("a published batch", || async { process.faults.is_frozen().then_some(()) }).await;
        let thaw = async {
            tokio::task::yield_now().await;
            process.faults.thaw();
        };
        futures_util::future::join(process.quiet(), thaw).await;
        simulation.until_published(1..=10).await;
        assert!(
            simulation.queues.kept().values().all(|copies| *copies == 1),
            "the round was acknowledged"
        );
        assert!(simulation.store.workers().is_empty());
    });
}
