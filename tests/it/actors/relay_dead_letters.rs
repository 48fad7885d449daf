//! What outbox relays give up: it is published to the dead letters, and stays claimed until the
//! broker has confirmed it.

use floodgate::broker::{Message, PublishOutcome};
use floodgate::messages::envelope::BODY_BYTES_MAX;

use super::relays::rounds;
use crate::support::harness::in_system;
use crate::support::intents::{pack, reader};
use crate::support::relays::{INSTALLATION, Simulation};
use crate::support::wait::until;

#[test]
fn a_message_refused_repeatedly_becomes_a_dead_letter_and_blocks_no_other() {
    in_system(async {
        let mut simulation = Simulation::new(1);
        simulation.settings.relay.attempts_max = 3;
        simulation.queues.refuse(5);
        simulation.accept(1..=20);
        let process = simulation.relays();
        // A refusal counts as an attempt only if the queue has confirmed another message since.
        let mut next = 100;
        until("a dead letter", || {
            simulation.accept([next]);
            next += 1;
            let num_dead = simulation.queues.dead().len();
            async move { (num_dead == 1).then_some(()) }
        })
        .await;
        simulation.until_published(1..=20).await;
        let Message { headers, body, .. } = simulation.queues.dead().remove(0);
        assert_eq!(body, pack(&simulation.intent(5)));
        assert_eq!(headers.reason.as_deref(), Some("refused in 3 attempts, last: on purpose"));
        assert_eq!((headers.origin.as_deref(), headers.attempts), (Some("relay"), 3));
        assert!(reader(INSTALLATION).decode(&headers, &body).unwrap()[0].is_ok());
        assert!(process.metric("floodgate_relay_failures_total{kind=\"refused\"}") >= 3);
        assert_eq!(process.metric("floodgate_relay_failures_total{kind=\"dead\"}"), 1);
    });
}

#[test]
fn an_entry_whose_dead_letter_is_not_confirmed_stays_claimed_and_is_tried_again() {
    let reason = || "on purpose".to_owned();
    for outcome in [
        PublishOutcome::Refused { reason: reason() },
        PublishOutcome::Unknown { reason: reason() },
        PublishOutcome::NotSent { reason: reason() },
    ] {
        in_system(async {
            let mut simulation = Simulation::new(1);
            simulation.settings.relay.attempts_max = 1;
            simulation.queues.refuse(5);
            simulation.queues.reject_dead_letters(outcome.clone());
            // The confirms of the others make the refusal an attempt, in the same round.
            simulation.accept(1..=20);
            let process = simulation.relays();
            until("the others", || async { (simulation.store.counts() == (0, 1)).then_some(()) })
                .await;
            rounds(&process, 50).await;
            assert_eq!(simulation.store.counts(), (0, 1), "{outcome:?}");
            assert_eq!(process.metric("floodgate_relay_failures_total{kind=\"dead\"}"), 0);
            simulation.queues.accept_all();
            simulation.until_published(1..=20).await;
            let dead = simulation.queues.dead();
            assert_eq!(dead.len(), 1, "{outcome:?}");
            assert_eq!(dead[0].body, pack(&simulation.intent(5)));
        });
    }
}

#[test]
fn an_entry_that_is_too_long_becomes_a_dead_letter_at_once() {
    in_system(async {
        let simulation = Simulation::new(1);
        simulation.accept(1..=10);
        let length = BODY_BYTES_MAX + 1;
        simulation.store.put(simulation.bucket_of(1), vec![7; length].into());
        simulation.accept(11..=20);
        let _process = simulation.relays();
        simulation.until_published(1..=20).await;
        let Message { headers, body, .. } = simulation.queues.dead().remove(0);
        assert_eq!((body.len(), headers.attempts), (BODY_BYTES_MAX, 0));
        let reason = headers.reason.unwrap();
        assert!(reason.starts_with(&format!("an entry of {length} bytes: ")), "{reason}");
    });
}
