//! C04: a relay crashes at every edge of a round. Its successor, or a rescuer and another process,
//! finish what it left: nothing is lost, and what was published twice is one order later.

use crate::support::relays::{Call, Mishap, Process, When, World};
use crate::support::rig::in_system;
use crate::support::wait::until;

/// Every edge, in the order of a round, and whether messages come twice then.
///
/// Crash point `taken_over_not_published`: after a take-over. Crash point `claimed_not_published`:
/// after a claim, before publishing. Crash point `confirmed_not_acknowledged`: after publishing.
/// There is no edge between a dead letter and the end of its entry: the outbox writes the one in
/// the same step in which it removes the other.
const EDGES: [(Call, When, bool); 8] = [
    (Call::TakeOver, When::Before, false),
    (Call::TakeOver, When::After, false),
    (Call::Claim, When::Before, false),
    (Call::Claim, When::After, false),
    (Call::Publish, When::Before, false),
    (Call::Publish, When::After, true),
    (Call::Acknowledge, When::Before, true),
    (Call::Acknowledge, When::After, false),
];

/// Arms an edge. Only a successor takes over, so its predecessor crashes before.
fn arm(process: &Process, call: Call, when: When, mishap: Mishap) {
    if call == Call::TakeOver {
        process.mishaps.arm(Call::Claim, When::After, Mishap::Panic);
    }
    process.mishaps.arm(call, when, mishap);
}

const NUM: u64 = 300;

/// Accepts entries with two among them that can never be published.
fn accept(world: &World) {
    world.accept(1..=NUM / 2);
    for request in [1, 2] {
        world.store.put(world.bucket_of(request), vec![0; 7].into());
    }
    world.accept(NUM / 2 + 1..=NUM);
}

async fn assert_all_out(world: &World, twice: bool, edge: &str) {
    world.until_out(1..=NUM).await;
    let kept = world.queues.kept();
    assert_eq!(kept.values().any(|copies| *copies > 1), twice, "{edge}: {kept:?}");
    assert!(kept.values().all(|copies| *copies <= 2), "{edge}: {kept:?}");
    assert_eq!(world.store.dead().len(), 2, "{edge}: each is one dead letter");
}

#[test]
fn a_worker_that_crashes_at_any_edge_is_followed_by_one_that_finishes() {
    in_system(async {
        for (call, when, twice) in EDGES {
            let edge = format!("{when:?} {call:?}");
            let world = World::new(3);
            accept(&world);
            let dies = |process: &mut Process| arm(process, call, when, Mishap::Panic);
            let process = world.relays_with(dies);
            assert_all_out(&world, twice, &edge).await;
            let panics: u64 = process.reports("outbox_relay").iter().map(|r| r.panics).sum();
            assert_eq!(panics, 1 + u64::from(call == Call::TakeOver), "{edge}");
        }
    });
}

#[test]
fn a_process_that_crashes_at_any_edge_leaves_its_entries_to_a_rescuer() {
    in_system(async {
        for (call, when, twice) in EDGES {
            let edge = format!("{when:?} {call:?}");
            let mut world = World::new(3);
            world.settings.relay.workers = 1;
            accept(&world);
            let dies = |process: &mut Process| arm(process, call, when, Mishap::Freeze);
            let victim = world.relays_with(dies);
            until(&edge, || async { victim.mishaps.is_frozen().then_some(()) }).await;
            victim.kill();
            let heir = world.relays();
            let rescuer = world.rescuer();
            until("the heir to have done what it can", || async {
                (world.store.counts().0 == 0).then_some(())
            })
            .await;
            world.outlive_heartbeats(&[&heir]).await;
            assert_all_out(&world, twice, &edge).await;
            until("a clean register", || async {
                world.store.workers().iter().all(|name| name.starts_with(&*heir.name)).then_some(())
            })
            .await;
            assert!(rescuer.reports("orphan_rescuer").iter().all(|r| r.restarts == 0));
        }
    });
}

/// C22 for relays: each kind of actor loses one step in twenty.
#[test]
fn panics_in_one_step_of_twenty_lose_nothing() {
    in_system(async {
        let mut world = World::new(4);
        // Small rounds: many steps.
        world.settings.relay.claim_max = 4;
        let process = world.relays_with(|process| process.drill(5.0));
        for from in (0..2_000).step_by(100) {
            world.accept(from + 1..=from + 100);
            tokio::task::yield_now().await;
        }
        world.until_out(1..=2_000).await;
        assert!(world.store.dead().is_empty());
        let panics: u64 = process.supervisor.report().iter().map(|report| report.panics).sum();
        assert!(panics > 0, "the drill must have struck");
    });
}

/// A rescuer crashes before it has reclaimed anything.
#[test]
fn a_rescuer_that_crashes_before_it_reclaims_is_followed_by_one_that_does() {
    in_system(async {
        for another_process in [false, true] {
            let mut world = World::new(2);
            world.settings.relay.workers = 1;
            world.accept(1..=50);
            let freezes = |process: &mut Process| {
                process.mishaps.arm(Call::Publish, When::Before, Mishap::Freeze);
            };
            let victim = world.relays_with(freezes);
            until("a hand", || async { victim.mishaps.is_frozen().then_some(()) }).await;
            victim.kill();
            world.outlive_heartbeats(&[]).await;
            let mishap = if another_process { Mishap::Freeze } else { Mishap::Panic };
            let dies =
                |process: &mut Process| process.mishaps.arm(Call::Reclaim, When::Before, mishap);
            let rescuer = world.rescuer_with(dies);
            until("its death", || async { rescuer.mishaps.have_struck().then_some(()) }).await;
            let heir = world.relays();
            let _next = another_process.then(|| {
                rescuer.kill();
                world.rescuer()
            });
            if another_process {
                world.outlive_heartbeats(&[&heir]).await;
            }
            world.until_out(1..=50).await;
            let panics = rescuer.reports("orphan_rescuer")[0].panics;
            assert_eq!(panics, u64::from(!another_process));
        }
    });
}
