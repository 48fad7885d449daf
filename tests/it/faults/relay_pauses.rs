//! C05 and C06: relays that are paused past their heartbeat, and processes that never come back.

use crate::support::relays::{Call, Mishap, Process, When, World};
use crate::support::rig::in_system;
use crate::support::wait::until;

async fn until_frozen(process: &Process) {
    until("the pause", || async { process.mishaps.is_frozen().then_some(()) }).await;
}

/// C05: one worker stops in the middle of a round, wherever that is; what it claimed is reclaimed
/// and published by others; then it wakes up and goes on by itself.
#[test]
fn a_relay_that_was_paused_past_its_heartbeat_does_no_harm_and_goes_on() {
    in_system(async {
        for (call, when) in [
            (Call::Claim, When::Before),
            (Call::Claim, When::After),
            (Call::Publish, When::Before),
            (Call::Publish, When::After),
            (Call::Acknowledge, When::Before),
            (Call::Acknowledge, When::After),
        ] {
            let edge = format!("{when:?} {call:?}");
            let mut world = World::new(2);
            world.settings.relay.workers = 1;
            world.accept(1..=100);
            let pauses = |process: &mut Process| process.mishaps.arm(call, when, Mishap::Freeze);
            let paused = world.relays_with(pauses);
            until_frozen(&paused).await;
            world.outlive_heartbeats(&[]).await;
            let other = world.relays();
            let rescuer = world.rescuer();
            world.until_out(1..=100).await;
            until("no trace of the paused worker", || async {
                let workers = world.store.workers();
                (!workers.iter().any(|name| name.starts_with(&*paused.name))).then_some(())
            })
            .await;
            other.quiet().await;
            rescuer.kill();

            paused.mishaps.thaw();
            world.accept(101..=200);
            world.until_out(1..=200).await;
            let kept = world.queues.kept();
            let copies_max = if (call, when) == (Call::Claim, When::Before) { 1 } else { 2 };
            let old = kept.iter().filter(|(request, _)| **request <= 100);
            assert!(old.clone().all(|(_, copies)| *copies <= copies_max), "{edge}: {kept:?}");
            // What it acknowledged late was another worker's by then.
            let late = !matches!((call, when), (Call::Claim, When::Before))
                && (call, when) != (Call::Acknowledge, When::After);
            assert_eq!(world.store.facts().acknowledged_late > 0, late, "{edge}");
            assert_eq!(paused.reports("outbox_relay")[0].restarts, 0, "{edge}");
        }
    });
}

/// C06: ten starts of processes, each killed with entries in hand; one is left.
#[test]
fn processes_that_never_come_back_leave_nothing_claimed() {
    in_system(async {
        let mut world = World::new(3);
        world.settings.relay.claim_max = 10;
        world.accept(1..=1_000);
        let mut dead = Vec::new();
        for _ in 0..10 {
            let freezes = |process: &mut Process| {
                process.mishaps.arm(Call::Publish, When::Before, Mishap::Freeze);
            };
            let victim = world.relays_with(freezes);
            until_frozen(&victim).await;
            victim.kill();
            dead.push(victim);
        }
        let (_, in_hand) = world.store.counts();
        assert!(in_hand >= 100, "{in_hand}");
        let survivor = world.relays();
        let rescuer = world.rescuer();
        world.outlive_heartbeats(&[&survivor]).await;
        world.until_out(1..=1_000).await;
        until("a clean register", || async {
            let workers = world.store.workers();
            workers.iter().all(|name| name.starts_with(&*survivor.name)).then_some(())
        })
        .await;
        assert!(rescuer.metric("floodgate_rescued_entries_total") + 0.5 > in_hand as f64);
    });
}

/// The server of the heartbeats was away for longer than one lasts.
#[test]
fn a_worker_that_could_not_announce_itself_goes_on() {
    in_system(async {
        let mut world = World::new(2);
        world.settings.relay.workers = 1;
        let _rescuer = world.rescuer();
        let process = world.relays();
        world.accept(1..=50);
        world.until_out(1..=50).await;
        for _ in 0..200 {
            process.mishaps.arm(Call::Announce, When::Before, Mishap::Unavailable);
        }
        world.outlive_heartbeats(&[]).await;
        world.accept(51..=100);
        world.until_out(1..=100).await;
        assert!(process.reports("outbox_relay").iter().all(|r| r.restarts == 0), "no crash");
    });
}

/// As in containers, where every process has the same number.
#[test]
fn two_processes_never_share_the_name_of_a_worker() {
    in_system(async {
        let world = World::new(2);
        let processes = [world.relays(), world.relays()];
        until("a heartbeat of every worker of both", || async {
            let names = world.store.heartbeats();
            let num = processes.len() * world.settings.relay.workers;
            (names.len() == num).then_some(())
        })
        .await;
        assert_ne!(processes[0].name, processes[1].name);
    });
}
