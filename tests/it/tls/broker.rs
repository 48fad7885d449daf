//! `amqps://`.

use std::time::Duration;

use bytes::Bytes;
use floodgate::broker::rabbit::health::{self, SelfTest};
use floodgate::broker::{
    Headers, Message, PublishOutcome, Publisher, RabbitBroker, RabbitOptions, Route, Subscriber,
    Topology,
};
use floodgate::net::Trust;

use super::{OTHER_NAME, UNKNOWN_AUTHORITY, assert_says};
use crate::support::certificates::Certificates;
use crate::support::redis_connections::run;
use crate::support::servers::rabbitmq::RabbitMq;

const MESSAGES: usize = 600;

fn options(host: &str, port: u16, trust: Trust) -> RabbitOptions {
    let url = format!("amqps://guest:guest@{host}:{port}/%2f");
    let mut options = RabbitOptions::new(&url, Topology::new("tls", 1, 3)).unwrap();
    options.connect_timeout = Duration::from_secs(20);
    options.trust = Some(trust);
    options
}

fn message(number: usize) -> Message {
    Message {
        route: Route::Orders(0),
        headers: Headers { message_id: format!("m{number}"), ..Headers::default() },
        // Several records of TLS each.
        body: Bytes::from(vec![b'x'; 40_000]),
    }
}

async fn refused(options: &RabbitOptions) -> String {
    health::read(options).await.unwrap_err().reason
}

#[test]
fn a_broker_is_trusted_by_its_authority_and_name() {
    let certificates = Certificates::new();
    let [crt, key, ca] = ["server.crt", "server.key", "ca.crt"].map(|name| certificates.file(name));
    let (rabbit, port) = RabbitMq::start_with_tls(&crt, &key, &ca);
    run(async {
        let trusted = options("localhost", port.number(), certificates.trust());
        let broker = RabbitBroker::new(trusted.clone()).unwrap();
        let mut channel = broker.open_channel(64);
        let outcomes = channel.publish((0..MESSAGES).map(message).collect()).await;
        assert_eq!(outcomes, vec![PublishOutcome::Confirmed; MESSAGES]);
        let mut deliveries = broker.subscribe(Route::Orders(0), 100).await.unwrap();
        let acks = deliveries.acks();
        for number in 0..MESSAGES {
            let next = tokio::time::timeout(Duration::from_secs(30), deliveries.next()).await;
            let delivery = next.expect("a delivery").unwrap();
            assert_eq!(delivery.headers.message_id, format!("m{number}"));
            acks.up_to(number as u64 + 1).await;
        }
        let facts = health::read(&trusted).await.unwrap();
        assert!(matches!(facts.self_test, SelfTest::Works(_)), "{:?}", facts.self_test);
        assert!(facts.version.unwrap().starts_with("RabbitMQ"));

        let other = options("localhost", port.number(), certificates.other_trust());
        assert_says(&refused(&other).await, &[UNKNOWN_AUTHORITY, "amqp.ca_file"]);
        // A name that resolves to this machine and is not in the certificate.
        let odd = options("127.0.0.2", port.number(), certificates.trust());
        assert_says(&refused(&odd).await, &[OTHER_NAME, "amqp.url"]);
        let plain = options("localhost", rabbit.port(), certificates.trust());
        assert_says(&refused(&plain).await, &["no TLS at this port", "amqp.url"]);
    });
}
