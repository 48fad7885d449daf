//! Each script once, in a state in which it has something to do.

use floodgate::domain::{
    BucketNo, Epoch, Loan, Order, OrderState, Phase, Policy, Refusal, Reservation,
};
use floodgate::redis::scripts::load::LoadRow;
use floodgate::redis::scripts::record::{RequestRecord, RequestStage};
use floodgate::redis::scripts::{
    Borrow, ClearBucket, ClearLoan, Error, Find, HoldBucket, Lend, LoadRows, OutboxArgs, Release,
    ReserveBatch, Script, ScriptCall, SetPhase, Settle, Snapshot,
};
use floodgate::stock::LoaderToken;
use redis::{RedisResult, Value};

use super::rig::{KINDS, Shop, Wire, refused, sku};
use crate::support::offers::{ANY, ONE, buyer, quota, request};
use crate::support::servers::redis::Redis;

/// What a bucket has before a script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Open, with requests queued and a loan out.
    Selling,
    /// Held by [`LOADER`].
    Loading,
}

/// The loader of [`State::Loading`].
pub const LOADER: LoaderToken = LoaderToken(9);

/// A script with a call that it accepts.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub state: State,
    pub call: ScriptCall,
    parse: Parse,
}

type Parse = fn(&Shop, Value) -> Result<(), Error>;

/// How a call ended.
#[derive(Debug)]
pub enum Ended {
    Accepted,
    Refused(Error),
    /// By Redis itself, with its first word.
    Failed(String),
}

impl Scenario {
    /// How an answer is to be read.
    pub fn ended(&self, shop: &Shop, answer: RedisResult<Value>) -> Ended {
        match answer {
            Err(error) => Ended::Failed(error.code().unwrap_or_default().to_owned()),
            Ok(value) => match (self.parse)(shop, value) {
                Ok(()) => Ended::Accepted,
                Err(error) => Ended::Refused(error),
            },
        }
    }

    pub fn script(&self) -> Script {
        self.call.script()
    }
}

pub fn shop(redis: &Redis, policy: Policy) -> Shop {
    Shop::new(redis, sku(1, policy, 1_000))
}

/// Empties the server and brings bucket 0 into the state.
pub fn enter(shop: &Shop, wire: &mut Wire, state: State) {
    wire.cmd(&["FLUSHALL"]);
    let token = LoaderToken(1);
    shop.load_begin(wire, 0, token).unwrap();
    let rows = [LoadRow::Request(request(50), paid(50))];
    assert_eq!(shop.load_rows(wire, 0, token, &rows), Ok(()));
    let open = shop.opening(0, token, 500);
    assert_eq!(open.parse(wire.send(&open.call()).unwrap()), Ok(true));
    shop.reserve(wire, 0, &[shop.ask(1, 1, 2), shop.ask(2, 2, 1)]);
    assert_eq!(shop.lend(wire, 0, 1, 7), Some(loan(1)));
    if state == State::Loading {
        assert_eq!(shop.hold(wire, 0, LOADER), Ok(true));
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
pub fn all(shop: &Shop) -> Vec<Scenario> {
    let mut all = vec![settle(shop), release(shop), turn(shop)];
    all.extend([snapshot(shop), find(shop), queued(shop)]);
    all.extend(KINDS.map(|outbox| reserve(shop, outbox)));
    all.extend(moves(shop));
    all.extend(loads(shop));
    all
}

/// The three policies.
pub fn policies() -> [Policy; 3] {
    [ONE, ANY, quota(5)]
}

fn scenario(name: &str, call: ScriptCall, parse: Parse) -> Scenario {
    Scenario { name: name.to_owned(), state: State::Selling, call, parse }
}

pub fn reserve(shop: &Shop, outbox: OutboxArgs) -> Scenario {
    let batch: Vec<_> = (10..20).map(|no| shop.ask(no, no, 1)).collect();
    let call = ReserveBatch { outbox, ..shop.reserving(0, &batch) }.call();
    Scenario { call, name: format!("reserve {outbox:?}"), ..reserving(shop, &batch) }
}

/// `reserve` of this batch.
pub fn reserving(shop: &Shop, batch: &[Reservation]) -> Scenario {
    scenario("reserve", shop.reserving(0, batch).call(), |shop, value| {
        let size = if let Value::Array(items) = &value { items.len().saturating_sub(4) } else { 0 };
        let batch = vec![shop.ask(1, 1, 1); size];
        shop.reserving(0, &batch).parse(value).map(drop)
    })
}

fn settle(shop: &Shop) -> Scenario {
    // One that was reserved, one that was not.
    fn orders(shop: &Shop) -> [Order; 2] {
        [shop.order(&shop.ask(1, 1, 2)), shop.order(&shop.ask(30, 30, 1))]
    }
    fn door<'a>(shop: &'a Shop, orders: &'a [Order]) -> Settle<'a> {
        let (keys, policy) = (&shop.buckets[0], shop.sku.policy);
        Settle { keys, fence: &shop.fence, policy, orders }
    }
    let call = door(shop, &orders(shop)).call();
    scenario("settle", call, |shop, value| door(shop, &orders(shop)).parse(value).map(drop))
}

fn release(shop: &Shop) -> Scenario {
    let refusal = refused(&shop.ask(1, 1, 2), Refusal::RequestIdReused);
    let (keys, policy, fence) = (&shop.buckets[0], shop.sku.policy, &shop.fence);
    let call = Release { keys, fence, policy, refused: &[refusal] }.call();
    scenario("release", call, |shop, value| {
        let refused = [refused(&shop.ask(1, 1, 2), Refusal::RequestIdReused)];
        let (keys, policy, fence) = (&shop.buckets[0], shop.sku.policy, &shop.fence);
        Release { keys, fence, policy, refused: &refused }.parse(value).map(drop)
    })
}

fn turn(shop: &Shop) -> Scenario {
    fn door(shop: &Shop) -> SetPhase<'_> {
        let (keys, fence) = (&shop.buckets[0], &shop.fence);
        SetPhase { keys, fence, epoch: Epoch(2), phase: Phase::Paused }
    }
    scenario("turn", door(shop).call(), |shop, value| door(shop).parse(value).map(drop))
}

fn snapshot(shop: &Shop) -> Scenario {
    fn door(shop: &Shop) -> Snapshot<'_> {
        Snapshot { keys: &shop.buckets[0], fence: &shop.fence, pages: true }
    }
    scenario("snapshot", door(shop).call(), |shop, value| door(shop).parse(value).map(drop))
}

fn find(shop: &Shop) -> Scenario {
    let requests = [request(1), request(99)];
    let call = Find { requests: &requests, ..shop.find(0) }.call();
    scenario("find", call, |shop, value| {
        let requests = [request(1), request(99)];
        Find { requests: &requests, ..shop.find(0) }.parse(value).map(drop)
    })
}

fn queued(shop: &Shop) -> Scenario {
    let call = shop.queued(0).call();
    scenario("queued", call, |shop, value| shop.queued(0).parse(value).map(drop))
}

fn moves(shop: &Shop) -> [Scenario; 3] {
    fn lend(shop: &Shop) -> Lend<'_> {
        // To another bucket than the open loan.
        Lend { keys: &shop.buckets[0], fence: &shop.fence, to: BucketNo(5), want: 3 }
    }
    fn borrow(shop: &Shop) -> Borrow<'_> {
        Borrow { keys: &shop.buckets[0], fence: &shop.fence, from: BucketNo(1), loan: loan(4) }
    }
    fn clear(shop: &Shop) -> ClearLoan<'_> {
        ClearLoan { keys: &shop.buckets[0], fence: &shop.fence, to: BucketNo(1), no: loan(1).no }
    }
    [
        scenario("lend", lend(shop).call(), |shop, value| lend(shop).parse(value).map(drop)),
        scenario("borrow", borrow(shop).call(), |shop, value| borrow(shop).parse(value).map(drop)),
        scenario("clear_loan", clear(shop).call(), |shop, value| {
            clear(shop).parse(value).map(drop)
        }),
    ]
}

fn loads(shop: &Shop) -> [Scenario; 4] {
    let (keys, fence) = (&shop.buckets[0], &shop.fence);
    let hold = HoldBucket { keys, fence, loader: LOADER }.call();
    let clear = ClearBucket { keys, fence, loader: LOADER, pages: 0..keys.pages() }.call();
    let rows: Vec<LoadRow> = (60..90).map(|no| LoadRow::Request(request(no), paid(no))).collect();
    let load = LoadRows { keys, fence, loader: LOADER, rows: &rows }.call();
    let open = shop.opening(0, LOADER, 400).call();
    [
        scenario("hold", hold, |shop, value| {
            let (keys, fence) = (&shop.buckets[0], &shop.fence);
            HoldBucket { keys, fence, loader: LOADER }.parse(value).map(drop)
        }),
        scenario("clear", clear, |shop, value| {
            let (keys, fence) = (&shop.buckets[0], &shop.fence);
            ClearBucket { keys, fence, loader: LOADER, pages: 0..0 }.parse(value).map(drop)
        }),
        scenario("load_rows", load, |shop, value| {
            let (keys, fence) = (&shop.buckets[0], &shop.fence);
            LoadRows { keys, fence, loader: LOADER, rows: &[] }.parse(value)
        }),
        scenario("open", open, |shop, value| shop.opening(0, LOADER, 0).parse(value).map(drop)),
    ]
    .map(|scenario| match scenario.script() {
        Script::Hold => scenario,
        _ => Scenario { state: State::Loading, ..scenario },
    })
}
