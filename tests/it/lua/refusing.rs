//! A script that does not accept a call leaves the keyspace unchanged, to the byte.

use floodgate::domain::Policy;
use floodgate::redis::scripts::{Error, OutboxArgs, Script, codes};
use redis::{RedisResult, Value};

use super::harness::{Fixture, OUTBOXES, ScriptClient};
use super::scenarios::{self, Ended, Scenario, State, enter, policies};
use crate::support::offers::ONE;
use crate::support::offers::order_of;
use crate::support::servers::redis::Redis;

/// A fault in the keyspace or in the call.
#[derive(Debug, Clone)]
enum Fault {
    /// A key of the call holds another type.
    WrongType { key: usize, write: &'static [&'static str] },
    /// The bucket does not exist.
    Missing,
    /// A field of the bucket has this value; `None`: the field is missing.
    Field(&'static str, Option<&'static str>),
    /// The call comes from another installation.
    OtherInstallation,
    /// The fence of the call names another server.
    OtherServer,
    /// A loader holds the bucket.
    Loading,
}

/// Commands that write types which no script uses: the verb, then the arguments after the key.
const OTHER_TYPES: [&[&str]; 3] = [&["SET", "text"], &["SADD", "1"], &["ZADD", "1", "member"]];

/// Field values that no script accepts as a number; `None`: the field is missing.
const NOT_A_NUMBER: [Option<&str>; 10] = [
    None,
    Some(""),
    Some("-1"),
    Some("1.5"),
    Some("1e3"),
    Some("0x10"),
    Some(" 1"),
    Some("nan"),
    Some("many"),
    Some("12345678901234567890"),
];

/// The number of the last change of the stock.
const CHANGE: &str = "stock_change";

/// The mandatory fields of a bucket.
const FIELDS: [&str; 12] = [
    "epoch", "server", "phase", "stock", "lent", "released", "returned", "failed", "loaded",
    "queued", "changes", CHANGE,
];

/// Whether a script reads this field of the bucket as a number.
fn parses(script: Script, field: &str) -> bool {
    let fields: &[&str] = match script {
        Script::Reserve => &["epoch", "phase", "stock", "lent", "queued", "changes"],
        Script::Settle => &["stock", "lent", "queued", "changes", "returned"],
        Script::Release => &["stock", "lent", "queued", "changes", "released", "failed"],
        Script::Lend | Script::Borrow => &["stock", "lent", "changes", "loaded"],
        Script::ClearLoan => &["stock", "lent", "changes"],
        Script::Snapshot => &[
            "epoch", "phase", "stock", "lent", "changes", "released", "returned", "failed",
            "queued", CHANGE,
        ],
        Script::ChangeStock => &["stock", "lent", "changes", CHANGE],
        Script::SetPhase => &["epoch", "phase"],
        _ => &[],
    };
    fields.contains(&field)
}

impl Fault {
    /// Every fault that can affect this call.
    fn all(scenario: &Scenario) -> Vec<Self> {
        let keys = 0..scenario.call.keys().len();
        let mut all: Vec<_> =
            keys.flat_map(|key| OTHER_TYPES.map(|write| Self::WrongType { key, write })).collect();
        all.extend([Self::Missing, Self::OtherInstallation, Self::OtherServer, Self::Loading]);
        for field in FIELDS {
            all.extend(NOT_A_NUMBER.map(|value| Self::Field(field, value)));
        }
        for field in ["epoch", "loaded"] {
            for tag in ["f100d6a7", "f100d6a7.", "f100d6a7.-1", "f100d6a7:1", "f100d6a7.x", "0.1"] {
                all.push(Self::Field(field, Some(tag)));
            }
            all.push(Self::Field(field, Some("00000000.1")));
        }
        let too_large = [("phase", "4"), ("stock", "4294967296"), ("lent", "4294967296")];
        all.extend(too_large.map(|(field, value)| Self::Field(field, Some(value))));
        all
    }

    /// Injects the fault; `fixture` is the caller's.
    fn inject(&self, fixture: &mut Fixture, client: &mut ScriptClient, scenario: &Scenario) {
        let bucket = fixture.buckets[0].bucket();
        match self {
            Self::WrongType { key, write } => {
                let key = String::from_utf8(scenario.call.keys().swap_remove(*key)).unwrap();
                client.replace(&key, write);
            }
            Self::Missing => drop(client.cmd(&["DEL", &bucket])),
            Self::Field(field, None) => drop(client.cmd(&["HDEL", &bucket, field])),
            Self::Field(field, Some(value)) => drop(client.cmd(&["HSET", &bucket, field, value])),
            Self::OtherInstallation => fixture.fence.installation.0 += 1,
            Self::OtherServer => fixture.fence.server = "0".repeat(40).into(),
            Self::Loading => {
                assert_eq!(fixture.hold(client, 0, floodgate::domain::LoaderToken(20)), Ok(true));
            }
        }
    }

    /// Whether the script must refuse the call.
    fn must_refuse(&self, scenario: &Scenario) -> bool {
        match (self, scenario.script()) {
            // A load replaces keys of another type.
            (Self::WrongType { .. }, Script::Hold) => false,
            (Self::WrongType { key, .. }, Script::Clear) => *key == 0,
            (Self::WrongType { .. }, _) => true,
            // Loaders accept other states: see `loading.rs`.
            _ if scenario.state == State::Loading => false,
            (_, Script::Hold) => false,
            // Queued requests are readable even when the fence does not match.
            (Self::OtherServer | Self::Loading, Script::Queued) => false,
            (Self::Field(field, _), Script::Queued) if *field != "epoch" => false,
            // Epoch and phase are stored for the next loader.
            (Self::OtherServer | Self::Loading, Script::SetPhase) => false,
            // Records remain until the loader clears them.
            (Self::Loading, Script::Find | Script::Settle | Script::Release) => false,
            (Self::Field("server" | "loaded", _), Script::SetPhase) => false,
            // Every script checks the owner.
            (Self::Field("server", _) | Self::Field("loaded", None), _) => true,
            (Self::Field("epoch", value), script) => {
                let is_ours = value.is_some_and(|value| value.starts_with("f100d6a7"));
                !is_ours || parses(script, "epoch")
            }
            (Self::Field(field, _), script) => parses(script, field),
            _ => true,
        }
    }

    /// Whether the answer names this fault.
    fn explains(&self, ended: &Ended) -> bool {
        match (self, ended) {
            (Self::WrongType { .. }, Ended::Failed(code)) => code == "WRONGTYPE",
            (Self::Missing | Self::Loading, Ended::Refused(error)) => *error == Error::NotReady,
            (Self::OtherInstallation, Ended::Refused(error)) => *error == Error::Foreign,
            (Self::OtherServer, Ended::Refused(error)) => *error == Error::Fenced,
            (Self::Field("epoch" | "loaded", None), Ended::Refused(error)) => {
                *error == Error::NotReady
            }
            (Self::Field("server", _), Ended::Refused(error)) => *error == Error::Fenced,
            (Self::Field("epoch", _), Ended::Refused(error)) => {
                *error == Error::Foreign || *error == Error::Corrupt { what: "epoch".to_owned() }
            }
            (Self::Field(field, _), Ended::Refused(error)) => {
                *error == Error::Corrupt { what: (*field).to_owned() }
            }
            (_, Ended::Accepted | Ended::Refused(_) | Ended::Failed(_)) => false,
        }
    }
}

/// Reports a call that wrote although the script did not accept it.
fn refused_and_wrote(ended: &Ended, before: &str, after: &str) -> Option<&'static str> {
    match ended {
        Ended::Refused(_) | Ended::Failed(_) if before != after => Some("refused, and wrote"),
        _ => None,
    }
}

/// Injects every fault into every selected scenario and reports the calls with a wrong outcome.
fn complaints(
    redis: &Redis,
    policy: Policy,
    selected: impl Fn(&Scenario) -> bool,
    send: impl Fn(&mut ScriptClient, &Scenario, &Fixture) -> RedisResult<Value>,
) -> Vec<String> {
    let mut client = ScriptClient::new(redis);
    let fixture = scenarios::fixture(redis, policy);
    let mut complaints = Vec::new();
    for scenario in scenarios::all(&fixture).into_iter().filter(selected) {
        for fault in Fault::all(&scenario) {
            let mut fixture = fixture.clone();
            enter(&fixture, &mut client, scenario.state);
            fault.inject(&mut fixture, &mut client, &scenario);
            let before = client.digest();
            let answer = send(&mut client, &scenario, &fixture);
            let ended = scenario.ended(answer);
            let after = client.digest();
            let wrote = refused_and_wrote(&ended, &before, &after);
            let missed = fault.must_refuse(&scenario) && !fault.explains(&ended);
            let found = wrote.or(missed.then_some("does not explain the fault"));
            let name = &scenario.name;
            complaints.extend(found.map(|what| format!("{name}: {fault:?}: {what}: {ended:?}")));
        }
    }
    complaints
}

/// Sends the scenario's call with the fence of this fixture.
fn send_fenced(
    client: &mut ScriptClient,
    scenario: &Scenario,
    fixture: &Fixture,
) -> RedisResult<Value> {
    let fenced =
        scenarios::all(fixture).into_iter().find(|same| same.name == scenario.name).unwrap();
    client.send(&fenced.call)
}

#[test]
fn a_script_that_refuses_has_written_nothing() {
    let redis = Redis::start();
    for policy in policies() {
        let found = complaints(&redis, policy, |_| true, send_fenced);
        assert!(found.is_empty(), "{policy:?}: {} of:\n{}", found.len(), found.join("\n"));
    }
}

#[test]
fn a_planted_script_that_writes_first_is_found() {
    let redis = Redis::start();
    let text = Script::Reserve.text();
    let (head, check) = ("local bad, tag", "if bad then return bad end");
    let planted = text.replacen(head, &format!("redis.call('SETNX', KEYS[2], 1)\n{head}"), 1);
    assert!(planted != text && planted.contains(check));
    let only = |scenario: &Scenario| scenario.script() == Script::Reserve;
    let found = complaints(&redis, ONE, only, |client, scenario, fixture| {
        let same = scenarios::all(fixture).into_iter().find(|same| same.name == scenario.name);
        let call = same.unwrap().call;
        client.try_query(&call.eval(&planted))
    });
    let wrote = found.iter().filter(|found| found.contains("refused, and wrote")).count();
    assert!(wrote > 100, "{wrote} of:\n{}", found.join("\n"));
}

#[test]
fn an_outbox_of_another_type_is_refused_before_anything_is_taken() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = scenarios::fixture(&redis, ONE);
    let fills: [(OutboxArgs, &[&str]); 3] = [
        (OutboxArgs::None, &["RPUSH", "entry"]),
        (OUTBOXES[0], &["HSET", "field", "value"]),
        (OUTBOXES[1], &["RPUSH", "entry"]),
    ];
    for (outbox, write) in fills {
        let scenario = scenarios::reserve(&fixture, outbox);
        enter(&fixture, &mut client, State::Selling);
        let key = String::from_utf8(scenario.call.keys().swap_remove(1)).unwrap();
        client.replace(&key, write);
        let before = client.digest();
        let answer = client.send(&scenario.call);
        let ended = scenario.ended(answer);
        assert!(matches!(&ended, Ended::Failed(code) if code == "WRONGTYPE"), "{ended:?}");
        assert_eq!(client.digest(), before);
    }
}

#[test]
fn a_page_with_invalid_values_is_refused() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let records = ["", "short", "eleven byte5 and so", "eleven byteQ but longer", "1234567890.."];
    let units = ["", "-1", "0", "1.5", "many", "4294967296"];
    for policy in policies() {
        let fixture = scenarios::fixture(&redis, policy);
        let keys = &fixture.buckets[0];
        let (requests, buyers) =
            (keys.requests(fixture.pages().page_of(1)), keys.buyers(fixture.pages().page_of(10)));
        let mut planted: Vec<_> = records.map(|value| (&requests, "1", value)).to_vec();
        if policy.quota().is_some() {
            planted.extend(units.map(|value| (&buyers, "10", value)));
        }
        let batch = [fixture.reservation(1, 1, 2), fixture.reservation(10, 10, 1)];
        let reserve = scenarios::reserving(&fixture, &batch);
        let reads_records = [Script::Settle, Script::Release];
        let mut others = scenarios::all(&fixture);
        others.retain(|other| reads_records.contains(&other.script()));
        for (key, field, value) in planted {
            let others = others.iter().filter(|_| field == "1");
            for scenario in others.chain([&reserve]) {
                enter(&fixture, &mut client, State::Selling);
                client.cmd(&["HSET", key, field, value]);
                let before = client.digest();
                let answer = client.send(&scenario.call);
                let ended = scenario.ended(answer);
                let is_corrupt = matches!(ended, Ended::Refused(Error::Corrupt { .. }));
                assert!(is_corrupt, "{}: {key} {field} {value:?}: {ended:?}", scenario.name);
                assert_eq!(client.digest(), before);
            }
        }
    }
}

#[test]
fn invalid_transfers_are_refused() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = scenarios::fixture(&redis, ONE);
    let table: [(&str, &[&str]); 3] = [
        ("lend", &["next", "no:5", "out:5"]),
        ("borrow", &["in:1"]),
        ("clear_loan", &["no:1", "out:1"]),
    ];
    let moves = fixture.buckets[0].moves();
    for (name, fields) in table {
        let all = scenarios::all(&fixture);
        let scenario = all.iter().find(|scenario| scenario.name == name).unwrap();
        for (field, value) in
            fields.iter().flat_map(|field| NOT_A_NUMBER.map(|value| (field, value)))
        {
            let Some(value) = value else { continue };
            enter(&fixture, &mut client, State::Selling);
            client.cmd(&["HSET", &moves, field, value]);
            let before = client.digest();
            let answer = client.send(&scenario.call);
            let ended = scenario.ended(answer);
            let corrupt = Error::Corrupt { what: "moves".to_owned() };
            assert!(matches!(&ended, Ended::Refused(error) if *error == corrupt), "{ended:?}");
            assert_eq!(client.digest(), before, "{name} {field} {value}");
        }
    }
}

#[test]
fn a_full_redis_refuses_what_grows_and_finishes_what_was_promised() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    for policy in policies() {
        let fixture = scenarios::fixture(&redis, policy);
        for scenario in scenarios::all(&fixture) {
            enter(&fixture, &mut client, scenario.state);
            client.cmd(&["CONFIG", "SET", "maxmemory", "1mb"]);
            let before = client.digest();
            let answer = client.send(&scenario.call);
            let ended = scenario.ended(answer);
            client.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
            let first = scenario.script().text().lines().next().unwrap().to_owned();
            if first == "#!lua" {
                assert!(matches!(&ended, Ended::Failed(code) if code == "OOM"), "{ended:?}");
                assert_eq!(client.digest(), before, "{}", scenario.name);
            } else {
                assert!(matches!(ended, Ended::Accepted), "{}: {ended:?}", scenario.name);
            }
        }
    }
}

#[test]
fn a_flushed_script_cache_is_an_error_that_changed_nothing() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = scenarios::fixture(&redis, ONE);
    for scenario in scenarios::all(&fixture) {
        enter(&fixture, &mut client, scenario.state);
        client.cmd(&["SCRIPT", "FLUSH"]);
        let before = client.digest();
        let answer = client.send(&scenario.call);
        let ended = scenario.ended(answer);
        assert!(matches!(&ended, Ended::Failed(code) if code == "NOSCRIPT"), "{ended:?}");
        assert_eq!(client.digest(), before);
        client.load_scripts();
        let answer = client.send(&scenario.call);
        assert!(matches!(scenario.ended(answer), Ended::Accepted));
    }
}

#[test]
fn a_batch_has_a_largest_size() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let max = u64::try_from(codes::ITEMS_MAX).unwrap();
    for policy in policies() {
        let fixture = scenarios::fixture(&redis, policy);
        for (size, fits) in [(max, true), (max + 1, false), (30_000, false), (70_000, false)] {
            enter(&fixture, &mut client, State::Selling);
            let before = client.digest();
            // Distinct ids, then one id repeated.
            for spread in [1, 0] {
                let batch: Vec<_> = (0..size)
                    .map(|no| fixture.reservation(100 + no * spread, 100 + no * spread, 1))
                    .collect();
                let answer =
                    fixture.run(&mut client, &fixture.reserving(0, fixture.outbox, &batch));
                let orders: Vec<_> = batch.iter().map(order_of).collect();
                if fits {
                    assert_eq!(answer.unwrap().0.len(), batch.len());
                    assert_eq!(fixture.settle(&mut client, 0, &orders).len(), batch.len());
                } else {
                    assert_eq!(answer, Err(Error::TooMany));
                    assert_eq!(client.digest(), before);
                }
            }
        }
    }
}
