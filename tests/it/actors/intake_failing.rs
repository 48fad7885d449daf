//! The order intake when something fails: what stays in hand, what goes to a delay queue or to the
//! dead letters, and that nobody else waits for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use floodgate::actors::order_intake::retrying::DOUBTS_MAX;
use floodgate::broker::Route;
use floodgate::config::Tier;
use floodgate::domain::RequestId;
use floodgate::scripts::intent::pack;

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

#[test]
fn an_order_that_fails_while_the_ledger_answers_waits_outside_and_then_dies() {
    in_system(async {
        let rig = IntakeRig::open().await;
        let intents = rig.accept_all(1..=5).await;
        rig.ledger.set(Fault::Refuses(request(3)));
        rig.put(&intents);
        rig.put_each(6..=9).await;
        for step in 0..3 {
            rig.until_empty().await;
            let published = rig.broker.published();
            assert_eq!(published.len(), 1, "only what failed");
            assert_eq!(published[0].route, Route::Retry { queue: 0, step });
            assert_eq!(published[0].headers.attempts as usize, step + 1);
            assert_eq!(&published[0].body[..], pack(&intents[2]));
            assert_eq!(rig.rig.num_orders().await, 8, "the others went on");
            rig.broker.end_delays();
        }
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), rig.broker.published().len()), (1, 1));
        assert_eq!((&dead[0].body[..], dead[0].headers.attempts), (&pack(&intents[2])[..], 4));
        let reason = dead[0].headers.reason.as_deref().unwrap();
        assert!(reason.contains("4 times") && reason.contains("on purpose"), "{reason}");
        assert_eq!(rig.metric("floodgate_intake_retries_total"), 3);
        // What an operator sends back is taken.
        rig.ledger.set(Fault::None);
        rig.put(&[intents[2]]);
        rig.until_empty().await;
        rig.assert_orders(1..=9).await;
    });
}

#[test]
fn an_order_that_is_repaired_in_time_lands() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Refuses(request(1)));
        rig.put_each(1..=1).await;
        rig.until_empty().await;
        rig.ledger.set(Fault::None);
        rig.broker.end_delays();
        rig.until_empty().await;
        rig.assert_orders(1..=1).await;
        assert!(rig.broker.published().is_empty());
    });
}

#[test]
fn an_order_of_which_nothing_is_heard_holds_up_nobody() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::NeverSays(request(3)));
        rig.put_each(1..=30).await;
        until("the others", || async { (rig.rig.num_orders().await == 29).then_some(()) }).await;
        // The ledger answers others, so this one is an attempt.
        until("an attempt", || async {
            rig.put_repeat(1);
            (rig.broker.published().len() == 1).then_some(())
        })
        .await;
        rig.until_empty().await;
        assert_eq!(rig.broker.published()[0].headers.message_id, "3-1");
        rig.ledger.set(Fault::None);
        rig.broker.end_delays();
        rig.until_empty().await;
        rig.assert_orders(1..=30).await;
    });
}

#[test]
fn an_order_of_which_nothing_is_heard_dies_though_nobody_else_comes() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::NeverSays(request(1)));
        let intents = rig.accept_all(1..=1).await;
        rig.put(&intents);
        for step in 0..3 {
            rig.until_empty().await;
            // The first two were not its own: others might have been with it.
            let tries = 2 + DOUBTS_MAX as usize * (step + 1);
            assert_eq!(rig.ledger.batches().len(), tries, "some doubts are no attempt");
            let published = rig.broker.published();
            assert_eq!(published.len(), 1);
            assert_eq!(published[0].route, Route::Retry { queue: 0, step });
            rig.broker.end_delays();
        }
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), rig.broker.published().len()), (1, 1));
        assert_eq!((&dead[0].body[..], dead[0].headers.attempts), (&pack(&intents[0])[..], 4));
    });
}

#[test]
fn a_doubt_about_many_is_no_attempt_of_one() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::NeverSays(request(1)));
        rig.put(&rig.accept_all(1..=2).await);
        rig.put_each(3..=9).await;
        rig.until_empty().await;
        assert_eq!(rig.rig.num_orders().await, 8);
        assert_eq!(rig.broker.published().len(), 1);
        let alone = rig.ledger.batches().iter().filter(|batch| **batch == [1]).count();
        assert!(alone > 1, "its first failure alone is not counted, whoever was answered before");
    });
}

#[test]
fn a_ledger_of_which_nothing_is_heard_at_all_costs_no_order_an_attempt() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.put_each(1..=1).await;
        rig.until_empty().await;
        rig.ledger.set(Fault::NeverSays(request(2)));
        rig.is_cut_off.store(true, Ordering::SeqCst);
        rig.put_each(2..=2).await;
        until("many tries", || async { (rig.ledger.batches().len() > 30).then_some(()) }).await;
        assert_eq!((rig.broker.num_unacknowledged(), rig.broker.num_tried()), (1, 0));
        rig.ledger.set(Fault::None);
        rig.until_empty().await;
        rig.assert_orders(1..=2).await;
    });
}

#[test]
fn an_order_that_kills_the_consumer_is_found_and_the_others_land() {
    in_system(async {
        let rig = IntakeRig::open().await;
        rig.ledger.set(Fault::Kills(request(3)));
        rig.put(&rig.accept_all(1..=5).await);
        rig.put_each(6..=9).await;
        rig.until_empty().await;
        assert_eq!(rig.rig.num_orders().await, 8);
        let published = rig.broker.published();
        assert_eq!(published.len(), 1);
        assert_eq!(published[0].route, Route::Retry { queue: 0, step: 2 }, "the longest wait");
        rig.broker.end_delays();
        rig.until_empty().await;
        let dead = rig.broker.dead();
        assert_eq!((dead.len(), dead[0].headers.message_id.as_str()), (1, "3-1"));
        let reports = rig.rig.actors.supervisor().report();
        let consumer = reports.iter().find(|it| it.kind == "order_consumer").unwrap();
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
        assert!(rig.metric("floodgate_intake_redelivered_total") >= 1);
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
    for kind in ["order_intake", "order_consumer"] {
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
                    rig.broker.end_delays();
                    rig.broker.replay();
                    (rig.broker.is_empty() && rig.broker.published().is_empty()).then_some(())
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
