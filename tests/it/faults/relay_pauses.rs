//! C05 and C06: relays that are paused past their heartbeat, and processes that never restart.

use crate::support::harness::in_system;
use crate::support::relays::{Call, InjectedFault, Process, Simulation, When};
use crate::support::wait::until;

async fn until_frozen(process: &Process) {
    until("the pause", || async { process.faults.is_frozen().then_some(()) }).await;
}

/// C05: one worker pauses at any edge of a round. Other workers reclaim and publish its entries;
/// then it resumes by itself.
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
            let mut simulation = Simulation::new(2);
            simulation.settings.relay.workers = 1;
            simulation.accept(1..=100);
            let pauses =
                |process: &mut Process| process.faults.arm(call, when, InjectedFault::Freeze);
            let paused = simulation.relays_with(pauses);
            until_frozen(&paused).await;
            simulation.outlive_heartbeats(&[]).await;
            let other = simulation.relays();
            let rescuer = simulation.rescuer();
            simulation.until_published(1..=100).await;
            until("the paused worker to be unregistered", || async {
                let workers = simulation.store.workers();
                (!workers.iter().any(|name| name.starts_with(&*paused.name))).then_some(())
            })
            .await;
            other.quiet().await;
            rescuer.kill();

            paused.faults.thaw();
            simulation.accept(101..=200);
            simulation.until_published(1..=200).await;
            let kept = simulation.queues.kept();
            let copies_max = if (call, when) == (Call::Claim, When::Before) { 1 } else { 2 };
            let old = kept.iter().filter(|(request, _)| **request <= 100);
            assert!(old.clone().all(|(_, copies)| *copies <= copies_max), "{edge}: {kept:?}");
            // Another worker owns the entries that it acknowledges late.
            let late = !matches!((call, when), (Call::Claim, When::Before))
                && (call, when) != (Call::Acknowledge, When::After);
            assert_eq!(simulation.store.facts().acknowledged_late > 0, late, "{edge}");
            assert_eq!(paused.reports("outbox_relay")[0].restarts, 0, "{edge}");
        }
    });
}

/// C06: ten processes start and are killed with claimed entries; one more process remains.
#[test]
fn processes_that_never_come_back_leave_nothing_claimed() {
    in_system(async {
        let mut simulation = Simulation::new(3);
        simulation.settings.relay.claim_max = 10;
        simulation.accept(1..=1_000);
        let mut killed = Vec::new();
        for _ in 0..10 {
            let freezes = |process: &mut Process| {
                process.faults.arm(Call::Publish, When::Before, InjectedFault::Freeze);
            };
            let victim = simulation.relays_with(freezes);
            until_frozen(&victim).await;
            victim.kill();
            killed.push(victim);
        }
        let (_, claimed) = simulation.store.counts();
        assert!(claimed >= 100, "{claimed}");
        let survivor = simulation.relays();
        let rescuer = simulation.rescuer();
        simulation.outlive_heartbeats(&[&survivor]).await;
        simulation.until_published(1..=1_000).await;
        until("a register without killed workers", || async {
            let workers = simulation.store.workers();
            workers.iter().all(|name| name.starts_with(&*survivor.name)).then_some(())
        })
        .await;
        assert!(rescuer.metric("floodgate_rescued_entries_total") >= claimed as u64);
    });
}

/// The heartbeat server was unavailable for longer than a heartbeat lasts.
#[test]
fn a_worker_that_could_not_announce_itself_goes_on() {
    in_system(async {
        let mut simulation = Simulation::new(2);
        simulation.settings.relay.workers = 1;
        let _rescuer = simulation.rescuer();
        let process = simulation.relays();
        simulation.accept(1..=50);
        simulation.until_published(1..=50).await;
        for _ in 0..200 {
            process.faults.arm(Call::Announce, When::Before, InjectedFault::Unavailable);
        }
        simulation.outlive_heartbeats(&[]).await;
        simulation.accept(51..=100);
        simulation.until_published(1..=100).await;
        assert!(process.reports("outbox_relay").iter().all(|r| r.restarts == 0), "no crash");
    });
}

/// As in containers, where every process has the same process id.
#[test]
fn two_processes_never_share_the_name_of_a_worker() {
    in_system(async {
        let simulation = Simulation::new(2);
        let processes = [simulation.relays(), simulation.relays()];
        until("a heartbeat of every worker of both", || async {
            let names = simulation.store.heartbeats();
            let num = processes.len() * simulation.settings.relay.workers;
            (names.len() == num).then_some(())
        })
        .await;
        assert_ne!(processes[0].name, processes[1].name);
    });
}
