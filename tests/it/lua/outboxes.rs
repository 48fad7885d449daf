//! The scripts of the outboxes: whatever they find, unless they accept, the keyspace stays as it
//! was, to the byte.

use floodgate::domain::{BucketNo, SkuNo};
use floodgate::outbox::{DeadEntry, Entry, Fate, Worker};
use floodgate::scripts::outbox::{
    Claim, Collect, GiveBack, Line, ReadList, ReadStream, Report, StandingOf, Step, Sweep,
};
use floodgate::scripts::{Call, Error, Installation, OutboxKeys, Script};
use redis::Value;

use super::rig::{INSTALLATION, Wire};
use crate::support::servers::redis::Redis;

const LINES: [Line; 2] = [Line::List, Line::Stream];
const NAME: &str = "node/1";
const LIFE: u64 = 5;
const MARK: u64 = 77;

/// One call, and how its answer is read.
struct Asked {
    name: &'static str,
    call: Call,
    parse: Box<dyn Fn(Value) -> Result<(), Error>>,
    /// Whether it speaks for a life of the worker.
    is_of_a_life: bool,
}

/// Who asks for what.
#[derive(Clone, Copy)]
struct Asker {
    line: Line,
    installation: Installation,
    life: u64,
    mark: u64,
    held: usize,
}

fn keys() -> OutboxKeys {
    OutboxKeys::new("test", SkuNo(3), BucketNo(1))
}

fn entries(wire: &mut Wire, line: Line) -> Vec<Entry> {
    let ids: Vec<String> = match line {
        Line::List => vec![String::new(); 3],
        Line::Stream => {
            let found = wire.cmd(&["XPENDING", &keys().line(), "relay", "-", "+", "9", NAME]);
            let rows: Vec<(String, String, u64, u64)> = redis::from_redis_value(found).unwrap();
            rows.into_iter().map(|(id, ..)| id).collect()
        }
    };
    let entry = |(no, id): (usize, String)| Entry {
        id: id.into_bytes().into(),
        bytes: format!("entry {no}").into_bytes().into(),
        attempts: 0,
    };
    ids.into_iter().enumerate().map(entry).collect()
}

/// Six entries accepted, three of them in the worker's hand, one letter among the dead.
fn enter(wire: &mut Wire, line: Line) -> Vec<Entry> {
    wire.cmd(&["FLUSHALL"]);
    let keys = keys();
    wire.cmd(&["HSET", &keys.bucket(), "epoch", "f100d6a7.1", "loaded", "f100d6a7.1"]);
    wire.cmd(&["RPUSH", &keys.dead(), "letter"]);
    for no in 0..6 {
        let body = format!("entry {no}");
        match line {
            Line::List => drop(wire.cmd(&["RPUSH", &keys.line(), &format!("\0{body}")])),
            Line::Stream => drop(wire.cmd(&["XADD", &keys.line(), "*", "intents", &body])),
        }
    }
    let worker = worker(LIFE);
    let door = Claim {
        keys: &keys,
        installation: INSTALLATION,
        line,
        worker: &worker,
        mark: MARK,
        step: Step::Begin,
        max: 3,
    };
    let claimed = door.parse(wire.send(&door.call()).unwrap()).unwrap().entries;
    assert_eq!(claimed.len(), 3);
    entries(wire, line)
}

fn worker(life: u64) -> Worker {
    Worker { name: NAME.into(), life }
}

/// Every script of a kind, with calls that it accepts if the asker is right.
fn all(asker: Asker, entries: &[Entry]) -> Vec<Asked> {
    let Asker { line, installation, life, mark, held } = asker;
    let (keys, worker) = (&keys(), worker(life));
    let claim = |step| Claim { keys, installation, line, worker: &worker, mark, step, max: 2 };
    let parse_claim = move |value| {
        let (keys, worker) = (&self::keys(), self::worker(life));
        let step = Step::Look;
        let door = Claim { keys, installation, line, worker: &worker, mark, step, max: 2 };
        door.parse(value).map(drop)
    };
    let report = |fates: &[Fate]| {
        let now_ms = 1;
        Report { keys, installation, line, worker: &worker, mark, entries, fates, now_ms }.call()
    };
    let dead = Fate::Dead { reason: "why".to_owned() };
    let of_a_life =
        |name, call| Asked { name, call, parse: Box::new(parse_claim), is_of_a_life: true };
    let reporting = |name, call| Asked {
        name,
        call,
        parse: Box::new(move |value| Report::parse(line, value).map(drop)),
        is_of_a_life: true,
    };
    let mut all = vec![
        of_a_life("begin", claim(Step::Begin).call()),
        of_a_life("look", claim(Step::Look).call()),
        of_a_life("go on", claim(Step::GoOn { held }).call()),
        reporting("report published", report(&[Fate::Published, Fate::Published, Fate::Published])),
        reporting("report all fates", report(&[Fate::Failed, dead, Fate::Kept])),
    ];
    all.extend(others(line, installation));
    all
}

/// What is asked without a life.
fn others(line: Line, installation: Installation) -> Vec<Asked> {
    let keys = &keys();
    let mut all = Vec::new();
    let letter = DeadEntry {
        id: b"letter"[..].into(),
        bytes: Vec::new().into(),
        reason: String::new(),
        attempts: 0,
        dead_at_ms: 0,
    };
    let letters = &[letter];
    let other = |name, call, parse: fn(Value) -> Result<(), Error>| Asked {
        name,
        call,
        parse: Box::new(parse),
        is_of_a_life: false,
    };
    let give_back = GiveBack { keys, installation, line, worker: NAME }.call();
    all.push(Asked {
        parse: Box::new(move |value| {
            let keys = &self::keys();
            GiveBack { keys, installation, line, worker: NAME }.parse(value).map(drop)
        }),
        ..other("give back", give_back, |_| Ok(()))
    });
    let workers = &[NAME.to_owned()];
    let standing = StandingOf { keys, installation, line, workers }.call();
    all.push(Asked {
        parse: Box::new(move |value| {
            let keys = &self::keys();
            StandingOf { keys, installation, line, workers: &[] }.parse(value).map(drop)
        }),
        ..other("standing", standing, |_| Ok(()))
    });
    all.push(other("collect", Collect { keys, installation, letters }.call(), |value| {
        let keys = &self::keys();
        Collect { keys, installation: INSTALLATION, letters: &[] }.parse(value).map(drop)
    }));
    match line {
        Line::List => {
            let list = &keys.line();
            let read = ReadList { keys, installation, list, places: (0, 9) }.call();
            all.push(other("read", read, |value| {
                let (keys, installation) = (&self::keys(), INSTALLATION);
                ReadList { keys, installation, list: "", places: (0, 9) }.parse(value).map(drop)
            }));
        }
        Line::Stream => {
            let read = ReadStream { keys, installation, from: "0-0", max: 9 }.call();
            all.push(other("read", read, |value| ReadStream::parse(value).map(drop)));
            let longest = std::time::Duration::ZERO;
            let sweep = Sweep { keys, installation, longest, from: "0-0" }.call();
            all.push(other("sweep", sweep, |value| Sweep::parse(value).map(drop)));
        }
    }
    all
}

fn right(line: Line) -> Asker {
    Asker { line, installation: INSTALLATION, life: LIFE, mark: MARK, held: 3 }
}

/// Whether the call was accepted; the first word of Redis' own error is the refusal otherwise.
fn ended(wire: &mut Wire, asked: &Asked) -> Result<Result<(), Error>, String> {
    match wire.send(&asked.call) {
        Ok(value) => Ok((asked.parse)(value)),
        Err(error) => Err(error.code().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_script_accepts_what_is_right_also_when_redis_is_full() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let mut seen = Vec::new();
    for line in LINES {
        for full in [false, true] {
            let count = all(right(line), &[]).len();
            for place in 0..count {
                let entries = enter(&mut wire, line);
                let asked = all(right(line), &entries).swap_remove(place);
                let memory = if full { "1mb" } else { "0" };
                wire.cmd(&["CONFIG", "SET", "maxmemory", memory]);
                let ended = ended(&mut wire, &asked);
                wire.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
                assert_eq!(ended, Ok(Ok(())), "{line:?} {} {full}", asked.name);
                seen.push(asked.call.script());
            }
        }
    }
    let of_outboxes = |script: &&Script| {
        let name = script.name();
        ["list_", "stream_", "collect"].iter().any(|begin| name.starts_with(begin))
    };
    for script in Script::ALL.iter().filter(of_outboxes) {
        assert!(seen.contains(script), "{} was not called", script.name());
    }
}

#[test]
fn a_key_of_another_type_is_refused_before_anything_is_written() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for line in LINES {
        let count = all(right(line), &[]).len();
        for place in 0..count {
            let keys = all(right(line), &[]).swap_remove(place).call.keys().len();
            for key in 0..keys {
                for other in [&["SET", "text"][..], &["SADD", "1"], &["ZADD", "1", "member"]] {
                    let entries = enter(&mut wire, line);
                    let asked = all(right(line), &entries).swap_remove(place);
                    let key = asked.call.keys().nth(key).unwrap().to_vec();
                    wire.replace(std::str::from_utf8(&key).unwrap(), other);
                    let before = wire.digest();
                    let ended = ended(&mut wire, &asked);
                    let name = (line, asked.name, String::from_utf8(key).unwrap());
                    assert_eq!(ended, Err("WRONGTYPE".to_owned()), "{name:?}");
                    assert_eq!(wire.digest(), before, "{name:?}");
                }
            }
        }
    }
}

/// Sends all calls of an asker who is wrong, and compares.
fn refused(
    wire: &mut Wire,
    asker: Asker,
    spoil: impl Fn(&mut Wire),
    expected: impl Fn(&Asked) -> Option<Error>,
) {
    let line = asker.line;
    for place in 0..all(asker, &[]).len() {
        let entries = enter(wire, line);
        spoil(wire);
        let asked = all(asker, &entries).swap_remove(place);
        let before = wire.digest();
        let ended = ended(wire, &asked);
        if let Some(error) = expected(&asked) {
            assert_eq!(ended, Ok(Err(error)), "{line:?} {}", asked.name);
            assert_eq!(wire.digest(), before, "{line:?} {}", asked.name);
        } else {
            assert_eq!(ended, Ok(Ok(())), "{line:?} {}", asked.name);
        }
    }
}

#[test]
fn another_installation_touches_nothing() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for line in LINES {
        let asker = Asker { installation: Installation(1), ..right(line) };
        refused(&mut wire, asker, |_| {}, |_| Some(Error::Foreign));
    }
}

#[test]
fn only_the_present_life_goes_on_and_only_from_its_mark() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let claims = keys().claims();
    let is = |asked: &Asked, names: &[&str]| names.contains(&asked.name);
    for line in LINES {
        let of_a_life = |asked: &Asked| asked.is_of_a_life.then_some(Error::Replaced);
        refused(&mut wire, Asker { life: LIFE - 1, ..right(line) }, |_| {}, of_a_life);
        let later = Asker { life: LIFE + 1, ..right(line) };
        refused(
            &mut wire,
            later,
            |_| {},
            |asked| of_a_life(asked).filter(|_| !is(asked, &["begin"])),
        );
        let given_back = |wire: &mut Wire| drop(wire.cmd(&["HDEL", &claims, NAME]));
        refused(&mut wire, right(line), given_back, |asked| {
            match asked.name {
                // Whoever named the workers before has to name them again.
                "standing" if line == Line::List => Some(Error::Changed),
                _ => of_a_life(asked).filter(|_| !is(asked, &["begin"])),
            }
        });
        let from_its_mark = ["go on", "report published", "report all fates"];
        let changed = |asked: &Asked| is(asked, &from_its_mark).then_some(Error::Changed);
        refused(&mut wire, Asker { mark: MARK + 1, ..right(line) }, |_| {}, changed);
        let counting = |asked: &Asked| is(asked, &["go on"]).then_some(Error::Changed);
        refused(&mut wire, Asker { held: 2, ..right(line) }, |_| {}, counting);
        for damage in ["", "5", "five.7", "5.x", "-5.7", "5.7.7", "1234567890123456.7"] {
            let spoil = |wire: &mut Wire| drop(wire.cmd(&["HSET", &claims, NAME, damage]));
            let corrupt = || Error::Corrupt { what: "claims".to_owned() };
            refused(&mut wire, right(line), spoil, |asked| asked.is_of_a_life.then(corrupt));
        }
    }
}

#[test]
fn a_planted_report_that_looks_too_late_is_found() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    for (line, script) in [(Line::List, Script::ListReport), (Line::Stream, Script::StreamReport)] {
        let text = script.text();
        let planted = text.replacen(
            "if bad then return bad end",
            "call('RPUSH', KEYS[4], '')\n\
            if bad then return bad end",
            1,
        );
        assert_ne!(planted, text);
        let entries = enter(&mut wire, line);
        let asker = Asker { life: LIFE - 1, ..right(line) };
        let asked = all(asker, &entries).swap_remove(3);
        let before = wire.digest();
        let mut eval = redis::cmd("EVAL");
        eval.arg(&planted).arg(asked.call.keys().len());
        for word in asked.call.keys().chain(asked.call.args()) {
            eval.arg(word);
        }
        let answer = wire.try_ask(&eval).unwrap();
        assert_eq!((asked.parse)(answer), Err(Error::Replaced));
        assert_ne!(wire.digest(), before);
    }
}
