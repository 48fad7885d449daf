//! C09: a broker with a memory or disk alarm accepts no messages and still accepts
//! acknowledgements. A queue that confirms nothing delays no other queue.

use std::time::Duration;

use bytes::Bytes;
use floodgate::broker::{
    BrokerStatus, Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker, Route,
    Subscriber, Topology,
};
use futures_util::future::{join, join_all};

use crate::support::offers::run;
use crate::support::servers::rabbitmq::{Alarm, RabbitMq};
use crate::support::wait::until;

fn message(number: usize) -> Message {
    let headers = Headers { message_id: number.to_string(), ..Headers::default() };
    Message { route: Route::Orders(0), headers, body: Bytes::from_static(b"body") }
}

#[test]
fn a_blocked_broker_takes_acknowledgements_and_no_messages() {
    let server = RabbitMq::start();
    check_alarm(&server, Alarm::Memory, "memory");
    check_alarm(&server, Alarm::Disk, "disk");
}

async fn publish_one(outgoing: &mut Box<dyn PublishChannel>, message: Message) -> Option<()> {
    (outgoing.publish(vec![message]).await == [PublishOutcome::Confirmed]).then_some(())
}

fn check_alarm(server: &RabbitMq, alarm: Alarm, namespace: &str) {
    run(async {
        let mut options = server.options(Topology::new(namespace, 1, 100));
        let setup_broker = RabbitBroker::new(options.clone()).unwrap();
        let sent = setup_broker.open_channel(20).publish((0..20).map(message).collect()).await;
        assert_eq!(sent, vec![PublishOutcome::Confirmed; 20]);
        setup_broker.close().await;
        options.confirm_timeout = Duration::from_millis(500);
        let broker = RabbitBroker::new(options).unwrap();
        let mut outgoing = broker.open_channel(4);
        // The confirm timeout is short: on a busy machine the first confirm may be late.
        let to_dead = || Message { route: Route::Dead, ..message(0) };
        until("a confirm in time", async || publish_one(&mut outgoing, to_dead()).await).await;
        let mut subscription = broker.subscribe(Route::Orders(0), 10).await.unwrap();
        let acks = subscription.acks();
        for _ in 0..10 {
            subscription.next().await.unwrap();
        }
        server.alarm(alarm, true);

        // The broker reports an alarm only to connections that publish.
        let results = outgoing.publish((100..110).map(message).collect()).await;
        let is_unconfirmed = |sent: &PublishOutcome| {
            matches!(sent, PublishOutcome::Unknown { .. } | PublishOutcome::NotSent { .. })
        };
        assert!(results.iter().all(is_unconfirmed), "{results:?}");
        assert!(matches!(results[0], PublishOutcome::Unknown { .. }), "{results:?}");
        assert!(matches!(results[9], PublishOutcome::NotSent { .. }), "{results:?}");
        until("the broker to report the alarm", async || {
            (broker.status() == BrokerStatus::Blocked).then_some(())
        })
        .await;
        for _ in 0..50 {
            let sent = outgoing.publish(vec![message(200)]).await.remove(0);
            assert!(matches!(sent, PublishOutcome::NotSent { .. }), "{sent:?}");
        }

        // The prefetch is used up: each further delivery proves that an acknowledgement arrived.
        acks.up_to(10).await;
        for _ in 0..10 {
            let delivery = subscription.next().await.unwrap();
            acks.one(delivery.tag).await;
        }
        until("an empty queue", async || {
            let depths = broker.depths().await.unwrap();
            depths.iter().any(|one| one.queue == "orders.0" && one.num_ready == 0).then_some(())
        })
        .await;

        server.alarm(alarm, false);
        until("the broker to accept messages again", async || {
            (broker.status() == BrokerStatus::Up).then_some(())
        })
        .await;
        // Messages with an unknown outcome may be delivered, before number 300.
        until("a confirm", async || publish_one(&mut outgoing, message(300)).await).await;
        loop {
            let delivery = subscription.next().await.unwrap();
            let number: usize = delivery.headers.message_id.parse().unwrap();
            assert!((100..110).contains(&number) || number == 300, "{number}");
            if number == 300 {
                break;
            }
        }
        broker.close().await;
    });
}

/// The broker stops reading with the first message of an alarm: channels that are being opened get
/// no answer. The connection is blocked, and not lost.
#[test]
fn an_alarm_while_channels_are_opened_loses_no_connection() {
    let server = RabbitMq::start();
    run(async {
        let mut options = server.options(Topology::new("opening", 1, 100));
        options.confirm_timeout = Duration::from_millis(500);
        options.connect_timeout = Duration::from_secs(2);
        let broker = RabbitBroker::new(options).unwrap();
        let mut first = broker.open_channel(1);
        until("a confirm in time", async || publish_one(&mut first, message(0)).await).await;
        server.alarm(Alarm::Memory, true);

        let mut others: Vec<_> = (0..4).map(|_| broker.open_channel(1)).collect();
        let opening = join_all(others.iter_mut().map(|other| other.publish(vec![message(1)])));
        let (_, outcomes) = join(first.publish(vec![message(1)]), opening).await;
        until("the broker to report the alarm", async || {
            (broker.status() == BrokerStatus::Blocked).then_some(())
        })
        .await;
        for outcome in outcomes.concat() {
            match outcome {
                PublishOutcome::NotSent { reason } => {
                    assert!(reason.contains("the broker accepts no messages"), "{reason}");
                }
                // It was opened before the broker read the first message.
                PublishOutcome::Unknown { .. } => {}
                outcome => panic!("{outcome:?} during an alarm"),
            }
        }

        server.alarm(Alarm::Memory, false);
        until("a confirm", async || publish_one(&mut first, message(2)).await).await;
        broker.close().await;
    });
}

/// Like a quorum queue without a majority: the queue accepts messages and confirms none.
#[test]
fn a_queue_that_confirms_nothing_holds_up_no_other() {
    let server = RabbitMq::start();
    run(async {
        let mut options = server.options(Topology::new("suspended", 2, 100));
        options.confirm_timeout = Duration::from_millis(500);
        let broker = RabbitBroker::new(options).unwrap();
        let mut outgoing = broker.open_channel(8);
        let to =
            |queue: u16, number: usize| Message { route: Route::Orders(queue), ..message(number) };
        let mixed =
            || (0..8).map(|number| to(u16::from(number % 2 == 1), number)).collect::<Vec<_>>();
        let is_confirmed = |sent: &PublishOutcome| *sent == PublishOutcome::Confirmed;
        until("confirms of both queues", async || {
            outgoing.publish(mixed()).await.iter().all(is_confirmed).then_some(())
        })
        .await;

        server.ctl(&["eval", "sys:suspend('%2F_suspended.orders.1')."]);
        let first = outgoing.publish(mixed()).await;
        assert!(
            !first.iter().any(is_confirmed),
            "the failing queue is not identified yet: {first:?}"
        );
        until("confirms of the healthy queue only", async || {
            let sent = outgoing.publish(mixed()).await;
            let (healthy, suspended): (Vec<_>, Vec<_>) =
                sent.iter().enumerate().partition(|(n, _)| n % 2 == 0);
            assert!(!suspended.iter().any(|(_, sent)| is_confirmed(sent)), "{sent:?}");
            healthy.iter().all(|(_, sent)| is_confirmed(sent)).then_some(())
        })
        .await;

        server.ctl(&["eval", "sys:resume('%2F_suspended.orders.1')."]);
        until("confirms of both queues again", async || {
            outgoing.publish(mixed()).await.iter().all(is_confirmed).then_some(())
        })
        .await;
        broker.close().await;
    });
}
