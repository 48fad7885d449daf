//! Failures of the order consumer: which deliveries stay unacknowledged, which become dead letters,
//! and that a failing delivery delays no other.

use std::sync::atomic::Ordering;
use std::time::Duration;

use floodgate::config::Tier;
use floodgate::db::ErrorClass;
use floodgate::domain::RequestId;

use crate::support::fake_broker::PublishAnswer;
use crate::support::faulty_ledger::Fault;
use crate::support::harness::in_system;
use crate::support::intents::pack;
use crate::support::order_consumer::{ConsumerHarness, quick};
use crate::support::wait::until;

fn request(number: u64) -> RequestId {
    RequestId::new(number).unwrap()
}

#[test]
fn while_the_ledger_is_down_all_deliveries_stay_in_flight() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Down);
        harness.put_each(1..=40).await;
        until("an open breaker", || async {
            harness.harness.actors.breaker.is_open().then_some(())
        })
        .await;
        let errors = harness.ledger.num_refused();
        until("more refused writes", || async {
            (harness.ledger.num_refused() > errors + 20).then_some(())
        })
        .await;
        assert_eq!(harness.broker.num_unacknowledged(), 16, "the prefetch window, none given back");
        assert_eq!(
            (harness.broker.num_deliveries(), harness.broker.num_publish_attempts()),
            (16, 0)
        );
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=40).await;
        assert_eq!(harness.broker.num_deliveries(), 40, "no message was redelivered");
    });
}

#[test]
fn a_submission_whose_answer_was_lost_is_resubmitted() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::AnswerLost);
        harness.put_each(1..=5).await;
        until("orders", || async { (harness.harness.num_orders().await > 0).then_some(()) }).await;
        assert_eq!(harness.broker.num_unacknowledged(), 5);
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=5).await;
        assert!(harness.broker.published().is_empty());
    });
}

/// Whatever the error class, an error of every write is no evidence against one order: no attempt
/// is counted, and all orders are written afterwards.
#[test]
fn a_ledger_that_refuses_every_write_costs_no_order_an_attempt() {
    for class in [ErrorClass::Bug, ErrorClass::Retry, ErrorClass::Unknown, ErrorClass::Down] {
        in_system(async {
            let harness = ConsumerHarness::open().await;
            harness.put_each(1..=1).await;
            harness.until_empty().await;
            harness.ledger.set(Fault::RefusesAll(class));
            harness.put(&harness.accept_all(2..=9).await);
            harness.put_each(10..=60).await;
            until("an open breaker", || async {
                harness.harness.actors.breaker.is_open().then_some(())
            })
            .await;
            let refused = harness.ledger.num_refused();
            until("many more refused writes", || async {
                harness.harness.clock.advance(Duration::from_secs(2));
                (harness.ledger.num_refused() > refused + 100).then_some(())
            })
            .await;
            assert_eq!(
                (harness.broker.num_unacknowledged(), harness.broker.num_publish_attempts()),
                (16, 0)
            );
            assert_eq!(harness.metric("floodgate_consumer_retries_total"), 0, "{class:?}");
            harness.ledger.set(Fault::None);
            harness.until_empty().await;
            harness.assert_orders(1..=60).await;
            assert!(harness.broker.published().is_empty() && harness.broker.num_deliveries() == 53);
        });
    }
}

/// The same with a single order in flight: a successful read is no evidence that writes work.
#[test]
fn a_single_order_is_held_while_the_ledger_refuses_every_write() {
    for class in [ErrorClass::Bug, ErrorClass::Unknown] {
        in_system(async {
            let harness = ConsumerHarness::open().await;
            harness.put_each(1..=1).await;
            harness.until_empty().await;
            harness.ledger.set(Fault::RefusesAll(class));
            harness.put_each(2..=2).await;
            let refusals = async || (harness.ledger.num_refused() > 40).then_some(());
            until("many refused writes", refusals).await;
            assert_eq!(
                (harness.broker.num_unacknowledged(), harness.broker.num_publish_attempts()),
                (1, 0)
            );
            harness.ledger.set(Fault::None);
            harness.until_empty().await;
            harness.assert_orders(1..=2).await;
        });
    }
}

#[test]
fn an_order_that_fails_while_others_commit_is_retried_and_dead_lettered() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        let intents = harness.accept_all(1..=5).await;
        harness.ledger.set(Fault::Refuses(request(3)));
        harness.put(&intents);
        harness.put_each(6..=9).await;
        harness.until_empty().await;
        assert_eq!(harness.harness.num_orders().await, 8, "the other orders were written");
        let dead = harness.broker.dead();
        assert_eq!(dead.len(), 1, "only the failing order");
        assert_eq!((&dead[0].body[..], dead[0].headers.attempts), (&pack(&intents[2])[..], 2));
        let reason = dead[0].headers.reason.as_deref().unwrap();
        assert!(reason.contains("2 times") && reason.contains("on purpose"), "{reason}");
        assert_eq!(harness.metric("floodgate_consumer_retries_total"), 1);
        assert_eq!(harness.broker.num_deliveries(), 5, "no message was redelivered");
        // A message that an operator replays is written.
        harness.ledger.set(Fault::None);
        harness.put(&[intents[2]]);
        harness.until_empty().await;
        harness.assert_orders(1..=9).await;
    });
}

#[test]
fn an_order_that_is_repaired_in_time_is_written() {
    in_system(async {
        let mut settings = quick();
        settings.consumer.attempts_max = 1_000;
        let harness = ConsumerHarness::open_with(&settings).await;
        harness.put_each(1..=1).await;
        harness.until_empty().await;
        harness.ledger.set(Fault::Refuses(request(2)));
        harness.put_each(2..=2).await;
        until("a counted failure", || async {
            (harness.metric("floodgate_consumer_retries_total") > 0).then_some(())
        })
        .await;
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=2).await;
        assert!(harness.broker.published().is_empty());
    });
}

#[test]
fn an_order_without_an_answer_delays_no_other_and_is_dead_lettered() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::NeverAnswers(request(3)));
        harness.put_each(1..=30).await;
        until("the other orders", || async {
            (harness.harness.num_orders().await == 29).then_some(())
        })
        .await;
        harness.until_empty().await;
        let dead = harness.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "3-1"));
        harness.ledger.set(Fault::None);
        harness.broker.replay();
        harness.until_empty().await;
        harness.assert_orders(1..=30).await;
    });
}

/// The canary gives evidence without other traffic: the consumer resubmits an order that the ledger
/// has; the ledger rejects the duplicate and commits the canary.
#[test]
fn a_single_order_without_an_answer_is_dead_lettered() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.put_each(1..=1).await;
        harness.until_empty().await;
        harness.ledger.set(Fault::NeverAnswers(request(2)));
        let intents = harness.accept_all(2..=2).await;
        harness.put(&intents);
        harness.until_empty().await;
        let dead = harness.broker.dead();
        assert_eq!((dead.len(), &dead[0].body[..]), (1, &pack(&intents[0])[..]));
        let isolated = harness.ledger.batches().iter().filter(|batch| **batch == [2]).count();
        assert!(
            isolated > 3,
            "isolated once before an attempt counts, then once per attempt: {isolated}"
        );
    });
}

/// The order fails in a batch and twice in a transaction of its own, and then the ledger recovers:
/// what it commits afterwards shows nothing about the order.
#[test]
fn a_ledger_that_recovers_after_a_failure_is_no_evidence_against_its_order() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.put_each(1..=1).await;
        harness.until_empty().await;
        harness.ledger.set(Fault::RefusesBatches(3));
        harness.put_each(2..=2).await;
        harness.until_empty().await;
        harness.assert_orders(1..=2).await;
        assert_eq!(harness.metric("floodgate_consumer_retries_total"), 0);
    });
}

/// Without an order that the ledger has committed, the consumer cannot test whether writes work.
#[test]
fn without_any_order_that_the_ledger_has_a_failing_one_is_held() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Refuses(request(1)));
        harness.put_each(1..=1).await;
        until("many batches", || async { (harness.ledger.batches().len() > 30).then_some(()) })
            .await;
        assert_eq!(
            (harness.broker.num_unacknowledged(), harness.broker.num_publish_attempts()),
            (1, 0)
        );
        harness.put_each(2..=2).await;
        harness.until_empty().await;
        let dead = harness.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "1-1"));
        assert_eq!(harness.harness.num_orders().await, 1);
    });
}

#[test]
fn an_order_that_crashes_the_consumer_is_found_and_the_others_are_written() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Kills(request(3)));
        harness.put(&harness.accept_all(1..=5).await);
        harness.put_each(6..=9).await;
        harness.until_empty().await;
        assert_eq!(harness.harness.num_orders().await, 8);
        let dead = harness.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "3-1"));
        let reports = harness.harness.actors.supervisor.report();
        let consumer = reports.iter().find(|report| report.kind == "ledger_writer").unwrap();
        assert!(consumer.panics <= 5, "{} panics, the restart budget is 5", consumer.panics);
    });
}

#[test]
fn a_message_redelivered_often_has_its_own_transaction() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.ledger.set(Fault::Frozen);
        harness.broker.set_unavailable(true);
        harness.kill().await;
        harness.put_each(1..=9).await;
        harness.broker.set_num_before(4, 3);
        harness.broker.set_unavailable(false);
        until("deliveries", || async { (harness.broker.num_unacknowledged() == 9).then_some(()) })
            .await;
        harness.ledger.set(Fault::None);
        harness.until_empty().await;
        harness.assert_orders(1..=9).await;
        assert!(harness.ledger.batches().contains(&vec![5]), "{:?}", harness.ledger.batches());
        assert!(harness.metric("floodgate_consumer_redelivered_total") >= 1);
    });
}

#[test]
fn a_copy_that_is_not_confirmed_is_published_until_it_is() {
    in_system(async {
        for answer in [PublishAnswer::NotSent, PublishAnswer::Unknown, PublishAnswer::Refused] {
            let harness = ConsumerHarness::open().await;
            harness.broker.say(answer);
            let mut bad = harness.intent(1, 1);
            bad.amount = 7;
            harness.put(&[bad]);
            harness.put_each(2..=5).await;
            until("publish attempts", || async {
                (harness.broker.num_publish_attempts() > 3).then_some(())
            })
            .await;
            until("the other orders", || async {
                (harness.broker.num_unacknowledged() == 1).then_some(())
            })
            .await;
            harness.broker.say(PublishAnswer::Yes);
            harness.until_empty().await;
            let dead = harness.broker.dead();
            assert!(dead.iter().all(|dead_letter| dead_letter.body == pack(&bad)));
            assert!(dead.len() == 1 || answer == PublishAnswer::Unknown);
            harness.assert_orders(2..=5).await;
        }
    });
}

#[test]
fn an_order_of_a_sale_that_cannot_be_looked_up_delays_no_other() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.refresh_fails.store(true, Ordering::SeqCst);
        harness.put(&harness.create_elsewhere(901..=901).await);
        // More than the prefetch.
        harness.put_each(1..=40).await;
        until("the other orders", async || {
            let broker = &harness.broker;
            ((broker.num_ready(), broker.num_unacknowledged()) == (0, 1)).then_some(())
        })
        .await;
        assert_eq!(harness.harness.num_orders().await, 40);
        harness.refresh_fails.store(false, Ordering::SeqCst);
        harness.until_empty().await;
        assert!(harness.broker.published().is_empty());
    });
}

#[test]
fn a_subscription_that_was_forgotten_is_given_up() {
    in_system(async {
        let harness = ConsumerHarness::open().await;
        harness.put_each(1..=3).await;
        harness.until_empty().await;
        harness.broker.forget_consumer();
        harness.put_each(4..=6).await;
        until("another subscription", || async {
            harness.harness.clock.advance(Duration::from_secs(5));
            harness.broker.is_empty().then_some(())
        })
        .await;
        harness.assert_orders(1..=6).await;
        assert_eq!(harness.broker.num_deliveries(), 6);
    });
}

/// C22: 5 % of the steps of the order consumer or the ledger writer panic; no order is lost or
/// written twice.
#[test]
fn panics_lose_nothing_and_double_nothing() {
    for kind in ["order_consumer", "ledger_writer"] {
        in_system(async {
            let mut settings = quick();
            assert_eq!(settings.tier, Tier::Memory);
            settings.consumer.batch_max = 4;
            settings.faults.panic_in = vec![kind.to_owned()];
            settings.faults.panic_percent = 5.0;
            let harness = ConsumerHarness::open_with(&settings).await;
            let num_panics = || {
                let reports = harness.harness.actors.supervisor.report();
                reports.iter().map(|report| report.panics).sum::<u64>()
            };
            // A single crowd has few steps, and may pass without a panic.
            for crowd in 1..=5_u64 {
                harness.put_each(crowd * 200 - 199..=crowd * 200).await;
                until("every order", || async {
                    harness.broker.replay();
                    (harness.broker.is_empty() && harness.broker.published().is_empty())
                        .then_some(())
                })
                .await;
                // A crash loses unwritten results; a redelivery of the order writes them.
                until("every result", || async {
                    let mut is_settled = true;
                    for request in crowd * 200 - 199..=crowd * 200 {
                        if !harness.is_settled(request).await {
                            is_settled = false;
                            harness.put_repeat(request);
                        }
                    }
                    harness.until_empty().await;
                    is_settled.then_some(())
                })
                .await;
                harness.assert_orders(1..=crowd * 200).await;
                if num_panics() > 0 {
                    return;
                }
            }
            panic!("no panic was injected into {kind}");
        });
    }
}
