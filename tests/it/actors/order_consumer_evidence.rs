//! What counts as a failure of an order, and what is no evidence against it.

use floodgate::domain::RequestId;

use crate::support::faulty_ledger::Fault;
use crate::support::harness::in_system;
use crate::support::order_consumer::{ConsumerHarness, quick};
use crate::support::wait::until;

fn request(number: u64) -> RequestId {
    RequestId::new(number).unwrap()
}

/// A ledger with the order of request 1 and this fault, and request 2 in the queue. The first
/// failure that counts makes an order a dead letter.
async fn with_one_order(fault: Fault) -> ConsumerHarness {
    let mut settings = quick();
    settings.consumer.attempts_max = 1;
    let harness = ConsumerHarness::open_with(&settings).await;
    harness.put_each(1..=1).await;
    harness.until_empty().await;
    harness.ledger.set(fault);
    harness.put_each(2..=2).await;
    harness
}

#[test]
fn an_outage_of_the_ledger_is_not_the_first_failure_of_an_order_that_waited_for_it() {
    in_system(async {
        let harness = with_one_order(Fault::Down).await;
        let refusals = async || (harness.ledger.num_refused() > 20).then_some(());
        until("many refused writes", refusals).await;
        harness.ledger.set(Fault::Refuses(request(2)));
        // The ledger commits an order of another consumer.
        harness.harness.actors.breaker.committed();
        harness.until_empty().await;
        assert_eq!(harness.broker.dead().len(), 1);
        let attempts = harness.ledger.batches().into_iter().filter(|batch| *batch == [2]).count();
        assert_eq!(attempts, 2, "the first failure after the outage does not count");
    });
}

/// The ledger recognises a repeated order without a commit.
#[test]
fn an_order_is_held_while_the_ledger_reads_and_commits_nothing() {
    assert_held_until_the_end_of(Fault::CommitsNothing(request(2)));
}

/// The canary, and orders of other SKUs, need no lock that the order waits for.
#[test]
fn an_order_is_held_while_it_waits_for_a_lock_and_others_commit() {
    assert_held_until_the_end_of(Fault::Contended(request(2)));
}

fn assert_held_until_the_end_of(fault: Fault) {
    in_system(async {
        let harness = with_one_order(fault).await;
        until("many batches, or a dead letter", async || {
            let is_dead = harness.broker.num_publish_attempts() > 0;
            (is_dead || harness.ledger.batches().len() > 40).then_some(())
        })
        .await;
        assert!(harness.broker.dead().is_empty());
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=2).await;
    });
}
