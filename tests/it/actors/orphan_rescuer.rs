//! The orphan rescuer, over an in-memory outbox and broker.

use std::time::Duration;

use crate::support::harness::in_system;
use crate::support::relays::{Call, InjectedFault, Process, Simulation, When};
use crate::support::wait::until;

/// Waits until the rescuer has completed `num` more polls. A poll is two steps.
async fn polls(process: &Process, num: u64) {
    let steps = || process.reports("orphan_rescuer")[0].steps;
    let before = steps();
    until("some polls", || async { (steps() >= before + num * 2).then_some(()) }).await;
}

/// A process that has claimed every entry and hangs before it publishes them.
async fn frozen_claimer(simulation: &Simulation) -> Process {
    let freezes = |process: &mut Process| {
        process.faults.arm(Call::Publish, When::Before, InjectedFault::Freeze);
    };
    let process = simulation.relays_with(freezes);
    until("claimed entries", || async { process.faults.is_frozen().then_some(()) }).await;
    process
}

#[test]
fn entries_of_workers_with_a_heartbeat_are_not_reclaimed() {
    in_system(async {
        let simulation = Simulation::new(2);
        simulation.queues.set_refusing(true);
        simulation.accept(1..=20);
        let running = simulation.relays();
        until("claimed entries", || async { (simulation.store.counts().0 == 0).then_some(()) })
            .await;
        let rescuer = simulation.rescuer();
        for _ in 0..5 {
            simulation.outlive_heartbeats(&[&running]).await;
            polls(&rescuer, 2).await;
        }
        assert_eq!(simulation.store.counts(), (0, 20));
        assert_eq!(rescuer.metric("floodgate_rescued_entries_total"), 0);
        let waiting = || rescuer.metric("floodgate_outbox_waiting");
        until("the gauge", || async { (waiting() == 20).then_some(()) }).await;
    });
}

#[test]
fn the_gauge_of_the_outbox_counts_waiting_and_claimed_entries_and_says_so() {
    in_system(async {
        let simulation = Simulation::new(2);
        simulation.accept(1..=20);
        simulation.store.claim_all("gone/0");
        simulation.accept(21..=30);
        let rescuer = simulation.rescuer();
        until("the gauge", || async {
            (rescuer.metric("floodgate_outbox_waiting") == 30).then_some(())
        })
        .await;
        let text = rescuer.metrics.exposition();
        let help = "# HELP floodgate_outbox_waiting Entries waiting or claimed.";
        assert!(text.lines().any(|line| line == help), "{text}");
    });
}

#[test]
fn the_gauge_of_the_outbox_does_not_fall_while_an_outbox_cannot_be_read() {
    in_system(async {
        let simulation = Simulation::new(2);
        simulation.accept(1..=20);
        let rescuer = simulation.rescuer();
        let shows_all = || rescuer.metric("floodgate_outbox_waiting") == 20;
        until("the gauge", || async { shows_all().then_some(()) }).await;
        for _ in 0..20 {
            rescuer.faults.arm(Call::Status, When::Before, InjectedFault::Unavailable);
        }
        until("ten failed polls", || async {
            assert!(shows_all(), "{}", rescuer.metric("floodgate_outbox_waiting"));
            rescuer.faults.all_fired().then_some(())
        })
        .await;
    });
}

#[test]
fn two_rescuers_at_once_lose_nothing() {
    in_system(async {
        let simulation = Simulation::new(3);
        simulation.accept(1..=100);
        let victim = frozen_claimer(&simulation).await;
        victim.kill();
        simulation.outlive_heartbeats(&[]).await;
        let rescuers = [simulation.rescuer(), simulation.rescuer()];
        until("every entry in the queue", || async {
            (simulation.store.counts() == (100, 0)).then_some(())
        })
        .await;
        let _successor = simulation.relays();
        simulation.until_published(1..=100).await;
        assert!(simulation.queues.kept().values().all(|copies| *copies == 1));
        assert!(rescuers.iter().all(|rescuer| rescuer.reports("orphan_rescuer")[0].restarts == 0));
    });
}

#[test]
fn a_failed_reclaim_is_repeated_at_the_next_poll() {
    in_system(async {
        let simulation = Simulation::new(3);
        simulation.accept(1..=30);
        let victim = frozen_claimer(&simulation).await;
        victim.kill();
        simulation.outlive_heartbeats(&[]).await;
        let rescuer = simulation.rescuer_with(|process| {
            process.faults.arm(Call::Status, When::Before, InjectedFault::Unavailable);
            process.faults.arm(Call::Reclaim, When::Before, InjectedFault::Unavailable);
            process.faults.arm(Call::Reclaim, When::After, InjectedFault::Unknown);
        });
        until("every entry in the queue", || async {
            (simulation.store.counts() == (30, 0)).then_some(())
        })
        .await;
        assert!(rescuer.faults.all_fired());
        until("an empty worker register", || async {
            simulation.store.workers().is_empty().then_some(())
        })
        .await;
    });
}

#[test]
fn a_rescuer_whose_poll_hangs_is_replaced() {
    in_system(async {
        let simulation = Simulation::new(1);
        simulation.accept(1..=5);
        simulation.store.claim_all("gone/0");
        let rescuer = simulation.rescuer_with(|process| {
            process.faults.arm(Call::Status, When::Before, InjectedFault::Freeze);
        });
        until("a hanging poll", || async { rescuer.faults.is_frozen().then_some(()) }).await;
        until("a stall", || async {
            simulation.clock.advance(Duration::from_secs(1));
            (rescuer.reports("orphan_rescuer")[0].stalls == 1).then_some(())
        })
        .await;
        rescuer.faults.thaw();
        until("every entry in the queue", || async {
            (simulation.store.counts() == (5, 0)).then_some(())
        })
        .await;
    });
}

#[test]
fn a_clean_stop_waits_for_the_current_poll() {
    in_system(async {
        let simulation = Simulation::new(1);
        let rescuer = simulation.rescuer_with(|process| {
            process.faults.arm(Call::Status, When::Before, InjectedFault::Freeze);
        });
        until("a poll", || async { rescuer.faults.is_frozen().then_some(()) }).await;
        let thaw = async {
            tokio::task::yield_now().await;
            rescuer.faults.thaw();
        };
        futures_util::future::join(rescuer.quiet(), thaw).await;
        let steps = rescuer.reports("orphan_rescuer")[0].steps;
        rescuer.quiet().await;
        assert!(
            rescuer.reports("orphan_rescuer")[0].steps <= steps + 2,
            "no poll begins after the stop"
        );
    });
}
