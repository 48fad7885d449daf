//! One accepted call per script, with the bucket state that the call needs.

use floodgate::domain::{
    BucketNo, Epoch, LoaderToken, Loan, Order, OrderState, Phase, Policy, Refusal, Reservation,
};
use floodgate::redis::scripts::load::LoadRow;
use floodgate::redis::scripts::record::{RequestRecord, RequestStage};
use floodgate::redis::scripts::{
    Borrow, ClearBucket, ClearLoan, Error, Find, HoldBucket, Lend, LoadRows, OutboxArgs, Release,
    ReserveBatch, Script, ScriptCall, SetPhase, Settle, Snapshot,
};
use redis::{RedisResult, Value};

use super::harness::{Fixture, KINDS, ScriptClient, refused, sku};
use crate::support::offers::{ANY, ONE, buyer, quota, request};
use crate::support::servers::redis::Redis;

/// The state of bucket 0 before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Open, with queued requests and an open loan.
    Selling,
    /// Held by [`LOADER`].
    Loading,
}

/// The loader of [`State::Loading`].
pub const LOADER: LoaderToken = LoaderToken(9);

/// A call that its script accepts in this state.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub state: State,
    pub call: ScriptCall,
    parse: Parse,
}

type Parse = fn(&Fixture, Value) -> Result<(), Error>;

/// The outcome of a call.
#[derive(Debug)]
pub enum Ended {
    Accepted,
    Refused(Error),
    /// An error of Redis itself, with its code.
    Failed(String),
}

impl Scenario {
    /// Classifies an answer of this call.
    pub fn ended(&self, fixture: &Fixture, answer: RedisResult<Value>) -> Ended {
        match answer {
            Err(error) => Ended::Failed(error.code().unwrap_or_default().to_owned()),
            Ok(value) => match (self.parse)(fixture, value) {
                Ok(()) => Ended::Accepted,
                Err(error) => Ended::Refused(error),
            },
        }
    }

    pub fn script(&self) -> Script {
        self.call.script()
    }
}

pub fn fixture(redis: &Redis, policy: Policy) -> Fixture {
    Fixture::new(redis, sku(1, policy, 1_000))
}

/// Flushes the server and brings bucket 0 into the state.
pub fn enter(fixture: &Fixture, client: &mut ScriptClient, state: State) {
    client.cmd(&["FLUSHALL"]);
    let token = LoaderToken(1);
    fixture.load_begin(client, 0, token).unwrap();
    let rows = [LoadRow::Request(request(50), paid(50))];
    assert_eq!(fixture.load_rows(client, 0, token, &rows), Ok(()));
    let open = fixture.opening(0, token, 500);
    assert_eq!(open.parse(client.send(&open.call()).unwrap()), Ok(true));
    fixture.reserve(client, 0, &[fixture.reservation(1, 1, 2), fixture.reservation(2, 2, 1)]);
    assert_eq!(fixture.lend(client, 0, 1, 7), Some(loan(1)));
    if state == State::Loading {
        assert_eq!(fixture.hold(client, 0, LOADER), Ok(true));
    }
}

fn loan(no: u64) -> Loan {
    Loan { no: 100_000_000 + no, units: 248 }
}

fn paid(buyer_no: u64) -> RequestRecord {
    let stage = RequestStage::Ordered(OrderState::Paid);
    RequestRecord { buyer: buyer(buyer_no), quantity: 1, placed_at_ms: 1, stage }
}

/// All scripts; `reserve` with every kind of outbox.
pub fn all(fixture: &Fixture) -> Vec<Scenario> {
    let mut all = vec![settle(fixture), release(fixture), set_phase(fixture)];
    all.extend([snapshot(fixture), find(fixture), queued(fixture)]);
    all.extend(KINDS.map(|outbox| reserve(fixture, outbox)));
    all.extend(moves(fixture));
    all.extend(loads(fixture));
    all
}

pub fn policies() -> [Policy; 3] {
    [ONE, ANY, quota(5)]
}

fn scenario(name: &str, call: ScriptCall, parse: Parse) -> Scenario {
    Scenario { name: name.to_owned(), state: State::Selling, call, parse }
}

pub fn reserve(fixture: &Fixture, outbox: OutboxArgs) -> Scenario {
    let batch: Vec<_> = (10..20).map(|no| fixture.reservation(no, no, 1)).collect();
    let call = ReserveBatch { outbox, ..fixture.reserving(0, &batch) }.call();
    Scenario { call, name: format!("reserve {outbox:?}"), ..reserving(fixture, &batch) }
}

/// `reserve` of this batch, without an outbox.
pub fn reserving(fixture: &Fixture, batch: &[Reservation]) -> Scenario {
    scenario("reserve", fixture.reserving(0, batch).call(), |fixture, value| {
        let size = if let Value::Array(items) = &value { items.len().saturating_sub(4) } else { 0 };
        let batch = vec![fixture.reservation(1, 1, 1); size];
        fixture.reserving(0, &batch).parse(value).map(drop)
    })
}

fn settle(fixture: &Fixture) -> Scenario {
    // A reserved order and an order without a reservation.
    fn orders(fixture: &Fixture) -> [Order; 2] {
        [
            fixture.order(&fixture.reservation(1, 1, 2)),
            fixture.order(&fixture.reservation(30, 30, 1)),
        ]
    }
    fn settle_of<'a>(fixture: &'a Fixture, orders: &'a [Order]) -> Settle<'a> {
        let (keys, policy) = (&fixture.buckets[0], fixture.sku.policy);
        Settle { keys, fence: &fixture.fence, policy, orders }
    }
    let call = settle_of(fixture, &orders(fixture)).call();
    scenario("settle", call, |fixture, value| {
        settle_of(fixture, &orders(fixture)).parse(value).map(drop)
    })
}

fn release(fixture: &Fixture) -> Scenario {
    let refusal = refused(&fixture.reservation(1, 1, 2), Refusal::RequestIdReused);
    let (keys, policy, fence) = (&fixture.buckets[0], fixture.sku.policy, &fixture.fence);
    let call = Release { keys, fence, policy, refused: &[refusal] }.call();
    scenario("release", call, |fixture, value| {
        let refused = [refused(&fixture.reservation(1, 1, 2), Refusal::RequestIdReused)];
        let (keys, policy, fence) = (&fixture.buckets[0], fixture.sku.policy, &fixture.fence);
        Release { keys, fence, policy, refused: &refused }.parse(value).map(drop)
    })
}

fn set_phase(fixture: &Fixture) -> Scenario {
    fn set_phase_of(fixture: &Fixture) -> SetPhase<'_> {
        let (keys, fence) = (&fixture.buckets[0], &fixture.fence);
        SetPhase { keys, fence, epoch: Epoch(2), phase: Phase::Paused }
    }
    scenario("set_phase", set_phase_of(fixture).call(), |fixture, value| {
        set_phase_of(fixture).parse(value).map(drop)
    })
}

fn snapshot(fixture: &Fixture) -> Scenario {
    fn snapshot_of(fixture: &Fixture) -> Snapshot<'_> {
        Snapshot { keys: &fixture.buckets[0], fence: &fixture.fence, pages: true }
    }
    scenario("snapshot", snapshot_of(fixture).call(), |fixture, value| {
        snapshot_of(fixture).parse(value).map(drop)
    })
}

fn find(fixture: &Fixture) -> Scenario {
    let requests = [request(1), request(99)];
    let call = Find { requests: &requests, ..fixture.find(0) }.call();
    scenario("find", call, |fixture, value| {
        let requests = [request(1), request(99)];
        Find { requests: &requests, ..fixture.find(0) }.parse(value).map(drop)
    })
}

fn queued(fixture: &Fixture) -> Scenario {
    let call = fixture.queued(0).call();
    scenario("queued", call, |fixture, value| fixture.queued(0).parse(value).map(drop))
}

fn moves(fixture: &Fixture) -> [Scenario; 3] {
    fn lend(fixture: &Fixture) -> Lend<'_> {
        // Another borrower than that of the open loan.
        Lend { keys: &fixture.buckets[0], fence: &fixture.fence, to: BucketNo(5), want: 3 }
    }
    fn borrow(fixture: &Fixture) -> Borrow<'_> {
        Borrow {
            keys: &fixture.buckets[0],
            fence: &fixture.fence,
            from: BucketNo(1),
            loan: loan(4),
        }
    }
    fn clear(fixture: &Fixture) -> ClearLoan<'_> {
        ClearLoan {
            keys: &fixture.buckets[0],
            fence: &fixture.fence,
            to: BucketNo(1),
            no: loan(1).no,
        }
    }
    [
        scenario("lend", lend(fixture).call(), |fixture, value| {
            lend(fixture).parse(value).map(drop)
        }),
        scenario("borrow", borrow(fixture).call(), |fixture, value| {
            borrow(fixture).parse(value).map(drop)
        }),
        scenario("clear_loan", clear(fixture).call(), |fixture, value| {
            clear(fixture).parse(value).map(drop)
        }),
    ]
}

fn loads(fixture: &Fixture) -> [Scenario; 4] {
    let (keys, fence) = (&fixture.buckets[0], &fixture.fence);
    let hold = HoldBucket { keys, fence, loader: LOADER }.call();
    let clear = ClearBucket { keys, fence, loader: LOADER, pages: 0..keys.pages() }.call();
    let rows: Vec<LoadRow> = (60..90).map(|no| LoadRow::Request(request(no), paid(no))).collect();
    let load = LoadRows { keys, fence, loader: LOADER, rows: &rows }.call();
    let open = fixture.opening(0, LOADER, 400).call();
    [
        scenario("hold", hold, |fixture, value| {
            let (keys, fence) = (&fixture.buckets[0], &fixture.fence);
            HoldBucket { keys, fence, loader: LOADER }.parse(value).map(drop)
        }),
        scenario("clear", clear, |fixture, value| {
            let (keys, fence) = (&fixture.buckets[0], &fixture.fence);
            ClearBucket { keys, fence, loader: LOADER, pages: 0..0 }.parse(value).map(drop)
        }),
        scenario("load_rows", load, |fixture, value| {
            let (keys, fence) = (&fixture.buckets[0], &fixture.fence);
            LoadRows { keys, fence, loader: LOADER, rows: &[] }.parse(value)
        }),
        scenario("open", open, |fixture, value| {
            fixture.opening(0, LOADER, 0).parse(value).map(drop)
        }),
    ]
    .map(|scenario| match scenario.script() {
        Script::Hold => scenario,
        _ => Scenario { state: State::Loading, ..scenario },
    })
}
