//! C04: a relay crashes before and after every call of a round. Its successor, or a rescuer and
//! another process, complete its entries: none is lost, and each is published at most twice.

use floodgate::messages::envelope::BODY_BYTES_MAX;

use crate::support::harness::in_system;
use crate::support::relays::{Call, InjectedFault, Process, Simulation, When};
use crate::support::wait::until;

/// Every edge, in the order of a round, and whether messages are then published twice.
///
/// Crash point `taken_over_not_published`: after a take-over. Crash point `claimed_not_published`:
/// after a claim, before publishing. Crash point `confirmed_not_acknowledged`: after publishing.
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

/// Arms a fault at an edge. Only a successor takes over, so its predecessor crashes first.
fn arm(process: &Process, call: Call, when: When, fault: InjectedFault) {
    if call == Call::TakeOver {
        process.faults.arm(Call::Claim, When::After, InjectedFault::Panic);
    }
    process.faults.arm(call, when, fault);
}

const NUM: u64 = 300;

/// Accepts entries, two of which are too long and given up at once.
fn accept(simulation: &Simulation) {
    simulation.accept(1..=NUM / 2);
    for byte in [1_u8, 2] {
        let bytes = vec![byte; BODY_BYTES_MAX + 1];
        simulation.store.put(simulation.bucket_of(byte.into()), bytes.into());
    }
    simulation.accept(NUM / 2 + 1..=NUM);
}

async fn assert_all_published(simulation: &Simulation, twice: bool, edge: &str) {
    simulation.until_published(1..=NUM).await;
    let kept = simulation.queues.kept();
    assert_eq!(kept.values().any(|copies| *copies > 1), twice, "{edge}: {kept:?}");
    assert!(kept.values().all(|copies| *copies <= 2), "{edge}: {kept:?}");
    let mut dead = simulation.queues.dead();
    assert!(dead.len() <= 4, "{edge}: each is published at most twice");
    dead.sort_by(|one, other| one.body.cmp(&other.body));
    dead.dedup();
    assert_eq!(dead.len(), 2, "{edge}: copies are equal, and become one dead letter");
}

#[test]
fn a_worker_that_crashes_at_any_edge_is_followed_by_one_that_finishes() {
    in_system(async {
        for (call, when, twice) in EDGES {
            let edge = format!("{when:?} {call:?}");
            let simulation = Simulation::new(3);
            accept(&simulation);
            let crashes = |process: &mut Process| arm(process, call, when, InjectedFault::Panic);
            let process = simulation.relays_with(crashes);
            assert_all_published(&simulation, twice, &edge).await;
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
            let mut simulation = Simulation::new(3);
            simulation.settings.relay.workers = 1;
            accept(&simulation);
            let crashes = |process: &mut Process| arm(process, call, when, InjectedFault::Freeze);
            let victim = simulation.relays_with(crashes);
            until(&edge, || async { victim.faults.is_frozen().then_some(()) }).await;
            victim.kill();
            let successor = simulation.relays();
            let rescuer = simulation.rescuer();
            until("no entry to wait", || async {
                (simulation.store.counts().0 == 0).then_some(())
            })
            .await;
            simulation.outlive_heartbeats(&[&successor]).await;
            assert_all_published(&simulation, twice, &edge).await;
            until("a register without crashed workers", || async {
                simulation
                    .store
                    .workers()
                    .iter()
                    .all(|name| name.starts_with(&*successor.name))
                    .then_some(())
            })
            .await;
            assert!(rescuer.reports("orphan_rescuer").iter().all(|r| r.restarts == 0));
        }
    });
}

/// Outbox and broker give every answer that they can give, and some claims take effect late.
/// Every entry is removed once, and none without a confirm or a dead letter.
#[test]
fn every_entry_is_removed_once_and_none_without_a_confirm() {
    for seed in 0..20 {
        in_system(async {
            let simulation = Simulation::new(3);
            simulation.queues.disturb(seed);
            let process = simulation.relays_with(|process| process.faults.disturb(seed));
            let _rescuer = simulation.rescuer();
            let mut next = 0;
            until("many rounds", || {
                next += 1;
                simulation.accept([next]);
                async move { (next == 60).then_some(()) }
            })
            .await;
            process.faults.calm();
            simulation.queues.accept_all();
            simulation.outlive_heartbeats(&[&process]).await;
            simulation.until_published(1..=60).await;
            assert!(process.reports("outbox_relay").iter().all(|r| r.restarts == 0), "{seed}");
        });
    }
}

/// C22 for relays: each kind of actor loses one step in twenty.
#[test]
fn panics_in_one_step_of_twenty_lose_nothing() {
    in_system(async {
        let mut simulation = Simulation::new(4);
        // Small rounds: many steps.
        simulation.settings.relay.claim_max = 4;
        let process = simulation.relays_with(|process| process.fault_injector(5.0));
        for from in (0..2_000).step_by(100) {
            simulation.accept(from + 1..=from + 100);
            tokio::task::yield_now().await;
        }
        simulation.until_published(1..=2_000).await;
        assert!(simulation.queues.dead().is_empty());
        let panics: u64 = process.supervisor.report().iter().map(|report| report.panics).sum();
        assert!(panics > 0, "no panic was injected");
    });
}

/// A rescuer crashes before it has reclaimed anything.
#[test]
fn a_rescuer_that_crashes_before_it_reclaims_is_followed_by_one_that_does() {
    in_system(async {
        for another_process in [false, true] {
            let mut simulation = Simulation::new(2);
            simulation.settings.relay.workers = 1;
            simulation.accept(1..=50);
            let freezes = |process: &mut Process| {
                process.faults.arm(Call::Publish, When::Before, InjectedFault::Freeze);
            };
            let victim = simulation.relays_with(freezes);
            until("claimed entries", || async { victim.faults.is_frozen().then_some(()) }).await;
            victim.kill();
            simulation.outlive_heartbeats(&[]).await;
            let fault = if another_process { InjectedFault::Freeze } else { InjectedFault::Panic };
            let crashes =
                |process: &mut Process| process.faults.arm(Call::Reclaim, When::Before, fault);
            let rescuer = simulation.rescuer_with(crashes);
            until("the rescuer to crash", || async { rescuer.faults.all_fired().then_some(()) })
                .await;
            let successor = simulation.relays();
            let _next = another_process.then(|| {
                rescuer.kill();
                simulation.rescuer()
            });
            if another_process {
                simulation.outlive_heartbeats(&[&successor]).await;
            }
            simulation.until_published(1..=50).await;
            let panics = rescuer.reports("orphan_rescuer")[0].panics;
            assert_eq!(panics, u64::from(!another_process));
        }
    });
}
