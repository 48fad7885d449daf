//! The broker is killed or frozen and returns: confirmed messages are kept, others are unknown.
//!
//! All cases share one server, because RabbitMQ starts slowly.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use floodgate::broker::{
    BrokerStatus, Error, Headers, Message, PublishChannel, PublishOutcome, Publisher, RabbitBroker,
    Route, Subscriber, Topology,
};
use floodgate::runtime::clock::now_monotonic;

use crate::support::offers::run;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

const ROUNDS: usize = 3;
const BATCH: usize = 300;

fn broker(server: &RabbitMq, namespace: &str) -> RabbitBroker {
    let mut options = server.options(Topology::new(namespace, 2, 100));
    options.connect_timeout = Duration::from_secs(5);
    RabbitBroker::new(options).unwrap()
}

/// Like `broker`, with the topology declared beforehand under a long timeout.
async fn declared(server: &RabbitMq, namespace: &str) -> RabbitBroker {
    let mut options = server.options(Topology::new(namespace, 2, 100));
    options.connect_timeout = Duration::from_mins(1);
    RabbitBroker::new(options).unwrap().depths().await.unwrap();
    broker(server, namespace)
}

fn message(number: usize) -> Message {
    let headers = Headers { message_id: number.to_string(), ..Headers::default() };
    Message { route: Route::Orders(0), headers, body: Bytes::from(vec![b'x'; 1_000]) }
}

fn batch(from: usize) -> Vec<Message> {
    (from..from + BATCH).map(message).collect()
}

#[test]
fn confirmed_messages_survive_a_kill() {
    let server = RabbitMq::start();
    run(async {
        killed_with_new_queues(&server).await;
        killed_under_load(&server).await;
        killed_under_a_subscription(&server).await;
        frozen(&server).await;
    });
}

/// RabbitMQ may lose a queue created less than a second ago, with its confirmed messages. The queue
/// must become usable again, even when the broker is killed again right after the redeclaration.
async fn killed_with_new_queues(server: &RabbitMq) {
    let broker = broker(server, "new");
    let mut outgoing = broker.open_channel(16);
    for round in 0..=ROUNDS {
        let begun = now_monotonic();
        until("a confirmation", async || {
            (outgoing.publish(vec![message(0)]).await == [PublishOutcome::Confirmed]).then_some(())
        })
        .await;
        println!("round={round} usable after {:?}", now_monotonic().duration_since(begun));
        if round < ROUNDS {
            server.kill();
            server.restart();
        }
    }
    let mut subscription =
        until("a subscription", async || broker.subscribe(Route::Orders(0), 1).await.ok()).await;
    subscription.next().await.unwrap();
}

/// Publishes until the broker is down. Returns the confirmed numbers and the next unused number.
async fn publish_until_failure(
    outgoing: &mut dyn PublishChannel,
    from: usize,
    num_confirmed: &AtomicUsize,
) -> (BTreeSet<usize>, usize) {
    let (mut confirmed, mut next) = (BTreeSet::new(), from);
    loop {
        let results = outgoing.publish(batch(next)).await;
        let pairs = (next..).zip(&results);
        confirmed
            .extend(pairs.filter(|(_, sent)| **sent == PublishOutcome::Confirmed).map(|(n, _)| n));
        next += BATCH;
        num_confirmed.store(confirmed.len(), Ordering::SeqCst);
        let is_unconfirmed = |sent: &PublishOutcome| {
            matches!(sent, PublishOutcome::Unknown { .. } | PublishOutcome::NotSent { .. })
        };
        assert!(
            !results.iter().any(|sent| matches!(sent, PublishOutcome::Refused { .. })),
            "{results:?}"
        );
        if results.iter().any(is_unconfirmed) {
            return (confirmed, next);
        }
    }
}

async fn killed_under_load(server: &RabbitMq) {
    let broker = Arc::new(declared(server, "kill").await);
    server.settle();
    let mut outgoing = broker.open_channel(512);
    let (mut confirmed, mut next) = (BTreeSet::new(), 0);
    for round in 0..ROUNDS {
        let num_confirmed = AtomicUsize::new(0);
        let publishing = publish_until_failure(outgoing.as_mut(), next, &num_confirmed);
        let killing = async {
            until("some confirmations", async || {
                (num_confirmed.load(Ordering::SeqCst) >= (round + 1) * BATCH).then_some(())
            })
            .await;
            server.kill();
        };
        let ((more, after), ()) = tokio::join!(publishing, killing);
        confirmed.extend(more);
        next = after;
        // During the outage publishing fails at once.
        let results = outgoing.publish(batch(next)).await;
        assert!(
            results.iter().all(|sent| matches!(sent, PublishOutcome::NotSent { .. })),
            "{results:?}"
        );
        assert_eq!(broker.status(), BrokerStatus::Down);
        server.restart();
        // An empty publish detects the recovery as well: an idle relay resumes claiming.
        until("the broker to be up", async || {
            assert_eq!(outgoing.publish(Vec::new()).await, []);
            (broker.status() == BrokerStatus::Up).then_some(())
        })
        .await;
        until("the broker to confirm again", async || {
            let sent = outgoing.publish(vec![message(next)]).await.remove(0);
            (sent == PublishOutcome::Confirmed).then_some(())
        })
        .await;
        confirmed.insert(next);
        next += 1;
        assert_eq!(broker.status(), BrokerStatus::Up);
    }
    let mut found = BTreeSet::new();
    let mut subscription = broker.subscribe(Route::Orders(0), 500).await.unwrap();
    let acks = subscription.acks();
    while !confirmed.is_subset(&found) {
        let next = tokio::time::timeout(Duration::from_secs(30), subscription.next()).await;
        let Ok(delivery) = next else { break };
        let delivery = delivery.unwrap();
        found.insert(delivery.headers.message_id.parse().unwrap());
        acks.up_to(delivery.tag).await;
    }
    let lost: Vec<_> = confirmed.difference(&found).collect();
    assert!(lost.is_empty(), "confirmed and lost: {lost:?} of {}", confirmed.len());
}

async fn killed_under_a_subscription(server: &RabbitMq) {
    let broker = declared(server, "subscribed").await;
    server.settle();
    let sent = broker.open_channel(64).publish(batch(0)).await;
    assert!(sent.iter().all(|sent| *sent == PublishOutcome::Confirmed));
    let mut subscription = broker.subscribe(Route::Orders(0), 10).await.unwrap();
    let acks = subscription.acks();
    for number in 0..10 {
        assert_eq!(subscription.next().await.unwrap().headers.message_id, number.to_string());
    }
    acks.up_to(4).await;
    until("the acknowledgements", async || {
        subscription.next().await.is_ok_and(|next| next.tag == 14).then_some(())
    })
    .await;
    server.kill();
    let error = subscription.next().await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    acks.up_to(14).await;
    let refused = broker.subscribe(Route::Orders(0), 10).await.err().expect("no broker runs");
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
    server.restart();
    let mut resumed =
        until("a subscription", async || broker.subscribe(Route::Orders(0), 1_000).await.ok())
            .await;
    // The broker confirms no acknowledgement: the kill may have lost some.
    let mut seen = BTreeSet::new();
    while !(4..BATCH).all(|number| seen.contains(&number)) {
        seen.insert(resumed.next().await.unwrap().headers.message_id.parse::<usize>().unwrap());
    }
}

/// I/O threads of the AMQP client library.
fn num_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.unwrap()));
    names.filter(|name| name.trim() == "lapin-io-loop").count()
}

async fn frozen(server: &RabbitMq) {
    let mut options = server.options(Topology::new("frozen", 1, 100));
    options.confirm_timeout = Duration::from_millis(300);
    options.connect_timeout = Duration::from_millis(500);
    options.heartbeat_s = 1;
    let mut long_timeout = options.clone();
    long_timeout.connect_timeout = Duration::from_secs(10);
    RabbitBroker::new(long_timeout).unwrap().depths().await.unwrap();

    let broker = RabbitBroker::new(options).unwrap();
    let mut outgoing = broker.open_channel(10);
    until("a first confirmation", async || {
        (outgoing.publish(vec![message(0)]).await == [PublishOutcome::Confirmed]).then_some(())
    })
    .await;
    server.stop();
    let results = outgoing.publish(batch(1)).await;
    // At most one confirm window is unknown; a late confirm shrinks the window.
    let is_unknown = |sent: &&PublishOutcome| matches!(sent, PublishOutcome::Unknown { .. });
    let num_unknown = results.iter().take_while(is_unknown).count();
    assert!((1..=10).contains(&num_unknown), "{results:?}");
    let remainder = &results[num_unknown..];
    assert!(
        remainder.iter().all(|sent| matches!(sent, PublishOutcome::NotSent { .. })),
        "{results:?}"
    );
    // The broker answers nothing and is marked down; each connection attempt times out.
    until("the broker to be marked down", async || {
        (broker.status() == BrokerStatus::Down).then_some(())
    })
    .await;
    for _ in 0..10 {
        let sent = outgoing.publish(vec![message(1)]).await.remove(0);
        assert!(matches!(sent, PublishOutcome::NotSent { .. }), "{sent:?}");
        assert!(broker.depths().await.is_err());
    }
    until("the threads of connection attempts to end", async || (num_threads() <= 2).then_some(()))
        .await;

    server.cont();
    until("the broker to confirm again", async || {
        (outgoing.publish(vec![message(1)]).await == [PublishOutcome::Confirmed]).then_some(())
    })
    .await;
    broker.close().await;
}
