//! The order intake when something fails: what stays in hand, what becomes a dead letter, and that
//! nobody else waits for it.

use std::time::Duration;

use floodgate::config::Tier;
use floodgate::db::ErrorClass;
use floodgate::domain::RequestId;
use floodgate::redis::scripts::intent::pack;

use crate::support::fake_broker::Says;
use crate::support::faulty_ledger::Fault;
use crate::support::intake::{IntakeRig, quick};
use crate::support::rig::in_system;
use crate::support::wait::until;

fn request(number: u64) -> RequestId {
    RequestId::new(number).unwrap()
}

#[test]
fn while_the_ledger_is_down_everything_stays_in_hand() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Down);
        rig.put_each(1..=40).await;
        until("a closed door", || async { rig.rig.actors.breaker().is_open().then_some(()) }).await;
        let errors = rig.ledger.num_refused();
        until("more tries", || async { (rig.ledger.num_refused() > errors + 20).then_some(()) })
            .await;
        assert_eq!(rig.broker.num_unacknowledged(), 16, "the prefetch, and nothing comes back");
        assert_eq!((rig.broker.num_deliveries(), rig.broker.num_tried()), (16, 0));
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=40).await;
        assert_eq!(rig.broker.num_deliveries(), 40, "none came twice");
    });
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Mute);
        rig.put_each(1..=5).await;
        until("orders", || async { (rig.rig.num_orders().await > 0).then_some(()) }).await;
        assert_eq!(rig.broker.num_unacknowledged(), 5);
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=5).await;
        assert!(rig.broker.published().is_empty());
    });
}

/// Whatever it says, listed or not: no order has failed, and everything is written afterwards.
#[test]
fn a_ledger_that_refuses_every_write_costs_no_order_an_attempt() {
    for class in [ErrorClass::Bug, ErrorClass::Retry, ErrorClass::Unknown, ErrorClass::Down] {
        in_system(async {
            let rig = IntakeRig::open().await;
            rig.put_each(1..=1).await;
            rig.until_empty().await;
            rig.ledger.set(Fault::RefusesAll(class));
            rig.put(&rig.accept_all(2..=9).await);
            rig.put_each(10..=60).await;
            until("an open breaker", || async { rig.rig.actors.breaker().is_open().then_some(()) })
                .await;
            let refused = rig.ledger.num_refused();
            until("many more tries", || async {
                rig.rig.clock.advance(Duration::from_secs(2));
                (rig.ledger.num_refused() > refused + 100).then_some(())
            })
            .await;
            assert_eq!((rig.broker.num_unacknowledged(), rig.broker.num_tried()), (16, 0));
            assert_eq!(rig.metric("floodgate_consumer_retries_total"), 0, "{class:?}");
            rig.ledger.set(Fault::None);
            rig.until_empty().await;
            rig.assert_orders(1..=60).await;
            assert!(rig.broker.published().is_empty() && rig.broker.num_deliveries() == 53);
        });
    }
}

/// The same where one order is all there is: that it could be read is no evidence.
#[test]
fn a_single_order_is_held_while_the_ledger_refuses_every_write() {
    for class in [ErrorClass::Bug, ErrorClass::Unknown] {
        in_system(async {
            let rig = IntakeRig::open().await;
            rig.put_each(1..=1).await;
            rig.until_empty().await;
            rig.ledger.set(Fault::RefusesAll(class));
            rig.put_each(2..=2).await;
            let tries = async || (rig.ledger.num_refused() > 40).then_some(());
            until("many tries", tries).await;
            assert_eq!((rig.broker.num_unacknowledged(), rig.broker.num_tried()), (1, 0));
            rig.ledger.set(Fault::None);
            rig.until_empty().await;
            rig.assert_orders(1..=2).await;
        });
    }
}

#[test]
fn an_order_that_fails_while_the_ledger_commits_others_is_tried_again_and_dies() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let intents = rig.accept_all(1..=5).await;
        rig.ledger.set(Fault::Refuses(request(3)));
        rig.put(&intents);
        rig.put_each(6..=9).await;
        rig.until_empty().await;
        assert_eq!(rig.rig.num_orders().await, 8, "the others went on");
        let dead = rig.broker.dead();
        assert_eq!(dead.len(), 1, "only what failed");
        assert_eq!((&dead[0].body[..], dead[0].headers.attempts), (&pack(&intents[2])[..], 2));
        let reason = dead[0].headers.reason.as_deref().unwrap();
        assert!(reason.contains("2 times") && reason.contains("on purpose"), "{reason}");
        assert_eq!(rig.metric("floodgate_consumer_retries_total"), 1);
        assert_eq!(rig.broker.num_deliveries(), 5, "none came twice");
        // What an operator sends back is taken.
        rig.ledger.set(Fault::None);
        rig.put(&[intents[2]]);
        rig.until_empty().await;
        rig.assert_orders(1..=9).await;
    });
}

#[test]
fn an_order_that_is_repaired_in_time_is_written() {
    in_system(async {
        let mut settings = quick();
        settings.consumer.attempts_max = 1_000;
        let rig = IntakeRig::open_with(&settings).await;
        rig.put_each(1..=1).await;
        rig.until_empty().await;
        rig.ledger.set(Fault::Refuses(request(2)));
        rig.put_each(2..=2).await;
        until("a counted failure", || async {
            (rig.metric("floodgate_consumer_retries_total") > 0).then_some(())
        })
        .await;
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=2).await;
        assert!(rig.broker.published().is_empty());
    });
}

#[test]
fn an_order_of_which_nothing_is_heard_holds_up_nobody_and_dies() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::NeverSays(request(3)));
        rig.put_each(1..=30).await;
        until("the others", || async { (rig.rig.num_orders().await == 29).then_some(()) }).await;
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "3-1"));
        rig.ledger.set(Fault::None);
        rig.broker.replay();
        rig.until_empty().await;
        rig.assert_orders(1..=30).await;
    });
}

/// The canary: an order that the ledger has is refused once more, and a token is committed.
#[test]
fn an_order_of_which_nothing_is_heard_dies_though_nobody_else_comes() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.put_each(1..=1).await;
        rig.until_empty().await;
        rig.ledger.set(Fault::NeverSays(request(2)));
        let intents = rig.accept_all(2..=2).await;
        rig.put(&intents);
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), &dead[0].body[..]), (1, &pack(&intents[0])[..]));
        let alone = rig.ledger.batches().iter().filter(|batch| **batch == [2]).count();
        assert!(alone > 3, "alone before it counts, and once for each attempt: {alone}");
    });
}

/// A process that knows no order of this ledger has nothing to ask it with.
#[test]
fn without_any_order_that_the_ledger_has_a_failing_one_is_held() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Refuses(request(1)));
        rig.put_each(1..=1).await;
        until("many tries", || async { (rig.ledger.batches().len() > 30).then_some(()) }).await;
        assert_eq!((rig.broker.num_unacknowledged(), rig.broker.num_tried()), (1, 0));
        rig.put_each(2..=2).await;
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "1-1"));
        assert_eq!(rig.rig.num_orders().await, 1);
    });
}

#[test]
fn an_order_that_kills_the_consumer_is_found_and_the_others_are_written() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Kills(request(3)));
        rig.put(&rig.accept_all(1..=5).await);
        rig.put_each(6..=9).await;
        rig.until_empty().await;
        assert_eq!(rig.rig.num_orders().await, 8);
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "3-1"));
        let reports = rig.rig.actors.supervisor().report();
        let consumer = reports.iter().find(|it| it.kind == "ledger_writer").unwrap();
        assert!(consumer.panics <= 5, "{} restarts, the budget is 5", consumer.panics);
    });
}

#[test]
fn what_came_often_is_alone_in_its_transaction() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Frozen);
        rig.broker.go_away(true);
        rig.kill().await;
        rig.put_each(1..=9).await;
        rig.broker.set_num_before(4, 3);
        rig.broker.go_away(false);
        until("deliveries", || async { (rig.broker.num_unacknowledged() == 9).then_some(()) })
            .await;
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=9).await;
        assert!(rig.ledger.batches().contains(&vec![5]), "{:?}", rig.ledger.batches());
        assert!(rig.metric("floodgate_consumer_redelivered_total") >= 1);
    });
}

#[test]
fn a_copy_that_is_not_confirmed_is_published_until_it_is() {
    in_system(async {
        for says in [Says::NotSent, Says::Unknown, Says::Refused] {
            let rig = IntakeRig::open().await;
            rig.broker.say(says);
            let mut bad = rig.intent(1, 1);
            bad.amount = 7;
            rig.put(&[bad]);
            rig.put_each(2..=5).await;
            until("tries", || async { (rig.broker.num_tried() > 3).then_some(()) }).await;
            until("the others", || async { (rig.broker.num_unacknowledged() == 1).then_some(()) })
                .await;
            rig.broker.say(Says::Yes);
            rig.until_empty().await;
            let dead = rig.broker.dead();
            assert!(dead.iter().all(|letter| letter.body == pack(&bad)));
            assert!(dead.len() == 1 || says == Says::Unknown);
            rig.assert_orders(2..=5).await;
        }
    });
}

#[test]
fn a_subscription_that_was_forgotten_is_given_up() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.put_each(1..=3).await;
        rig.until_empty().await;
        rig.broker.forget_consumer();
        rig.put_each(4..=6).await;
        until("another subscription", || async {
            rig.rig.clock.advance(Duration::from_secs(5));
            rig.broker.is_empty().then_some(())
        })
        .await;
        rig.assert_orders(1..=6).await;
        assert_eq!(rig.broker.num_deliveries(), 6);
    });
}

/// C22: a step in twenty of the intake or the consumer panics, and nothing is lost or doubled.
#[test]
fn panics_lose_nothing_and_double_nothing() {
    for kind in ["order_consumer", "ledger_writer"] {
        in_system(async {
            let mut settings = quick();
            assert_eq!(settings.tier, Tier::Memory);
            settings.consumer.batch_max = 4;
            settings.faults.panic_in = vec![kind.to_owned()];
            settings.faults.panic_percent = 5.0;
            let rig = IntakeRig::open_with(&settings).await;
            let num_panics = || {
                let reports = rig.rig.actors.supervisor().report();
                reports.iter().map(|report| report.panics).sum::<u64>()
            };
            // Chance may spare the few steps of one crowd.
            for crowd in 1..=5_u64 {
                rig.put_each(crowd * 200 - 199..=crowd * 200).await;
                until("every order", || async {
                    rig.broker.replay();
                    (rig.broker.is_empty() && rig.broker.published().is_empty()).then_some(())
                })
                .await;
                // A result that a consumer took with it is written when its order comes again.
                until("every result", || async {
                    let mut is_told = true;
                    for request in crowd * 200 - 199..=crowd * 200 {
                        if !rig.is_settled(request).await {
                            is_told = false;
                            rig.put_repeat(request);
                        }
                    }
                    rig.until_empty().await;
                    is_told.then_some(())
                })
                .await;
                rig.assert_orders(1..=crowd * 200).await;
                if num_panics() > 0 {
                    return;
                }
            }
            panic!("the drill must have struck {kind}");
        });
    }
}
