//! The orphan rescuer, over an outbox and a broker in memory.

use std::time::Duration;

use floodgate::broker::Route;
use floodgate::db::Ledger;
use floodgate::messages::wire;

use crate::support::letters::letter;
use crate::support::relays::{Call, Mishap, Process, When, World};
use crate::support::rig::in_system;
use crate::support::wait::until;

/// Waits until a rescuer has looked so often.
async fn looks(process: &Process, num: u64) {
    let steps = || process.reports("orphan_rescuer")[0].steps;
    let before = steps();
    until("some looks", || async { (steps() >= before + num * 2).then_some(()) }).await;
}

/// A process with everything in hand that the world holds.
async fn holder(world: &World) -> Process {
    let freezes =
        |process: &mut Process| process.mishaps.arm(Call::Publish, When::Before, Mishap::Freeze);
    let process = world.relays_with(freezes);
    until("a hand", || async { process.mishaps.is_frozen().then_some(()) }).await;
    process
}

#[test]
fn the_hands_of_the_living_are_left_alone() {
    in_system(async {
        let world = World::new(2);
        world.queues.set_deaf(true);
        world.accept(1..=20);
        let alive = world.relays();
        until("hands", || async { (world.store.counts().0 == 0).then_some(()) }).await;
        let rescuer = world.rescuer();
        for _ in 0..5 {
            world.outlive_leases(&[&alive]).await;
            looks(&rescuer, 2).await;
        }
        assert_eq!(world.store.counts(), (0, 20));
        assert!(rescuer.metric("floodgate_rescued_entries_total") < 0.5);
        let waiting = || rescuer.metric("floodgate_outbox_waiting");
        until("the count", || async { ((waiting() - 20.0).abs() < 0.5).then_some(()) }).await;
    });
}

#[test]
fn one_rescuer_looks_at_a_time_and_the_next_begins_when_it_stops() {
    in_system(async {
        let world = World::new(1);
        let first = world.rescuer();
        looks(&first, 2).await;
        let second = world.rescuer_with(|of| {
            of.mishaps.arm(Call::Standing, When::Before, Mishap::Unavailable);
        });
        until("some looks", || async {
            (second.reports("orphan_rescuer")[0].steps > 10).then_some(())
        })
        .await;
        assert!(!second.mishaps.have_struck(), "it looked beside the first");
        first.quiet().await;
        until("a look", || async { second.mishaps.have_struck().then_some(()) }).await;
    });
}

#[test]
fn what_could_not_be_given_back_is_given_back_at_the_next_look() {
    in_system(async {
        let world = World::new(3);
        world.accept(1..=30);
        let victim = holder(&world).await;
        victim.kill();
        world.outlive_leases(&[]).await;
        let rescuer = world.rescuer_with(|of| {
            of.mishaps.arm(Call::Standing, When::Before, Mishap::Unavailable);
            of.mishaps.arm(Call::GiveBack, When::Before, Mishap::Unavailable);
            of.mishaps.arm(Call::GiveBack, When::After, Mishap::Unknown);
        });
        until("everything in line", || async { (world.store.counts() == (30, 0)).then_some(()) })
            .await;
        assert!(rescuer.mishaps.have_struck());
        until("nobody in the register", || async {
            world.store.workers().is_empty().then_some(())
        })
        .await;
    });
}

/// What is searched for strays: ten requests that were accepted and are nowhere.
async fn world_with_strays() -> World {
    let mut world = World::new(2);
    world.settings.keeper.stray_after_ms = 10_000;
    world.settings.outbox.envelope_max = 3;
    world.lose(1..=10).await;
    world
}

/// Lets a rescuer look, then time pass.
async fn rest(world: &World, rescuer: &Process, time: Duration) {
    looks(rescuer, 3).await;
    world.clock.advance(time);
    looks(rescuer, 3).await;
}

const LONG: Duration = Duration::from_secs(11);

#[test]
fn strays_are_sent_again_when_nothing_has_moved_for_a_while() {
    in_system(async {
        let world = world_with_strays().await;
        world.ledger.keep_dead_letters(vec![letter(&[4])], 1).await.unwrap();
        let rescuer = world.rescuer();
        looks(&rescuer, 3).await;
        assert!(world.queues.kept().is_empty(), "too early");
        rest(&world, &rescuer, LONG).await;
        until("strays", || async { (world.queues.kept().len() == 9).then_some(()) }).await;
        let kept = world.queues.kept();
        assert!(!kept.contains_key(&4), "a dead letter is an end");
        assert!(kept.values().all(|copies| *copies == 1), "{kept:?}");
        for message in world.queues.messages() {
            assert_eq!(message.route, Route::Orders(0));
            let requests = wire::requests_in(&message.body);
            assert!(requests.len() <= 3, "as envelopes are made");
        }
        assert!((rescuer.metric("floodgate_strays_total") - 9.0).abs() < 0.5);
    });
}

#[test]
fn nothing_is_a_stray_while_anything_is_under_way() {
    in_system(async {
        for obstacle in ["outbox", "orders.0", "retry.1000", "dead"] {
            let world = world_with_strays().await;
            if obstacle == "outbox" {
                world.accept([99]);
            } else {
                world.queues.set_depth(obstacle, 1);
            }
            let rescuer = world.rescuer();
            for _ in 0..3 {
                rest(&world, &rescuer, LONG).await;
            }
            assert!(world.queues.kept().is_empty(), "{obstacle}");
            if obstacle != "outbox" {
                world.queues.set_depth(obstacle, 0);
                rest(&world, &rescuer, LONG).await;
                until("strays", || async { (world.queues.kept().len() == 10).then_some(()) }).await;
            }
        }
    });
}

#[test]
fn what_is_younger_than_the_rest_is_no_stray() {
    in_system(async {
        let world = world_with_strays().await;
        let rescuer = world.rescuer();
        looks(&rescuer, 3).await;
        world.clock.advance(Duration::from_secs(9));
        world.reserve(11..=12).await;
        rest(&world, &rescuer, Duration::from_secs(2)).await;
        until("strays", || async { (world.queues.kept().len() == 10).then_some(()) }).await;
        assert!(!world.queues.kept().contains_key(&11));
    });
}

#[test]
fn a_clean_stop_gives_the_lease_up() {
    in_system(async {
        let world = World::new(1);
        let rescuer = world.rescuer();
        looks(&rescuer, 2).await;
        rescuer.quiet().await;
        assert!(world.holders.lock().is_empty());
    });
}
