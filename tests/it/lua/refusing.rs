//! Whatever a script finds: unless it accepts, the keyspace stays as it was, to the byte.

use floodgate::domain::Policy;
use floodgate::redis::scripts::{Error, OutboxArgs, Script, codes};
use redis::{RedisResult, Value};

use super::rig::{OUTBOXES, Shop, Wire};
use super::scenarios::{self, Ended, Scenario, State, enter, policies};
use crate::support::offers::ONE;
use crate::support::servers::redis::Redis;

/// What is wrong before the call.
#[derive(Debug, Clone)]
enum Fault {
    /// A key of the call holds another type.
    WrongType { key: usize, write: &'static [&'static str] },
    /// The bucket is not there.
    Missing,
    /// A field of the bucket has this value, or is not there.
    Field(&'static str, Option<&'static str>),
    /// The call is made by another installation.
    OtherInstallation,
    /// The call is made over a connection to another server.
    OtherServer,
    /// A loader is at work.
    Loading,
}

/// How values of other types than any script's are written: the verb, then what follows the key.
const OTHER_TYPES: [&[&str]; 3] = [&["SET", "text"], &["SADD", "1"], &["ZADD", "1", "member"]];

/// What is no number of any script.
const NO_NUMBERS: [Option<&str>; 10] = [
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

/// What a bucket cannot be without.
const FIELDS: [&str; 10] = [
    "epoch", "server", "phase", "stock", "lent", "released", "failed", "loaded", "queued",
    "changes",
];

/// Whether a script reads a field of the bucket as a number.
fn counts_by(script: Script, field: &str) -> bool {
    let fields: &[&str] = match script {
        Script::Reserve => &["epoch", "phase", "stock", "lent", "queued", "changes"],
        Script::Settle => &["stock", "lent", "queued", "changes"],
        Script::Release => &["stock", "lent", "queued", "changes", "released", "failed"],
        Script::Lend | Script::Borrow => &["stock", "lent", "changes", "loaded"],
        Script::ClearLoan => &["stock", "lent", "changes"],
        Script::Snapshot => {
            &["epoch", "phase", "stock", "lent", "changes", "released", "failed", "queued"]
        }
        Script::SetPhase => &["epoch", "phase"],
        _ => &[],
    };
    fields.contains(&field)
}

impl Fault {
    /// Every fault of a call.
    fn all(scenario: &Scenario) -> Vec<Self> {
        let keys = 0..scenario.call.keys().len();
        let mut all: Vec<_> =
            keys.flat_map(|key| OTHER_TYPES.map(|write| Self::WrongType { key, write })).collect();
        all.extend([Self::Missing, Self::OtherInstallation, Self::OtherServer, Self::Loading]);
        for field in FIELDS {
            all.extend(NO_NUMBERS.map(|value| Self::Field(field, value)));
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

    /// Brings it about. The shop is the one that asks.
    fn strike(&self, shop: &mut Shop, wire: &mut Wire, scenario: &Scenario) {
        let bucket = shop.buckets[0].bucket();
        match self {
            Self::WrongType { key, write } => {
                let key = scenario.call.keys().nth(*key).unwrap();
                wire.replace(std::str::from_utf8(key).unwrap(), write);
            }
            Self::Missing => drop(wire.cmd(&["DEL", &bucket])),
            Self::Field(field, None) => drop(wire.cmd(&["HDEL", &bucket, field])),
            Self::Field(field, Some(value)) => drop(wire.cmd(&["HSET", &bucket, field, value])),
            Self::OtherInstallation => shop.fence.installation.0 += 1,
            Self::OtherServer => shop.fence.server = "0".repeat(40).into(),
            Self::Loading => {
                assert_eq!(shop.hold(wire, 0, floodgate::stock::LoaderToken(20)), Ok(true));
            }
        }
    }

    /// Whether a call has to be refused.
    fn stops(&self, scenario: &Scenario) -> bool {
        match (self, scenario.script()) {
            // What nobody wrote is replaced by a load.
            (Self::WrongType { .. }, Script::Hold) => false,
            (Self::WrongType { key, .. }, Script::Clear) => *key == 0,
            (Self::WrongType { .. }, _) => true,
            // Loaders have their own rules about what may be there: see `loading.rs`.
            _ if scenario.state == State::Loading => false,
            (_, Script::Hold) => false,
            // What is queued is read also where nothing else is believed.
            (Self::OtherServer | Self::Loading, Script::Queued) => false,
            (Self::Field(field, _), Script::Queued) => *field == "epoch",
            // The pair is kept for whoever loads the bucket.
            (Self::OtherServer | Self::Loading, Script::SetPhase) => false,
            // Records are there until they are cleared.
            (Self::Loading, Script::Find | Script::Settle | Script::Release) => false,
            (Self::Field("server" | "loaded", _), Script::SetPhase) => false,
            // Whose it is every script looks at.
            (Self::Field("server", _) | Self::Field("loaded", None), _) => true,
            (Self::Field("epoch", value), script) => {
                let is_ours = value.is_some_and(|value| value.starts_with("f100d6a7"));
                !is_ours || counts_by(script, "epoch")
            }
            (Self::Field(field, _), script) => counts_by(script, field),
            _ => true,
        }
    }

    /// Whether the answer is the one that operators can do something with.
    fn explains(&self, ended: &Ended) -> bool {
        match (self, ended) {
            (Self::WrongType { .. }, Ended::Failed(word)) => word == "WRONGTYPE",
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

/// What is wrong with how a call ended; nothing may have been written unless it was accepted.
fn offence(ended: &Ended, before: &str, after: &str) -> Option<&'static str> {
    match ended {
        Ended::Refused(_) | Ended::Failed(_) if before != after => Some("refused, and wrote"),
        _ => None,
    }
}

/// Brings about every fault of every scenario and reports the calls that did not end as they must.
fn complaints(
    redis: &Redis,
    policy: Policy,
    of_interest: impl Fn(&Scenario) -> bool,
    send: impl Fn(&mut Wire, &Scenario, &Shop) -> RedisResult<Value>,
) -> Vec<String> {
    let mut wire = Wire::new(redis);
    let shop = scenarios::shop(redis, policy);
    let mut complaints = Vec::new();
    for scenario in scenarios::all(&shop).into_iter().filter(of_interest) {
        for fault in Fault::all(&scenario) {
            let mut shop = shop.clone();
            enter(&shop, &mut wire, scenario.state);
            fault.strike(&mut shop, &mut wire, &scenario);
            let before = wire.digest();
            let answer = send(&mut wire, &scenario, &shop);
            let ended = scenario.ended(&shop, answer);
            let after = wire.digest();
            let wrote = offence(&ended, &before, &after);
            let missed = fault.stops(&scenario) && !fault.explains(&ended);
            let found = wrote.or(missed.then_some("does not explain the fault"));
            let name = &scenario.name;
            complaints.extend(found.map(|what| format!("{name}: {fault:?}: {what}: {ended:?}")));
        }
    }
    complaints
}

/// The same call, as the asker's fence has it.
fn send_fenced(wire: &mut Wire, scenario: &Scenario, shop: &Shop) -> RedisResult<Value> {
    let asked = scenarios::all(shop).into_iter().find(|same| same.name == scenario.name).unwrap();
    wire.send(&asked.call)
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
    let found = complaints(&redis, ONE, only, |wire, scenario, shop| {
        let same = scenarios::all(shop).into_iter().find(|same| same.name == scenario.name);
        let call = same.unwrap().call;
        let mut eval = redis::cmd("EVAL");
        eval.arg(&planted).arg(call.keys().len());
        for word in call.keys().chain(call.args()) {
            eval.arg(word);
        }
        wire.try_ask(&eval)
    });
    let wrote = found.iter().filter(|found| found.contains("refused, and wrote")).count();
    assert!(wrote > 100, "{wrote} of:\n{}", found.join("\n"));
}

#[test]
fn an_outbox_of_another_type_is_refused_before_anything_is_taken() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = scenarios::shop(&redis, ONE);
    let fill: [(OutboxArgs, &[&str]); 3] = [
        (OutboxArgs::None, &["RPUSH", "entry"]),
        (OUTBOXES[0], &["HSET", "field", "value"]),
        (OUTBOXES[1], &["RPUSH", "entry"]),
    ];
    for (outbox, words) in fill {
        let scenario = scenarios::reserve(&shop, outbox);
        enter(&shop, &mut wire, State::Selling);
        let key = String::from_utf8(scenario.call.keys().nth(1).unwrap().to_vec()).unwrap();
        wire.replace(&key, words);
        let before = wire.digest();
        let answer = wire.send(&scenario.call);
        let ended = scenario.ended(&shop, answer);
        assert!(matches!(&ended, Ended::Failed(word) if word == "WRONGTYPE"), "{ended:?}");
        assert_eq!(wire.digest(), before);
    }
}

#[test]
fn a_page_with_values_nobody_wrote_is_refused() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let records = ["", "short", "twelve bytes5 and so", "twelve bytesQ but longer", "1234567890.."];
    let units = ["", "-1", "0", "1.5", "many", "4294967296"];
    for policy in policies() {
        let shop = scenarios::shop(&redis, policy);
        let keys = &shop.buckets[0];
        let (requests, buyers) = (keys.requests(keys.page_of(1)), keys.buyers(keys.page_of(10)));
        let mut planted: Vec<_> = records.map(|value| (&requests, "1", value)).to_vec();
        if policy.quota().is_some() {
            planted.extend(units.map(|value| (&buyers, "10", value)));
        }
        let batch = [shop.ask(1, 1, 2), shop.ask(10, 10, 1)];
        let reserve = scenarios::reserving(&shop, &batch);
        let reads_records = [Script::Settle, Script::Release];
        let mut others = scenarios::all(&shop);
        others.retain(|other| reads_records.contains(&other.script()));
        for (key, field, value) in planted {
            let others = others.iter().filter(|_| field == "1");
            for scenario in others.chain([&reserve]) {
                enter(&shop, &mut wire, State::Selling);
                wire.cmd(&["HSET", key, field, value]);
                let before = wire.digest();
                let answer = wire.send(&scenario.call);
                let ended = scenario.ended(&shop, answer);
                let is_corrupt = matches!(ended, Ended::Refused(Error::Corrupt { .. }));
                assert!(is_corrupt, "{}: {key} {field} {value:?}: {ended:?}", scenario.name);
                assert_eq!(wire.digest(), before);
            }
        }
    }
}

#[test]
fn moves_that_nobody_wrote_are_refused() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = scenarios::shop(&redis, ONE);
    let table: [(&str, &[&str]); 3] = [
        ("lend", &["next", "no:5", "out:5"]),
        ("borrow", &["in:1"]),
        ("clear_loan", &["no:1", "out:1"]),
    ];
    let moves = shop.buckets[0].moves();
    for (name, fields) in table {
        let all = scenarios::all(&shop);
        let scenario = all.iter().find(|scenario| scenario.name == name).unwrap();
        for (field, value) in fields.iter().flat_map(|field| NO_NUMBERS.map(|value| (field, value)))
        {
            let Some(value) = value else { continue };
            enter(&shop, &mut wire, State::Selling);
            wire.cmd(&["HSET", &moves, field, value]);
            let before = wire.digest();
            let answer = wire.send(&scenario.call);
            let ended = scenario.ended(&shop, answer);
            let corrupt = Error::Corrupt { what: "moves".to_owned() };
            assert!(matches!(&ended, Ended::Refused(error) if *error == corrupt), "{ended:?}");
            assert_eq!(wire.digest(), before, "{name} {field} {value}");
        }
    }
}

#[test]
fn a_full_redis_refuses_what_grows_and_finishes_what_was_promised() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for policy in policies() {
        let shop = scenarios::shop(&redis, policy);
        for scenario in scenarios::all(&shop) {
            enter(&shop, &mut wire, scenario.state);
            wire.cmd(&["CONFIG", "SET", "maxmemory", "1mb"]);
            let before = wire.digest();
            let answer = wire.send(&scenario.call);
            let ended = scenario.ended(&shop, answer);
            wire.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
            let first = scenario.script().text().lines().next().unwrap().to_owned();
            if first == "#!lua" {
                assert!(matches!(&ended, Ended::Failed(word) if word == "OOM"), "{ended:?}");
                assert_eq!(wire.digest(), before, "{}", scenario.name);
            } else {
                assert!(matches!(ended, Ended::Accepted), "{}: {ended:?}", scenario.name);
            }
        }
    }
}

#[test]
fn a_flushed_script_cache_is_an_error_that_changed_nothing() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = scenarios::shop(&redis, ONE);
    for scenario in scenarios::all(&shop) {
        enter(&shop, &mut wire, scenario.state);
        wire.cmd(&["SCRIPT", "FLUSH"]);
        let before = wire.digest();
        let answer = wire.send(&scenario.call);
        let ended = scenario.ended(&shop, answer);
        assert!(matches!(&ended, Ended::Failed(word) if word == "NOSCRIPT"), "{ended:?}");
        assert_eq!(wire.digest(), before);
        wire.load_scripts();
        let answer = wire.send(&scenario.call);
        assert!(matches!(scenario.ended(&shop, answer), Ended::Accepted));
    }
}

#[test]
fn a_batch_has_a_largest_size() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let max = u64::try_from(codes::ITEMS_MAX).unwrap();
    for policy in policies() {
        let shop = scenarios::shop(&redis, policy);
        for (size, fits) in [(max, true), (max + 1, false), (30_000, false), (70_000, false)] {
            enter(&shop, &mut wire, State::Selling);
            let before = wire.digest();
            // All ids on the few pages there are, and again as one id only.
            for spread in [1, 0] {
                let batch: Vec<_> =
                    (0..size).map(|no| shop.ask(100 + no * spread, 100 + no * spread, 1)).collect();
                let door = shop.reserving(0, &batch);
                let answer = door.parse(wire.send(&door.call()).unwrap());
                let orders: Vec<_> = batch.iter().map(|ask| shop.order(ask)).collect();
                if fits {
                    assert_eq!(answer.unwrap().verdicts.len(), batch.len());
                    assert_eq!(shop.settle(&mut wire, 0, &orders).len(), batch.len());
                } else {
                    assert_eq!(answer, Err(Error::TooMany));
                    assert_eq!(wire.digest(), before);
                }
            }
        }
    }
}
