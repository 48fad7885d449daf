use super::super::Status::{Fail, Warn};
use super::super::tests::{assert_problem, problems};
use super::*;

fn part(name: &str, status: PartStatus, num_ready: u64, num_consumers: u64) -> TopologyPart {
    TopologyPart { name: name.to_owned(), status, num_ready, num_consumers }
}

fn healthy() -> BrokerFacts {
    let fits = |name| part(name, PartStatus::Matches, 0, 1);
    BrokerFacts {
        connect_time: Duration::from_millis(2),
        version: Some("RabbitMQ 3.10.8".to_owned()),
        num_nodes: 1,
        silent_nodes: Vec::new(),
        exchanges: vec![fits("intents")],
        queues: ["orders.0", "orders.1", "dead"].map(fits).to_vec(),
        self_test: SelfTest::Works(Duration::from_millis(1)),
    }
}

#[test]
fn each_problem_is_exactly_one_finding() {
    assert_eq!(problems(checks(&healthy(), Some("spring"), false)), []);
    let with = |change: fn(&mut BrokerFacts)| {
        let mut facts = healthy();
        change(&mut facts);
        checks(&facts, Some("spring"), false)
    };
    let old = with(|facts| facts.version = Some("RabbitMQ 3.9.29".into()));
    assert_problem(old, "broker version", Fail, "3.9.29");
    let silent = with(|facts| {
        facts.num_nodes = 3;
        facts.silent_nodes.push("b:5672 (refused)".into());
    });
    assert_problem(silent, "broker nodes", Warn, "1 of 3 do not answer: b:5672 (refused) ->");
    let refused = with(|facts| facts.self_test = SelfTest::Refused("no (403)".into()));
    assert_problem(refused, "broker publishing", Fail, "403");
    let slow = with(|facts| facts.self_test = SelfTest::Works(Duration::from_secs(1)));
    assert_problem(slow, "broker publishing", Warn, "1000.0 ms");
    let dead = with(|facts| facts.queues[2].num_ready = 2);
    assert_problem(dead, "broker dead letters", Warn, "2 dead letters wait ->");
    let idle = with(|facts| facts.queues[1].num_consumers = 0);
    assert_problem(idle, "broker consumers", Warn, "no process consumes orders.1 ->");
    let mut facts = healthy();
    facts.queues[1].num_consumers = 0;
    let beside_a_server = checks(&facts, Some("spring"), true);
    assert_problem(beside_a_server, "broker consumers", Fail, "no process consumes orders.1 ->");
    let unmaintained = with(|facts| facts.queues[2].num_consumers = 0);
    assert_problem(unmaintained, "maintenance", Warn, "none runs: dead letters");
    let unreadable = with(|facts| facts.queues.push(part("unreadable", PartStatus::Matches, 2, 0)));
    assert_problem(unreadable, "broker dead letters", Warn, "2 messages wait in `unreadable`");
    // Nor may a process subscribe to what it cannot declare.
    let mut facts = healthy();
    facts.queues[0].status = PartStatus::Differs("other deliveries_max; delete it".into());
    facts.queues.iter_mut().for_each(|queue| queue.num_consumers = 0);
    let changed = checks(&facts, Some("spring"), true);
    assert_problem(changed, "broker topology", Fail, "other deliveries_max -> delete it");
    // A user who may not declare may not publish either: one finding.
    let denied = with(|facts| {
        facts.queues[0].status = PartStatus::Differs("it differs; delete it".into());
        facts.self_test = SelfTest::Refused("no".into());
    });
    assert_problem(denied, "broker topology", Fail, "it differs -> delete it");
}

#[test]
fn payment_events_without_a_consumer_are_a_finding() {
    let mut facts = healthy();
    facts.queues.push(part("payments", PartStatus::Matches, 2, 0));
    let text = "2 messages wait in payments and no process consumes them -> start a process with \
                role = \"consumer\" or \"all\" and the same payment.queue";
    assert_problem(checks(&facts, None, false), "broker consumers", Warn, text);
    assert_problem(checks(&facts, None, true), "broker consumers", Fail, text);
    facts.queues[3] = part("payments", PartStatus::Matches, 2, 1);
    assert_eq!(problems(checks(&facts, Some("spring"), true)), []);
}
