//! Checks of RabbitMQ, which queues orders for the ledger: access, topology, publishing, consumers.

use std::time::Duration;

use super::ledger::LedgerFacts;
use super::{Check, Finding, fail_as, is_at_least, ms};
use crate::broker::rabbit::health::{
    self, BrokerFacts, BrokerHealthError, PartStatus, SelfTest, TopologyPart,
};
use crate::config::{Settings, Tier};
use crate::tier;

/// The oldest version with at-least-once dead-lettering.
const VERSION_MIN: [u32; 2] = [3, 10];
/// Above this each confirm window is slow.
const CONFIRM_COMFORTABLE: Duration = Duration::from_millis(100);
/// AMQP reply codes: a refused user, and a refused virtual host.
const ACCESS_REFUSED: u16 = 403;
const NOT_ALLOWED: u16 = 530;

/// Checks the broker at `amqp.url`; no findings for a tier without a broker.
pub(super) async fn examine(settings: &Settings, running: bool) -> Vec<Check> {
    // A missing address is a fault of the configuration.
    if settings.tier != Tier::Pipeline || settings.amqp.url.is_empty() {
        return Vec::new();
    }
    match tier::broker_options(settings) {
        Ok(options) => {
            let facts = health::read(&options).await;
            let ledger = LedgerFacts::read(settings).await.ok().flatten();
            let open = ledger.as_ref().and_then(LedgerFacts::open_sale);
            let open = open.map(|sale| sale.id.as_str());
            match facts {
                Ok(facts) => checks(&facts, open, running),
                Err(error) => vec![inaccessible(&error)],
            }
        }
        Err(error) => vec![check! { "broker";
            Fail "{error}" -> "correct amqp.url; see config/default.toml for its format"
        }],
    }
}

fn inaccessible(BrokerHealthError { code, reason }: &BrokerHealthError) -> Check {
    check! { "broker";
        *code == Some(ACCESS_REFUSED) => Fail "refuses the user: {reason}"
            -> "put the right user and password into amqp.url; the user `guest` may connect from \
                the broker's own machine only";
        *code == Some(NOT_ALLOWED) => Fail "refuses the user the virtual host: {reason}"
            -> "`rabbitmqctl add_vhost VHOST` and `rabbitmqctl set_permissions -p VHOST USER \
                '^NAMESPACE\\.' '^NAMESPACE\\.' '^NAMESPACE\\.'`, or name another one in amqp.url \
                (`/` is written %2f)";
        else => Fail "does not answer: {reason}"
            -> "start it, or correct amqp.url; `rabbitmq-diagnostics listeners` on its machine \
                names its ports"
    }
}

/// `open` is the id of a sale that is open.
fn checks(facts: &BrokerFacts, open: Option<&str>, running: bool) -> Vec<Check> {
    let version = facts.version.as_deref();
    let shown = version.unwrap_or("not reported");
    let topology = topology(facts);
    let connects_ms = ms(facts.connect_time);
    let (silent, total) = (facts.silent_nodes.len(), facts.num_nodes);
    let silent_nodes = facts.silent_nodes.join(", ");
    let mut checks = vec![
        check! { "broker"; Ok "connects in {connects_ms:.1} ms" },
        check! { "broker version";
            version.is_some_and(|version| !is_at_least(version, &VERSION_MIN)) =>
                Fail "{shown} may lose dead letters in transit" -> "upgrade it to 3.10 or later";
            else => Ok "{shown}"
        },
        check! { "broker nodes";
            total > 1 && silent > 0 => Warn "{silent} of {total} do not answer: {silent_nodes}"
                -> "start them: a queue needs most of its nodes";
            total > 1 => Ok "{total} answer";
        },
    ];
    // A user who may not declare may not publish either: report one finding, not two.
    let is_wrong = checks.iter().chain([&topology]).flatten().any(Finding::is_failed);
    let publishing = publishing(&facts.self_test);
    let fits = topology.as_ref().is_none_or(|finding| !finding.is_failed());
    checks.push(topology);
    if !(is_wrong && matches!(facts.self_test, SelfTest::Refused(_))) {
        checks.push(publishing);
    }
    // No process can subscribe to what it cannot declare.
    if fits {
        checks.push(consumers(&facts.queues, open, running));
        checks.push(maintenance(&facts.queues, open.is_some(), running));
    }
    checks.extend(dead_letters(&facts.queues));
    checks
}

fn topology(facts: &BrokerFacts) -> Check {
    let name = "broker topology";
    let parts = || facts.exchanges.iter().chain(&facts.queues);
    let mismatch = parts().find_map(|part| match &part.status {
        PartStatus::Differs(message) => Some(message),
        PartStatus::Matches | PartStatus::Missing => None,
    });
    if let Some(message) = mismatch {
        return fail_as(name, message, "see the broker's log");
    }
    let is_missing = |part: &&TopologyPart| part.status == PartStatus::Missing;
    let missing: Vec<&str> = parts().filter(is_missing).map(|part| part.name.as_str()).collect();
    let (exchanges, queues) = (facts.exchanges.len(), facts.queues.len());
    let names = missing.join(", ");
    check! { name;
        missing.len() == exchanges + queues => Ok "nothing is declared yet; serve declares it";
        !missing.is_empty() => Warn "missing: {names}"
            -> "start the server, which declares missing parts whenever it connects; if they \
                disappear again, find the client that deletes them";
        else => Ok "{exchanges} exchanges and {queues} queues are declared correctly"
    }
}

fn publishing(self_test: &SelfTest) -> Check {
    let name = "broker publishing";
    match self_test {
        SelfTest::Works(took) => {
            let took_ms = ms(*took);
            check! { name;
                *took > CONFIRM_COMFORTABLE => Warn "a message is confirmed in {took_ms:.1} ms"
                    -> "run it in the same data centre as this program, on a disk of its own";
                else => Ok "a message is confirmed in {took_ms:.1} ms"
            }
        }
        SelfTest::Blocked(reason) => check! { name;
            Fail "it accepts no messages: {reason}"
            -> "free memory or disk on its machine, or raise the limit: `rabbitmq-diagnostics \
                alarms` names which; accepted orders wait in Redis meanwhile"
        },
        SelfTest::Refused(reason) => check! { name;
            Fail "it refuses the server's operations: {reason}"
            -> "let the user configure, write and read names that begin with the namespace: \
                `rabbitmqctl set_permissions -p VHOST USER '^NAMESPACE\\.' '^NAMESPACE\\.' \
                '^NAMESPACE\\.'`"
        },
    }
}

/// Whether no process consumes a queue that has messages, or gets some while a sale is open.
fn is_unconsumed(queue: &TopologyPart, is_open: bool) -> bool {
    let has_work = queue.num_ready > 0 || is_open && queue.status == PartStatus::Matches;
    queue.num_consumers == 0 && has_work
}

/// The queues that role `consumer` consumes: those of orders, and with `payment.queue` `payments`.
fn consumers(queues: &[TopologyPart], open: Option<&str>, running: bool) -> Check {
    let is_of_role = |name: &str| name.starts_with("orders.") || name == "payments";
    let of_role = || queues.iter().filter(|queue| is_of_role(&queue.name));
    let unconsumed: Vec<_> =
        of_role().filter(|queue| is_unconsumed(queue, open.is_some())).collect();
    let names: Vec<&str> = unconsumed.iter().map(|queue| queue.name.as_str()).collect();
    let remedy = if names.contains(&"payments") {
        "start a process with role = \"consumer\" or \"all\" and the same payment.queue"
    } else {
        "start a process with role = \"consumer\" or \"all\""
    };
    let names = names.join(", ");
    let consumers: u64 = of_role().map(|queue| queue.num_consumers).sum();
    let ready: u64 = of_role().map(|queue| queue.num_ready).sum();
    let stuck: u64 = unconsumed.iter().map(|queue| queue.num_ready).sum();
    // Without messages a queue is unconsumed because of an open sale.
    let open = open.filter(|_| !unconsumed.is_empty());
    check! { "broker consumers";
        stuck > 0 => fail_if(running)
            "{stuck} messages wait in {names} and no process consumes them" -> "{remedy}";
        let Some(sale) = open => fail_if(running)
            "sale {sale} is open and no process consumes {names}" -> "{remedy}";
        else => Ok "{consumers}; {ready} messages wait for them"
    }
}

/// Whether a process has role `maintenance` or `all`: only these consume the dead letters.
fn maintenance(queues: &[TopologyPart], is_open: bool, running: bool) -> Check {
    let lacks = |queue: &TopologyPart| queue.name == "dead" && is_unconsumed(queue, is_open);
    check! { "maintenance";
        queues.iter().any(lacks) => fail_if(running)
            "none runs: dead letters stay in the broker, and lost buckets stay `busy`"
            -> "start a process with role = \"maintenance\" or \"all\"";
    }
}

/// Messages in the queues that should be empty: `dead` and `unreadable`.
fn dead_letters(queues: &[TopologyPart]) -> [Check; 2] {
    let ready = |name: &str| {
        let queue = queues.iter().find(|queue| queue.name == name);
        queue.map_or(0, |queue| queue.num_ready)
    };
    let (dead, unreadable) = (ready("dead"), ready("unreadable"));
    let name = "broker dead letters";
    [
        check! { name;
            dead > 0 => Warn "{dead} dead letters wait"
                -> "check again in a minute; if they do not become fewer, see the log of role \
                    maintenance";
            unreadable == 0 => Ok "none wait in the broker";
        },
        check! { name;
            unreadable > 0 =>
                Warn "{unreadable} messages wait in `unreadable`: they could not be stored"
                -> "inspect them in the management interface, find out who published them, and \
                    purge the queue; the reconciler submits accepted requests that are still \
                    queued";
        },
    ]
}

#[cfg(test)]
#[path = "rabbit_tests.rs"]
mod tests;
