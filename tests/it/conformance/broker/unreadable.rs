//! A message that the client library cannot decode (a short string that is not UTF-8): its effect
//! on other messages, and the queue it ends in.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use floodgate::broker::{
    Error, Headers, Message, PublishOutcome, Publisher, RabbitBroker, RabbitOptions, Route,
    Subscriber, Topology,
};

use super::{message, messages, topology};
use crate::support::offers::run;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::wait::until;

const NAMESPACE: &str = "unreadable";
/// The message id that the proxy makes invalid UTF-8.
const MARKED_ID: &[u8] = b"to be corrupted";

/// A proxy that corrupts [`MARKED_ID`] and forwards everything else unchanged.
fn corrupting_proxy(broker: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(broker)) else { return };
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || forward(back.0, back.1));
            thread::spawn(move || forward(client, server));
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let found = buffer[..length].windows(MARKED_ID.len()).position(|bytes| bytes == MARKED_ID);
        if let Some(at) = found {
            buffer[at] = 0xff;
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _already_closed = to.shutdown(Shutdown::Both);
}

async fn publish_unreadable(server: &RabbitMq, route: Route) {
    let url = RabbitMq::url_by(corrupting_proxy(server.addr()));
    let broker = RabbitBroker::new(RabbitOptions::new(&url, topology(NAMESPACE)).unwrap()).unwrap();
    let name = String::from_utf8(MARKED_ID.to_vec()).unwrap();
    let headers = Headers { message_id: name, ..Headers::default() };
    let message = Message { route, headers, body: "unreadable".into() };
    assert_eq!(broker.open_channel(1).publish(vec![message]).await, [PublishOutcome::Confirmed]);
}

/// Acknowledges messages of a queue until `count` different ones have arrived, and reconnects as
/// often as necessary. Returns the highest number of earlier deliveries of one message.
async fn drain(broker: &RabbitBroker, source: Route, count: usize) -> u32 {
    let (mut num_before_max, mut seen) = (0, BTreeSet::new());
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
            num_before_max = num_before_max.max(delivery.num_previous);
            acks.one(delivery.tag).await;
            seen.insert(delivery.headers.message_id);
        }
    }
    num_before_max
}

#[test]
fn an_unreadable_message_is_quarantined_without_its_neighbours() {
    let server = RabbitMq::start();
    run(async {
        let broker = RabbitBroker::new(server.options(topology(NAMESPACE))).unwrap();
        let mut outgoing = broker.open_channel(64);
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

        // After three failed deliveries an order becomes a dead letter. The unreadable message
        // breaks more connections than that, and must not count against the orders.
        let num_before_max = drain(&broker, Route::Orders(0), 25).await;
        assert!(num_before_max <= 2, "a message had {num_before_max} earlier deliveries");
        assert_eq!(outgoing.publish(messages(orders, 25..26)).await, [PublishOutcome::Confirmed]);
        drain(&broker, Route::Orders(0), 1).await;

        // The unreadable message also breaks consumers of `dead`, then moves to `unreadable`.
        let dead_letter = message(Route::Dead, 99);
        assert_eq!(outgoing.publish(vec![dead_letter]).await, [PublishOutcome::Confirmed]);
        drain(&broker, Route::Dead, 1).await;
        let name = format!("{NAMESPACE}.unreadable");
        while server.num_ready(&name) != Some(1) {
            let Ok(mut dead_letters) = broker.subscribe(Route::Dead, 8).await else { continue };
            let next =
                tokio::time::timeout(std::time::Duration::from_millis(200), dead_letters.next());
            assert!(!matches!(next.await, Ok(Ok(_))), "received a message that was not published");
        }
        assert_eq!(server.num_ready(&format!("{NAMESPACE}.dead")), Some(0));
        let depths = broker.depths().await.unwrap();
        assert!(depths.iter().all(|depth| depth.queue != "unreadable"), "{depths:?}");
    });
}

/// Receives the message of an order queue so many times, without an acknowledgement.
async fn redeliver(broker: &RabbitBroker, times: u32) {
    for num_previous in 0..times {
        let mut prefetching = broker.subscribe(Route::Orders(0), 8).await.unwrap();
        assert_eq!(prefetching.next().await.unwrap().num_previous, num_previous);
    }
}

/// While the ledger is down no delivery is acknowledged, and no consumer crashes.
#[test]
fn a_message_that_was_not_acknowledged_in_time_is_not_taken_alone() {
    let server = RabbitMq::start();
    run(async {
        let broker = RabbitBroker::new(server.options(Topology::new(NAMESPACE, 1, 100))).unwrap();
        let orders = Route::Orders(0);
        let published = broker.open_channel(64).publish(messages(orders, 0..1)).await;
        assert_eq!(published, [PublishOutcome::Confirmed]);
        redeliver(&broker, 9).await;
        for parameter in ["consumer_timeout", "channel_tick_interval"] {
            server.ctl(&["eval", &format!("application:set_env(rabbit, {parameter}, 1000).")]);
        }
        let mut waiting = broker.subscribe(orders, 8).await.unwrap();
        assert_eq!(waiting.next().await.unwrap().num_previous, 9);
        let ended = waiting.next().await.unwrap_err().to_string();
        assert!(ended.contains("timed out"), "{ended}");
        drop(waiting);
        let mut again = broker.subscribe(orders, 8).await.unwrap();
        assert_eq!(again.next().await.unwrap().num_previous, 10);
    });
}

/// Such a message may crash every process that receives it, and each crash counts as a delivery of
/// all prefetched messages. It is therefore received alone.
#[test]
fn a_message_redelivered_often_is_taken_alone() {
    let server = RabbitMq::start();
    run(async {
        let broker = RabbitBroker::new(server.options(Topology::new(NAMESPACE, 1, 100))).unwrap();
        let mut outgoing = broker.open_channel(64);
        let orders = Route::Orders(0);
        assert_eq!(outgoing.publish(messages(orders, 0..1)).await, [PublishOutcome::Confirmed]);
        redeliver(&broker, 10).await;
        let mut prefetching = broker.subscribe(Route::Orders(0), 8).await.unwrap();
        let error = prefetching.next().await.unwrap_err().to_string();
        assert!(error.contains("delivered 10 times before"), "{error}");
        drop(prefetching);

        assert_eq!(
            outgoing.publish(messages(orders, 1..4)).await,
            vec![PublishOutcome::Confirmed; 3]
        );
        let mut isolated = broker.subscribe(Route::Orders(0), 8).await.unwrap();
        isolated.next().await.unwrap();
        let name = format!("{NAMESPACE}.orders.0");
        until("the other messages to stay in their queue", async || {
            (server.num_ready(&name) == Some(3)).then_some(())
        })
        .await;
    });
}
