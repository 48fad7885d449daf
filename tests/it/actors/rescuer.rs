//! The orphan rescuer, over an outbox and a broker in memory.

use std::time::Duration;

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
fn what_workers_hold_that_announce_themselves_is_left_alone() {
    in_system(async {
        let world = World::new(2);
        world.queues.set_deaf(true);
        world.accept(1..=20);
        let alive = world.relays();
        until("hands", || async { (world.store.counts().0 == 0).then_some(()) }).await;
        let rescuer = world.rescuer();
        for _ in 0..5 {
            world.outlive_heartbeats(&[&alive]).await;
            looks(&rescuer, 2).await;
        }
        assert_eq!(world.store.counts(), (0, 20));
        assert!(rescuer.metric("floodgate_rescued_entries_total") < 0.5);
        let waiting = || rescuer.metric("floodgate_outbox_waiting");
        until("the count", || async { ((waiting() - 20.0).abs() < 0.5).then_some(()) }).await;
    });
}

#[test]
fn two_rescuers_at_once_lose_nothing() {
    in_system(async {
        let world = World::new(3);
        world.accept(1..=100);
        let victim = holder(&world).await;
        victim.kill();
        world.outlive_heartbeats(&[]).await;
        let rescuers = [world.rescuer(), world.rescuer()];
        until("everything waits", || async { (world.store.counts() == (100, 0)).then_some(()) })
            .await;
        let _heir = world.relays();
        world.until_out(1..=100).await;
        assert!(world.queues.kept().values().all(|copies| *copies == 1));
        assert!(rescuers.iter().all(|one| one.reports("orphan_rescuer")[0].restarts == 0));
    });
}

#[test]
fn what_could_not_be_reclaimed_is_reclaimed_at_the_next_look() {
    in_system(async {
        let world = World::new(3);
        world.accept(1..=30);
        let victim = holder(&world).await;
        victim.kill();
        world.outlive_heartbeats(&[]).await;
        let rescuer = world.rescuer_with(|of| {
            of.mishaps.arm(Call::Standing, When::Before, Mishap::Unavailable);
            of.mishaps.arm(Call::Reclaim, When::Before, Mishap::Unavailable);
            of.mishaps.arm(Call::Reclaim, When::After, Mishap::Unknown);
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

#[test]
fn a_rescuer_whose_look_hangs_is_replaced() {
    in_system(async {
        let world = World::new(1);
        world.accept(1..=5);
        world.store.claim_all("gone/0");
        let rescuer = world.rescuer_with(|of| {
            of.mishaps.arm(Call::Standing, When::Before, Mishap::Freeze);
        });
        until("a look that hangs", || async { rescuer.mishaps.is_frozen().then_some(()) }).await;
        until("a stall", || async {
            world.clock.advance(Duration::from_secs(1));
            (rescuer.reports("orphan_rescuer")[0].stalls == 1).then_some(())
        })
        .await;
        rescuer.mishaps.thaw();
        until("everything waits", || async { (world.store.counts() == (5, 0)).then_some(()) })
            .await;
    });
}

#[test]
fn a_clean_stop_waits_for_the_look_under_way() {
    in_system(async {
        let world = World::new(1);
        let rescuer = world.rescuer_with(|of| {
            of.mishaps.arm(Call::Standing, When::Before, Mishap::Freeze);
        });
        until("a look", || async { rescuer.mishaps.is_frozen().then_some(()) }).await;
        let thaws = async {
            tokio::task::yield_now().await;
            rescuer.mishaps.thaw();
        };
        futures_util::future::join(rescuer.quiet(), thaws).await;
        let steps = rescuer.reports("orphan_rescuer")[0].steps;
        rescuer.quiet().await;
        assert!(
            rescuer.reports("orphan_rescuer")[0].steps <= steps + 2,
            "nothing more is looked at"
        );
    });
}
