//! C05 and C06: relays that are paused past their lease, and nodes that never come back.

use crate::support::relays::{Call, Mishap, Process, When, World};
use crate::support::rig::in_system;
use crate::support::wait::until;

async fn until_frozen(process: &Process) {
    until("the pause", || async { process.mishaps.is_frozen().then_some(()) }).await;
}

/// C05: one worker stops in the middle of a round, wherever that is; its hand is given back and
/// published by others; then it wakes up.
#[test]
fn a_relay_that_was_paused_past_its_lease_does_not_use_its_hands_again() {
    in_system(async {
        for (call, when) in [
            (Call::Claim, When::Before),
            (Call::Claim, When::After),
            (Call::Publish, When::Before),
            (Call::Publish, When::After),
            (Call::Report, When::Before),
            (Call::Report, When::After),
        ] {
            let edge = format!("{when:?} {call:?}");
            let mut world = World::new(2);
            world.settings.relay.workers = 1;
            world.accept(1..=100);
            let pauses = |process: &mut Process| process.mishaps.arm(call, when, Mishap::Freeze);
            let paused = world.relays_with(pauses);
            until_frozen(&paused).await;
            let before = paused.node.tenure().unwrap().name;
            world.outlive_leases(&[]).await;
            let other = world.relays();
            let _rescuer = world.rescuer();
            world.until_out(1..=100).await;
            until("no trace of the paused node", || async {
                let workers = world.store.workers();
                (!workers.iter().any(|name| name.starts_with(&*before))).then_some(())
            })
            .await;
            other.quiet().await;

            paused.mishaps.thaw();
            let name = || paused.node.tenure().map(|tenure| tenure.name);
            until("another name", || async { name().filter(|name| *name != before) }).await;
            world.accept(101..=200);
            world.until_out(1..=200).await;
            let kept = world.queues.kept();
            // Only what was on its way to the broker before the end may come twice.
            let copies_max = if call == Call::Claim { 1 } else { 2 };
            assert!(kept.values().all(|copies| *copies <= copies_max), "{edge}: {kept:?}");
            // What it still sent under its old name was refused, whatever it was.
            let late = matches!((call, when), (Call::Claim | Call::Report, When::Before));
            assert_eq!(world.store.facts().replaced > 0, late, "{edge}");
            assert_eq!(paused.reports("outbox_relay")[0].restarts, u64::from(late), "{edge}");
        }
    });
}

/// C06: ten starts of processes, each killed with entries in hand; one is left.
#[test]
fn nodes_that_never_come_back_leave_nothing_in_hands() {
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
        world.outlive_leases(&[&survivor]).await;
        world.until_out(1..=1_000).await;
        let node = survivor.node.tenure().unwrap().name;
        until("a clean register", || async {
            let workers = world.store.workers();
            workers.iter().all(|name| name.starts_with(&*node)).then_some(())
        })
        .await;
        assert!(rescuer.metric("floodgate_rescued_entries_total") + 0.5 > in_hand as f64);
    });
}

/// The outbox's server was away for longer than the lease: the node goes on under another name.
#[test]
fn a_node_that_could_not_renew_goes_on_under_another_name() {
    in_system(async {
        let mut world = World::new(2);
        world.settings.relay.workers = 1;
        let process = world.relays();
        let before = until("a name", || async { process.node.tenure() }).await.name;
        world.accept(1..=50);
        world.until_out(1..=50).await;
        for _ in 0..200 {
            process.mishaps.arm(Call::Hold, When::Before, Mishap::Unavailable);
        }
        world.outlive_leases(&[]).await;
        until("another name", || async {
            process.node.tenure().filter(|tenure| tenure.name != before)
        })
        .await;
        world.accept(51..=100);
        world.until_out(1..=100).await;
        assert!(process.reports("outbox_relay").iter().all(|r| r.restarts == 0), "no crash");
    });
}
