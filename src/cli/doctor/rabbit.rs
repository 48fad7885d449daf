//! Checks of RabbitMQ, which queues orders for the ledger: access, topology, publishing, consumers.

use std::time::Duration;

use super::{CheckOutcome, Finding, Status, fail, ok, warn};
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
pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    // A missing address is a fault of the configuration.
    if settings.tier != Tier::Pipeline || settings.amqp.url.is_empty() {
        return Vec::new();
    }
    let options = match tier::broker_options(settings) {
        Ok(options) => options,
        Err(error) => {
            let remedy = "correct amqp.url; see config/default.toml for its format";
            return vec![fail(error.to_string(), remedy).on("broker")];
        }
    };
    match health::read(&options).await {
        Ok(facts) => check(&facts),
        Err(error) => vec![inaccessible(&error).on("broker")],
    }
}

fn inaccessible(error: &BrokerHealthError) -> CheckOutcome {
    let reason = &error.reason;
    match error.code {
        Some(ACCESS_REFUSED) => fail(
            format!("does not let us in: {reason}"),
            "put the right user and password into amqp.url; the user `guest` may connect from \
             the broker's own machine only",
        ),
        Some(NOT_ALLOWED) => fail(
            format!("does not let us into the virtual host: {reason}"),
            "`rabbitmqctl add_vhost VHOST` and `rabbitmqctl set_permissions -p VHOST USER '.*' \
             '.*' '.*'`, or name another one in amqp.url (`/` is written %2f)",
        ),
        _ => fail(
            format!("does not answer: {reason}"),
            "start it, or correct amqp.url; `rabbitmq-diagnostics listeners` on its machine names \
             its ports",
        ),
    }
}

fn check(facts: &BrokerFacts) -> Vec<Finding> {
    let ms = facts.connect_time.as_secs_f64() * 1000.0;
    let mut findings = vec![
        ok(format!("connects in {ms:.1} ms")).on("broker"),
        version(facts.version.as_deref()).on("broker version"),
        topology(facts).on("broker topology"),
    ];
    let is_wrong = findings.iter().any(|finding| finding.is(Status::Fail));
    // A user who may not declare may not publish either: report one finding, not two.
    if !(is_wrong && matches!(facts.self_test, SelfTest::Refused(_))) {
        findings.push(publishing(&facts.self_test).on("broker publishing"));
    }
    findings.push(consumers(&facts.queues).on("broker consumers"));
    let dead_letters = dead_letters(&facts.queues).into_iter();
    findings.extend(dead_letters.map(|outcome| outcome.on("broker dead letters")));
    findings
}

fn version(version: Option<&str>) -> CheckOutcome {
    let Some(version) = version else {
        return ok("not reported");
    };
    let numbers = version.rsplit(' ').next().unwrap_or_default().split('.');
    let seen: Vec<u32> = numbers.take(2).map(|part| part.parse().unwrap_or(0)).collect();
    if seen.as_slice() >= &VERSION_MIN[..] {
        return ok(version);
    }
    fail(format!("{version} may lose dead letters in transit"), "upgrade it to 3.10 or later")
}

fn topology(facts: &BrokerFacts) -> CheckOutcome {
    let parts = || facts.exchanges.iter().chain(&facts.queues);
    let mismatch = parts().find_map(|part| match &part.status {
        PartStatus::Differs(message) => Some(message),
        PartStatus::Matches | PartStatus::Missing => None,
    });
    if let Some(message) = mismatch {
        let (detail, remedy) =
            message.split_once("; ").unwrap_or((message, "see the broker's log"));
        return fail(detail, remedy);
    }
    let is_missing = |part: &&TopologyPart| part.status == PartStatus::Missing;
    let missing: Vec<&str> = parts().filter(is_missing).map(|part| part.name.as_str()).collect();
    let (exchanges, queues) = (facts.exchanges.len(), facts.queues.len());
    if missing.is_empty() {
        return ok(format!("{exchanges} exchanges and {queues} queues are declared correctly"));
    }
    if missing.len() == exchanges + queues {
        return ok("nothing is declared yet; serve declares it");
    }
    warn(
        format!("missing: {}", missing.join(", ")),
        "start the server, which declares missing parts whenever it connects; if they disappear \
         again, find the client that deletes them",
    )
}

fn publishing(self_test: &SelfTest) -> CheckOutcome {
    match self_test {
        SelfTest::Works(took) => {
            let detail = format!("a message is confirmed in {:.1} ms", took.as_secs_f64() * 1000.0);
            if *took <= CONFIRM_COMFORTABLE {
                return ok(detail);
            }
            let remedy = "run it in the same data centre as this program, on a disk of its own";
            warn(detail, remedy)
        }
        SelfTest::Blocked(reason) => fail(
            format!("it accepts no messages: {reason}"),
            "free memory or disk on its machine: `rabbitmq-diagnostics alarms` names which; \
             accepted orders wait in Redis meanwhile",
        ),
        SelfTest::Refused(reason) => fail(
            format!("it refuses the server's operations: {reason}"),
            "let the user configure, write and read names that begin with the namespace: \
             `rabbitmqctl set_permissions -p VHOST USER '^NAMESPACE\\.' '^NAMESPACE\\.' \
             '^NAMESPACE\\.'`",
        ),
    }
}

fn consumers(queues: &[TopologyPart]) -> CheckOutcome {
    let orders = || queues.iter().filter(|queue| queue.name.starts_with("orders."));
    let unconsumed: Vec<&TopologyPart> =
        orders().filter(|queue| queue.num_consumers == 0 && queue.num_ready > 0).collect();
    if unconsumed.is_empty() {
        let consumers: u64 = orders().map(|queue| queue.num_consumers).sum();
        let ready: u64 = orders().map(|queue| queue.num_ready).sum();
        return ok(format!("{consumers}; {ready} messages wait for them"));
    }
    let ready: u64 = unconsumed.iter().map(|queue| queue.num_ready).sum();
    let names: Vec<&str> = unconsumed.iter().map(|queue| queue.name.as_str()).collect();
    warn(
        format!("{ready} messages wait in {} and no process consumes them", names.join(", ")),
        "start a process with role = \"consumer\" or \"all\"",
    )
}

/// Messages in the queues that should be empty: `dead` and `unreadable`.
fn dead_letters(queues: &[TopologyPart]) -> Vec<CheckOutcome> {
    let ready = |name: &str| {
        let queue = queues.iter().find(|queue| queue.name == name);
        queue.map_or((0, 0), |queue| (queue.num_ready, queue.num_consumers))
    };
    let remedy = "start a process with role = \"maintenance\" or \"all\", which moves them to the \
                  ledger; then `floodgate dlq list`";
    let mut findings = Vec::new();
    match ready("dead") {
        (0, _) => {}
        (count, 0) => findings
            .push(warn(format!("{count} dead letters wait, and no process consumes them"), remedy)),
        (count, _) => findings.push(warn(
            format!("{count} dead letters wait"),
            "check again in a minute; if they do not become fewer, see the log of role maintenance",
        )),
    }
    if let (count @ 1.., _) = ready("unreadable") {
        findings.push(warn(
            format!("{count} messages wait in `unreadable`: they could not be stored"),
            "inspect them in the management interface, find out who published them, and purge the \
             queue; accepted requests that are still queued are resubmitted by their gate",
        ));
    }
    if findings.is_empty() {
        findings.push(ok("none wait in the broker"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, status: PartStatus, num_ready: u64, num_consumers: u64) -> TopologyPart {
        TopologyPart { name: name.to_owned(), status, num_ready, num_consumers }
    }

    fn facts() -> BrokerFacts {
        let fits = |name| part(name, PartStatus::Matches, 0, 1);
        BrokerFacts {
            connect_time: Duration::from_millis(2),
            version: Some("RabbitMQ 3.10.8".to_owned()),
            exchanges: vec![fits("intents")],
            queues: ["orders.0", "orders.1", "dead"].map(fits).to_vec(),
            self_test: SelfTest::Works(Duration::from_millis(1)),
        }
    }

    /// The only finding that is not ok after `change`.
    fn wrong(change: impl FnOnce(&mut BrokerFacts)) -> CheckOutcome {
        let mut facts = facts();
        change(&mut facts);
        let wrong = check(&facts).into_iter().filter(|finding| !finding.is(Status::Ok));
        let mut wrong: Vec<_> = wrong.collect();
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        let finding = wrong.remove(0).verdict;
        assert!(!finding.remedy.is_empty(), "{finding:?}");
        finding
    }

    #[test]
    fn a_healthy_broker_passes() {
        for finding in check(&facts()) {
            assert!(finding.is(Status::Ok), "{finding:?}");
        }
    }

    #[test]
    fn each_problem_is_exactly_one_finding() {
        assert!(wrong(|f| f.version = Some("RabbitMQ 3.9.29".into())).detail.contains("3.9.29"));
        let missing = wrong(|f| f.queues[1].status = PartStatus::Missing);
        assert!(missing.detail.contains("orders.1"), "{missing:?}");
        let other = PartStatus::Differs("queue x is there with other arguments; delete it".into());
        assert_eq!(wrong(|f| f.queues[0].status = other).remedy, "delete it");
        assert!(
            wrong(|f| f.self_test = SelfTest::Blocked("low on disk".into()))
                .detail
                .contains("disk")
        );
        assert!(
            wrong(|f| f.self_test = SelfTest::Refused("no (403)".into())).detail.contains("403")
        );
        let slow = wrong(|f| f.self_test = SelfTest::Works(Duration::from_secs(1)));
        assert_eq!(slow.status, Status::Warn);
        let unconsumed = wrong(|f| f.queues[0] = part("orders.0", PartStatus::Matches, 5, 0));
        assert!(unconsumed.detail.starts_with("5 messages wait in orders.0"), "{unconsumed:?}");
        assert!(wrong(|f| f.queues[2].num_ready = 2).detail.starts_with("2 dead letters"));
        let unreadable = wrong(|f| f.queues.push(part("unreadable", PartStatus::Matches, 2, 0)));
        assert!(unreadable.detail.contains("2 messages wait in `unreadable`"), "{unreadable:?}");
    }

    #[test]
    fn a_broker_without_topology_passes() {
        let mut facts = facts();
        for part in facts.exchanges.iter_mut().chain(&mut facts.queues) {
            part.status = PartStatus::Missing;
            part.num_consumers = 0;
        }
        assert!(check(&facts).iter().all(|finding| finding.is(Status::Ok)));
    }

    #[test]
    fn each_refused_connection_has_its_own_remedy() {
        for (code, word) in [(Some(403), "password"), (Some(530), "vhost"), (None, "start it")] {
            let finding = inaccessible(&BrokerHealthError { code, reason: "no".to_owned() });
            assert!(finding.remedy.contains(word), "{finding:?}");
        }
    }
}
