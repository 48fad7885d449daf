//! Tier `pipeline` on a RabbitMQ cluster of three nodes: it sells and places orders without any one
//! of them, it sells without a majority, and the orders follow when the majority is back.

use std::time::Duration;

use bytes::Bytes;
use floodgate::broker::rabbit::health;
use floodgate::broker::{
    Headers, Message, PublishOutcome, Publisher, RabbitBroker, RabbitOptions, Route, Subscriber,
    Topology,
};
use floodgate::tier;

use crate::support::admin::stage;
use crate::support::offers::run;
use crate::support::pipeline::PipelineFixture;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::servers::redis::{AOF_ALWAYS, Redis};
use crate::support::shop::Shop;
use crate::support::wait::{until, until_true};

const NODES: usize = 3;
const STOCK: u32 = 1_000;
const BUYERS: u64 = 100;

/// The URL with every node.
fn url(nodes: &[RabbitMq]) -> String {
    let hosts: Vec<_> = nodes.iter().map(|node| node.addr().to_string()).collect();
    format!("amqp://guest:guest@{}/%2f", hosts.join(","))
}

/// Waits until each queue has all its replicas.
fn until_replicated(node: &RabbitMq) {
    until_true("every queue on every node", || {
        let listed = node.ctl(&["list_queues", "name", "online", "--no-table-headers"]);
        let mut queues = listed.lines().filter(|line| line.starts_with("fg."));
        listed.contains("fg.orders.0")
            && queues.all(|queue| queue.matches("@localhost").count() == NODES)
    });
}

async fn assert_doctor_finds_one_silent(fixture: &PipelineFixture, node: &RabbitMq) {
    let options = tier::broker_options(&fixture.settings(&[])).unwrap();
    let facts = health::read(&options).await.unwrap();
    assert_eq!(facts.num_nodes, NODES);
    assert!(facts.version.unwrap().starts_with("RabbitMQ "));
    let [silent] = facts.silent_nodes.as_slice() else { panic!("{:?}", facts.silent_nodes) };
    assert!(silent.starts_with(&node.addr().to_string()), "{silent}");
}

#[test]
fn orders_go_on_without_a_node_and_return_with_the_majority() {
    let mut others = RabbitMq::start_cluster(NODES);
    let url = url(&others);
    let (redis, first) = (Redis::start_with(AOF_ALWAYS), others.remove(0));
    let fixture = PipelineFixture::with_broker("list", redis, first).with("amqp.url", &url);
    let nodes = [&fixture.rabbit, &others[0], &others[1]];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let mut shop = Shop::open(server.internal, STOCK).await;
        shop.sell(server.public, 1).await;
        until_replicated(nodes[0]);
        for (index, node) in nodes.into_iter().enumerate() {
            println!("node {index} is killed");
            let crowd = shop.crowd(server.public, BUYERS);
            node.kill();
            shop.settle(server.public, crowd).await;
            shop.sell(server.public, BUYERS).await;
            fixture.drained(server.internal).await;
            assert_doctor_finds_one_silent(&fixture, node).await;
            node.restart();
            until_replicated(node);
        }
        println!("two nodes are killed");
        nodes[0].kill();
        nodes[1].kill();
        shop.sell(server.public, BUYERS).await;
        assert!(stage(server.internal, "sale", "unsettled").await > 0);
        nodes[0].launch();
        nodes[1].launch();
        until("both nodes", async || {
            nodes.iter().all(|node| node.is_ready().unwrap()).then_some(())
        })
        .await;
        fixture.drained(server.internal).await;
        shop.check(&fixture, server.internal).await;
    });
}

fn message(number: u8) -> Message {
    let headers = Headers { message_id: number.to_string(), ..Headers::default() };
    Message { route: Route::Orders(0), headers, body: Bytes::from(vec![number]) }
}

/// A new queue whose connection ended is not deleted while nodes are away: it does not answer, and
/// has no more than no majority.
#[test]
fn a_new_queue_without_a_majority_keeps_its_messages() {
    let nodes = RabbitMq::start_cluster(NODES);
    let options = RabbitOptions::new(&url(&nodes), Topology::new("new", 1, 100)).unwrap();
    run(async {
        let broker = RabbitBroker::new(options).unwrap();
        let mut outgoing = broker.open_channel(1);
        assert_eq!(outgoing.publish(vec![message(1)]).await, [PublishOutcome::Confirmed]);
        std::thread::scope(|scope| {
            for node in &nodes[1..] {
                scope.spawn(|| {
                    node.settle();
                    node.kill();
                });
            }
        });
        nodes[0].ctl(&["close_all_connections", "--global", "test"]);
        until("a new connection", async || {
            let [outcome] = outgoing.publish(vec![message(2)]).await.try_into().unwrap();
            (!matches!(outcome, PublishOutcome::NotSent { .. })).then_some(())
        })
        .await;
        nodes[1].restart();
        nodes[2].restart();
        let mut subscription =
            until("a subscription", async || broker.subscribe(Route::Orders(0), 1).await.ok())
                .await;
        let first = tokio::time::timeout(Duration::from_mins(1), subscription.next()).await;
        assert_eq!(first.unwrap().unwrap().body, message(1).body);
    });
}
