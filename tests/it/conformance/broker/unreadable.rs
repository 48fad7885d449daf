//! A message that the client library cannot read: short text that is not UTF-8. What it may cost
//! the others, and where it ends.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use floodgate::broker::{
    Error, Headers, Message, PublishOutcome, Publisher, RabbitBroker, RabbitOptions, Route, Source,
    Subscriber, Topology,
};

use super::{message, messages, topology};
use crate::support::offers::run;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

const NAMESPACE: &str = "unreadable";
/// What a message is called that becomes unreadable on its way.
const MARKED: &[u8] = b"to be spoilt";

/// Hands everything on between one client and the broker, and spoils what is marked.
fn spoiler(broker: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(broker)) else { return };
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pass(back.0, back.1));
            thread::spawn(move || pass(client, server));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let found = buffer[..length].windows(MARKED.len()).position(|bytes| bytes == MARKED);
        if let Some(at) = found {
            buffer[at] = 0xff;
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _gone = to.shutdown(Shutdown::Both);
}

/// Publishes a message that nobody can read.
async fn publish_unreadable(server: &RabbitMq, route: Route) {
    let url = RabbitMq::url_by(spoiler(server.addr()));
    let broker = RabbitBroker::new(RabbitOptions::new(&url, topology(NAMESPACE)).unwrap()).unwrap();
    let name = String::from_utf8(MARKED.to_vec()).unwrap();
    let headers = Headers { message_id: name, ..Headers::default() };
    let message = Message { route, headers, body: "unreadable".into() };
    assert_eq!(broker.outgoing(1).publish(vec![message]).await, [PublishOutcome::Confirmed]);
}

/// Takes messages of a queue, through as many connections as it takes, until so many different ones
/// have come. Returns how often the most often delivered one had come before.
async fn drain(broker: &RabbitBroker, source: Source, count: usize) -> u32 {
    let (mut worst, mut seen) = (0, BTreeSet::new());
    while seen.len() < count {
        let mut subscription = match broker.subscribe(source, 8).await {
            Ok(subscription) => subscription,
            Err(Error::Unavailable { .. }) => {
                tokio::task::yield_now().await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let acks = subscription.acks();
        while seen.len() < count {
            let Ok(delivery) = subscription.next().await else { break };
            worst = worst.max(delivery.num_before);
            acks.one(delivery.tag).await;
            seen.insert(delivery.headers.message_id);
        }
    }
    worst
}

#[test]
fn what_cannot_be_read_is_set_aside_and_takes_nobody_with_it() {
    let server = RabbitMq::start();
    run(async {
        let broker = RabbitBroker::new(server.options(topology(NAMESPACE))).unwrap();
        let mut outgoing = broker.outgoing(64);
        let orders = Route::Orders(0);
        assert_eq!(
            outgoing.publish(messages(orders, 0..5)).await,
            vec![PublishOutcome::Confirmed; 5]
        );
        publish_unreadable(&server, orders).await;
        assert_eq!(
            outgoing.publish(messages(orders, 5..25)).await,
            vec![PublishOutcome::Confirmed; 20]
        );

        // Three deliveries too many are the end of an order; this one breaks more connections.
        let worst = drain(&broker, Source::Orders(0), 25).await;
        assert!(worst <= 2, "one was delivered {worst} times before");
        assert_eq!(outgoing.publish(messages(orders, 25..26)).await, [PublishOutcome::Confirmed]);
        drain(&broker, Source::Orders(0), 1).await;

        // Among the dead letters it goes on, until it is where nobody reads.
        let letter = message(Route::Dead, 99);
        assert_eq!(outgoing.publish(vec![letter]).await, [PublishOutcome::Confirmed]);
        drain(&broker, Source::Dead, 1).await;
        let name = format!("{NAMESPACE}.unreadable");
        while server.num_ready(&name) != Some(1) {
            let Ok(mut letters) = broker.subscribe(Source::Dead, 8).await else { continue };
            let next = tokio::time::timeout(std::time::Duration::from_millis(200), letters.next());
            assert!(!matches!(next.await, Ok(Ok(_))), "a message that nobody published");
        }
        assert_eq!(server.num_ready(&format!("{NAMESPACE}.dead")), Some(0));
        let depths = broker.depths().await.unwrap();
        assert!(depths.iter().all(|depth| depth.queue != "unreadable"), "{depths:?}");
    });
}

/// It may end every process that takes it in, and whatever is taken in with it is counted as often.
#[test]
fn a_message_that_comes_often_is_taken_alone() {
    let server = RabbitMq::start();
    run(async {
        let broker = RabbitBroker::new(server.options(Topology::new(NAMESPACE, 1, 100))).unwrap();
        let mut outgoing = broker.outgoing(64);
        let orders = Route::Orders(0);
        assert_eq!(outgoing.publish(messages(orders, 0..1)).await, [PublishOutcome::Confirmed]);
        let mut many = broker.subscribe(Source::Orders(0), 8).await.unwrap();
        let acks = many.acks();
        for num_before in 0..10 {
            let delivery = many.next().await.unwrap();
            assert_eq!(delivery.num_before, num_before);
            acks.give_back(delivery.tag).await;
        }
        let ended = many.next().await.unwrap_err().to_string();
        assert!(ended.contains("delivered 10 times before"), "{ended}");
        drop(many);

        assert_eq!(
            outgoing.publish(messages(orders, 1..4)).await,
            vec![PublishOutcome::Confirmed; 3]
        );
        let mut alone = broker.subscribe(Source::Orders(0), 8).await.unwrap();
        alone.next().await.unwrap();
        let name = format!("{NAMESPACE}.orders.0");
        until("the others to stay in their queue", async || {
            (server.num_ready(&name) == Some(3)).then_some(())
        })
        .await;
    });
}
