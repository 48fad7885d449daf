//! RabbitMQ, where orders wait for the ledger: does it let us in, is it laid out as it must be,
//! does it take messages, and does somebody take them out?

use std::time::Duration;

use super::{CheckOutcome, Finding, Status, fail, ok, warn};
use crate::broker::rabbit::health::{
    self, BrokerFacts, BrokerHealthError, PartStatus, SelfTest, TopologyPart,
};
use crate::config::{Settings, Tier};
use crate::tier;

/// The oldest that hands dead letters on at least once.
const VERSION_MIN: [u32; 2] = [3, 10];
/// Above it each window of messages is slow, whatever the broker does.
const CONFIRM_COMFORTABLE: Duration = Duration::from_millis(100);
/// What the broker answers where it refuses a user, and where it refuses a virtual host.
const ACCESS_REFUSED: u16 = 403;
const NOT_ALLOWED: u16 = 530;

/// Looks at the broker behind `amqp.url`, where there is one.
pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    // A missing address is a fault of the configuration.
    if settings.tier != Tier::Pipeline || settings.amqp.url.is_empty() {
        return Vec::new();
    }
    let options = match tier::broker_options(settings) {
        Ok(options) => options,
        Err(error) => {
            let remedy = "correct amqp.url; config/default.toml says how it is written";
            return vec![fail(error.to_string(), remedy).on("broker")];
        }
    };
    match health::look(&options).await {
        Ok(facts) => judge(&facts),
        Err(trouble) => vec![not_seen(&trouble).on("broker")],
    }
}

fn not_seen(trouble: &BrokerHealthError) -> CheckOutcome {
    let reason = &trouble.reason;
    match trouble.code {
        Some(ACCESS_REFUSED) => fail(
            format!("does not let us in: {reason}"),
            "put the right user and password into amqp.url; the user `guest` may come from the \
             broker's own machine only",
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

fn judge(facts: &BrokerFacts) -> Vec<Finding> {
    let ms = facts.connect_took.as_secs_f64() * 1000.0;
    let mut findings = vec![
        ok(format!("connects in {ms:.1} ms")).on("broker"),
        version(facts.version.as_deref()).on("broker version"),
        topology(facts).on("broker topology"),
    ];
    let is_wrong = findings.iter().any(|finding| finding.is(Status::Fail));
    // Who may not declare may not publish either: one thing to do.
    if !(is_wrong && matches!(facts.trial, SelfTest::Refused(_))) {
        findings.push(trial(&facts.trial).on("broker publishing"));
    }
    findings.push(consumers(&facts.queues).on("broker consumers"));
    let waiting = waiting(&facts.queues).into_iter();
    findings.extend(waiting.map(|verdict| verdict.on("broker dead letters")));
    findings
}

fn version(version: Option<&str>) -> CheckOutcome {
    let Some(version) = version else {
        return ok("not told");
    };
    let numbers = version.rsplit(' ').next().unwrap_or_default().split('.');
    let seen: Vec<u32> = numbers.take(2).map(|part| part.parse().unwrap_or(0)).collect();
    if seen.as_slice() >= &VERSION_MIN[..] {
        return ok(version);
    }
    fail(format!("{version} may lose dead letters on their way"), "upgrade it to 3.10 or later")
}

fn topology(facts: &BrokerFacts) -> CheckOutcome {
    let parts = || facts.exchanges.iter().chain(&facts.queues);
    let wrong = parts().find_map(|part| match &part.standing {
        PartStatus::Wrong(what) => Some(what),
        PartStatus::Fits | PartStatus::Missing => None,
    });
    if let Some(what) = wrong {
        let (detail, remedy) = what.split_once("; ").unwrap_or((what, "see the broker's log"));
        return fail(detail, remedy);
    }
    let is_missing = |part: &&TopologyPart| part.standing == PartStatus::Missing;
    let missing: Vec<&str> = parts().filter(is_missing).map(|part| part.name.as_str()).collect();
    let (exchanges, queues) = (facts.exchanges.len(), facts.queues.len());
    if missing.is_empty() {
        let detail = format!("{exchanges} exchanges and {queues} queues are as they must be");
        return ok(detail);
    }
    if missing.len() == exchanges + queues {
        return ok("nothing is declared yet; serve declares it");
    }
    warn(
        format!("missing: {}", missing.join(", ")),
        "start the server, which declares what is missing whenever it connects; if somebody \
         deletes it again and again, find out who",
    )
}

fn trial(trial: &SelfTest) -> CheckOutcome {
    match trial {
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
        SelfTest::Refused(why) => fail(
            format!("it refuses what the server does: {why}"),
            "let the user configure, write and read what begins with the namespace: \
             `rabbitmqctl set_permissions -p VHOST USER '^NAMESPACE\\.' '^NAMESPACE\\.' \
             '^NAMESPACE\\.'`",
        ),
    }
}

fn consumers(queues: &[TopologyPart]) -> CheckOutcome {
    let orders = || queues.iter().filter(|queue| queue.name.starts_with("orders."));
    let alone: Vec<&TopologyPart> =
        orders().filter(|queue| queue.num_consumers == 0 && queue.num_ready > 0).collect();
    if alone.is_empty() {
        let consumers: u64 = orders().map(|queue| queue.num_consumers).sum();
        let ready: u64 = orders().map(|queue| queue.num_ready).sum();
        return ok(format!("{consumers}; {ready} messages wait for them"));
    }
    let ready: u64 = alone.iter().map(|queue| queue.num_ready).sum();
    let names: Vec<&str> = alone.iter().map(|queue| queue.name.as_str()).collect();
    warn(
        format!("{ready} messages wait in {} and nobody takes them out", names.join(", ")),
        "start a process with role = \"consumer\" or \"all\"",
    )
}

/// Messages where none should wait for long.
fn waiting(queues: &[TopologyPart]) -> Vec<CheckOutcome> {
    let ready = |name: &str| {
        let queue = queues.iter().find(|queue| queue.name == name);
        queue.map_or((0, 0), |queue| (queue.num_ready, queue.num_consumers))
    };
    let remedy = "start a process with role = \"maintenance\" or \"all\", which brings them into \
                  the ledger; then `floodgate dlq list`";
    let mut findings = Vec::new();
    match ready("dead") {
        (0, _) => {}
        (count, 0) => findings
            .push(warn(format!("{count} dead letters wait, and nobody takes them out"), remedy)),
        (count, _) => findings.push(warn(
            format!("{count} dead letters wait"),
            "look again in a minute; if they do not become fewer, see the log of role maintenance",
        )),
    }
    if let (count @ 1.., _) = ready("unreadable") {
        findings.push(warn(
            format!("{count} messages wait in `unreadable`: nobody could take them in"),
            "look at them in the management interface, find out who wrote them, and purge the \
             queue; what was accepted here and is still queued is sent again from its gate",
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

    fn part(name: &str, standing: PartStatus, num_ready: u64, num_consumers: u64) -> TopologyPart {
        TopologyPart { name: name.to_owned(), standing, num_ready, num_consumers }
    }

    fn facts() -> BrokerFacts {
        let fits = |name| part(name, PartStatus::Fits, 0, 1);
        BrokerFacts {
            connect_took: Duration::from_millis(2),
            version: Some("RabbitMQ 3.10.8".to_owned()),
            exchanges: vec![fits("intents")],
            queues: ["orders.0", "orders.1", "dead"].map(fits).to_vec(),
            trial: SelfTest::Works(Duration::from_millis(1)),
        }
    }

    /// The one finding that is not right after one thing went wrong.
    fn wrong(change: impl FnOnce(&mut BrokerFacts)) -> CheckOutcome {
        let mut facts = facts();
        change(&mut facts);
        let wrong = judge(&facts).into_iter().filter(|finding| !finding.is(Status::Ok));
        let mut wrong: Vec<_> = wrong.collect();
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        let finding = wrong.remove(0).verdict;
        assert!(!finding.remedy.is_empty(), "{finding:?}");
        finding
    }

    #[test]
    fn a_right_broker_passes() {
        for finding in judge(&facts()) {
            assert!(finding.is(Status::Ok), "{finding:?}");
        }
    }

    #[test]
    fn each_thing_that_is_wrong_is_named_alone() {
        assert!(wrong(|f| f.version = Some("RabbitMQ 3.9.29".into())).detail.contains("3.9.29"));
        let missing = wrong(|f| f.queues[1].standing = PartStatus::Missing);
        assert!(missing.detail.contains("orders.1"), "{missing:?}");
        let other = PartStatus::Wrong("queue x is there with other arguments; delete it".into());
        assert_eq!(wrong(|f| f.queues[0].standing = other).remedy, "delete it");
        assert!(
            wrong(|f| f.trial = SelfTest::Blocked("low on disk".into())).detail.contains("disk")
        );
        assert!(wrong(|f| f.trial = SelfTest::Refused("no (403)".into())).detail.contains("403"));
        let slow = wrong(|f| f.trial = SelfTest::Works(Duration::from_secs(1)));
        assert_eq!(slow.status, Status::Warn);
        let alone = wrong(|f| f.queues[0] = part("orders.0", PartStatus::Fits, 5, 0));
        assert!(alone.detail.starts_with("5 messages wait in orders.0"), "{alone:?}");
        assert!(wrong(|f| f.queues[2].num_ready = 2).detail.starts_with("2 dead letters"));
        let unread = wrong(|f| f.queues.push(part("unreadable", PartStatus::Fits, 2, 0)));
        assert!(unread.detail.contains("2 messages wait in `unreadable`"), "{unread:?}");
    }

    #[test]
    fn a_broker_that_is_still_empty_is_right() {
        let mut facts = facts();
        for part in facts.exchanges.iter_mut().chain(&mut facts.queues) {
            part.standing = PartStatus::Missing;
            part.num_consumers = 0;
        }
        assert!(judge(&facts).iter().all(|finding| finding.is(Status::Ok)));
    }

    #[test]
    fn who_is_not_let_in_hears_why() {
        for (code, word) in [(Some(403), "password"), (Some(530), "vhost"), (None, "start it")] {
            let finding = not_seen(&BrokerHealthError { code, reason: "no".to_owned() });
            assert!(finding.remedy.contains(word), "{finding:?}");
        }
    }
}
