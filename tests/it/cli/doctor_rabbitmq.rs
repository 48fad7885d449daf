//! `floodgate doctor` on a real RabbitMQ, with exactly one fault at a time.

use floodgate::broker::{RabbitBroker, Subscriber, Topology};
use floodgate::domain::NewDeadLetter;
use floodgate::runtime::clock::SystemClock;
use floodgate::tier;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

use super::doctor::{Diagnosis, Stack};
use crate::support::dead_letters::new_dead_letter;
use crate::support::offers::run;
use crate::support::process::settings;
use crate::support::servers::Port;
use crate::support::servers::rabbitmq::{Alarm, RabbitMq};
use crate::support::servers::redis::{AOF_ALWAYS, Redis};
use crate::support::wait::until_true;

const CHECKS: [&str; 6] = [
    "broker",
    "broker version",
    "broker topology",
    "broker publishing",
    "broker consumers",
    "broker dead letters",
];

fn examine(redis: &Redis, amqp: &str) -> Diagnosis {
    let keys = [
        ("FLOODGATE__TIER", "pipeline"),
        ("FLOODGATE__REDIS__URL", &redis.url()),
        ("FLOODGATE__AMQP__URL", amqp),
    ];
    Stack::new(&keys).examine()
}

fn declare(server: &RabbitMq) {
    // The values of config/default.toml.
    let topology = Topology::new("fg", 1, 100);
    let broker = RabbitBroker::new(server.options(topology)).unwrap();
    run(async { drop(broker.depths().await.unwrap()) });
}

/// Publishes one message that no consumer receives.
fn publish(server: &RabbitMq, queue: &str) {
    server.with_channel(async |channel| {
        let options = BasicPublishOptions::default();
        let properties = lapin::BasicProperties::default();
        channel.basic_publish("".into(), queue.into(), options, b"x", properties).await.unwrap();
    });
    until_true("the message", || server.num_ready(queue) == Some(1));
}

#[test]
fn each_defect_of_a_broker_is_reported_with_its_remedy() {
    let (server, redis) = (RabbitMq::start(), Redis::start_with(AOF_ALWAYS));
    let examine_broker = || examine(&redis, &server.url());

    let fresh = examine_broker();
    fresh.assert_ok("broker");
    let checks: Vec<_> = fresh.about("broker").iter().map(|one| one.check.clone()).collect();
    assert_eq!(checks, CHECKS);
    assert!(fresh.about("broker version")[0].detail.starts_with("RabbitMQ 3."), "{fresh:#?}");
    for list in ["list_queues", "list_exchanges"] {
        assert!(!server.ctl(&[list, "name"]).contains("fg."), "the doctor leaves nothing behind");
    }

    declare(&server);
    examine_broker().assert_ok("broker");

    server.delete_queue("fg.orders.0");
    let missing = examine_broker();
    assert!(
        missing.only_problem("broker", "warn").detail.contains("missing: orders.0"),
        "{missing:#?}"
    );
    assert_eq!(server.num_ready("fg.orders.0"), None, "the doctor declares nothing");
    server.with_channel(async |channel| {
        let options = QueueDeclareOptions::durable();
        channel.queue_declare("fg.orders.0".into(), options, FieldTable::default()).await.unwrap();
    });
    let other = examine_broker();
    let finding = other.only_problem("broker", "fail");
    assert_eq!(finding.check, "broker topology");
    assert!(finding.remedy.contains("rabbitmqctl delete_queue fg.orders.0"), "{finding:#?}");
    server.delete_queue("fg.orders.0");
    declare(&server);

    for (queue, words) in [
        ("fg.orders.0", "1 messages wait in orders.0 and no process consumes them"),
        ("fg.dead", "1 dead letters wait"),
    ] {
        publish(&server, queue);
        let waiting = examine_broker();
        assert!(waiting.only_problem("broker", "warn").detail.starts_with(words), "{waiting:#?}");
        server.delete_queue(queue);
        declare(&server);
    }

    for (alarm, resource) in [(Alarm::Memory, "memory"), (Alarm::Disk, "disk")] {
        server.alarm(alarm, true);
        let blocked = examine_broker();
        let finding = blocked.only_problem("broker", "fail");
        let words = format!("accepts no messages: low on {resource}");
        assert!(finding.detail.contains(&words), "{finding:#?}");
        server.alarm(alarm, false);
        examine_broker().assert_ok("broker");
    }

    assert_nodes_are_passed_over(&server, &redis);
    assert_access_errors(&server, &redis);
}

/// In every tier; also while neither Redis nor the broker answers.
#[test]
fn open_dead_letters_of_the_ledger_are_reported() {
    assert_dead_letters_are_reported(&Stack::new(&[]));
    assert_dead_letters_are_reported(&Stack::new(&[
        ("FLOODGATE__TIER", "pipeline"),
        ("FLOODGATE__REDIS__URL", "redis://127.0.0.1:1"),
        ("FLOODGATE__AMQP__URL", "amqp://guest:guest@127.0.0.1:1/%2f"),
    ]));
}

fn assert_dead_letters_are_reported(stack: &Stack) {
    let store = |dead_letter: Option<NewDeadLetter>| {
        run(async {
            let settings = settings(stack.path());
            let ledger = tier::open(&settings, &SystemClock::shared()).await.unwrap().ledger;
            tier::installation(&*ledger).await.unwrap();
            if let Some(dead_letter) = dead_letter {
                ledger.store_dead_letters(vec![dead_letter], 0).await.unwrap();
            }
            ledger.close().await;
        });
    };
    store(None);
    assert_eq!(stack.examine().about("dead letters")[0].status, "ok");
    store(Some(new_dead_letter(&[1])));
    let diagnosis = stack.examine();
    let finding = diagnosis.about("dead letters")[0];
    assert_eq!(finding.status, "warn", "{finding:#?}");
    assert!(finding.detail.starts_with("1 open"), "{finding:#?}");
    assert!(finding.remedy.contains("floodgate dlq list"), "{finding:#?}");
}

/// A connect reaches the one node that is up, with whichever node it begins.
fn assert_nodes_are_passed_over(server: &RabbitMq, redis: &Redis) {
    let ports: Vec<Port> = (0..9).map(|_| Port::claim().unwrap()).collect();
    let dead: Vec<String> = ports.iter().map(|port| port.addr().to_string()).collect();
    let url = |nodes: &[String]| format!("amqp://guest:guest@{}/%2f", nodes.join(","));
    for _ in 0..3 {
        let nodes = [dead.as_slice(), &[server.addr().to_string()]].concat();
        let found = examine(redis, &url(&nodes));
        let finding = found.only_problem("broker", "warn");
        assert_eq!(finding.check, "broker nodes");
        assert!(finding.detail.starts_with("9 of 10 do not answer: "), "{finding:#?}");
        assert!(dead.iter().all(|node| finding.detail.contains(node)), "{finding:#?}");
    }
    let found = examine(redis, &url(&dead));
    let finding = found.only_problem("broker", "fail");
    assert!(dead.iter().all(|node| finding.detail.contains(node)), "{finding:#?}");
}

fn assert_access_errors(server: &RabbitMq, redis: &Redis) {
    let addr = server.addr();
    let assert_remedy = |url: &str, words: &str| {
        let diagnosis = examine(redis, url);
        let finding = diagnosis.only_problem("broker", "fail");
        assert!(finding.remedy.contains(words), "{finding:#?}");
        assert!(!format!("{finding:?}").contains("secret"), "{finding:#?}");
    };
    assert_remedy(&format!("amqp://guest:secret@{addr}/%2f"), "the right user and password");
    assert_remedy(&format!("amqp://guest:guest@{addr}/nowhere"), "add_vhost");
    server.ctl(&["add_user", "clerk", "clerk"]);
    assert_remedy(&format!("amqp://clerk:clerk@{addr}/%2f"), "set_permissions");
    server.ctl(&["set_permissions", "clerk", "^other\\.", ".*", ".*"]);
    assert_remedy(&format!("amqp://clerk:clerk@{addr}/%2f"), "set_permissions");
    server.ctl(&["set_permissions", "clerk", "^fg\\.", "^fg\\.", "^fg\\."]);
    examine(redis, &format!("amqp://clerk:clerk@{addr}/%2f")).assert_ok("broker");
    let closed = Port::claim().unwrap();
    assert_remedy(&format!("amqp://guest:guest@{}/%2f", closed.addr()), "start it");
}
