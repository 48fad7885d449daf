//! One accepted call per script, with the bucket state that the call needs.

use floodgate::domain::{
    BucketNo, Epoch, LoaderToken, Loan, Order, OrderIntent, OrderState, Phase, Policy, Refusal,
    RequestRecord,
};
use floodgate::redis::scripts::load::{LoadRow, clear, hold, load_rows};
use floodgate::redis::scripts::loans::{borrow, change_stock, clear_loan, lend};
use floodgate::redis::scripts::lookup;
use floodgate::redis::scripts::{
    Error, OutboxArgs, Script, ScriptCall, load, reserve_settle, snapshot,
};
use redis::{RedisResult, Value};

use super::fenced_call::FencedCall;
use super::harness::{Fixture, KINDS, PAID, ScriptClient, opening, refused, sku};
use crate::support::offers::{ANY, ONE, buyer, order_of, quota, request};
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
    pub call: FencedCall,
}

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
    pub fn ended(&self, answer: RedisResult<Value>) -> Ended {
        match answer {
            Err(error) => Ended::Failed(error.code().unwrap_or_default().to_owned()),
            Ok(value) => match self.call.parse(value) {
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
    assert_eq!(fixture.run(client, &opening(token, 500).call(&fixture.buckets[0])), Ok(true));
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
    RequestRecord { buyer: buyer(buyer_no), quantity: 1, placed_at_ms: 1, state: PAID }
}

/// All scripts; `reserve` with every kind of outbox.
pub fn all(fixture: &Fixture) -> Vec<Scenario> {
    let (keys, sku, pages) = (&fixture.buckets[0], &fixture.sku, fixture.pages().all());
    // A reserved order and an order without a reservation.
    let orders: [Order; 2] =
        [order_of(&fixture.reservation(1, 1, 2)), order_of(&fixture.reservation(30, 30, 1))];
    let (state, counts_for_limit) = (OrderState::TimedOut, false);
    let ended = Order { state, version: 1, counts_for_limit, ..orders[0] };
    let refused = refused(&fixture.reservation(1, 1, 2), Refusal::RequestIdReused);
    let mut all = vec![
        scenario(fixture, "settle", reserve_settle::settle(keys, sku, &orders)),
        scenario(fixture, "settle an end", reserve_settle::settle(keys, sku, &[ended])),
        scenario(fixture, "release", reserve_settle::release(keys, sku, &[refused])),
        scenario(fixture, "set_phase", load::set_phase(keys, Epoch(2), Phase::Paused)),
        scenario(fixture, "snapshot", snapshot::snapshot(keys, pages.clone())),
        scenario(fixture, "find", lookup::find(keys, sku, &[request(1), request(99)])),
        scenario(fixture, "find a buyer", lookup::owned(keys, sku, buyer(1))),
        scenario(fixture, "queued", fixture.queued(0)),
        // Another borrower than that of the open loan.
        scenario(fixture, "lend", lend(keys, BucketNo(5), 3)),
        scenario(fixture, "borrow", borrow(keys, BucketNo(1), loan(4))),
        scenario(fixture, "clear_loan", clear_loan(keys, BucketNo(1), loan(1).no)),
        scenario(fixture, "change_stock", change_stock(keys, 1, 5)),
        scenario(fixture, "withdraw", lend(keys, BucketNo::LEDGER, 3)),
        scenario(fixture, "hold", hold(keys, LOADER)),
    ];
    all.extend(KINDS.map(|outbox| reserve(fixture, outbox)));
    let rows: Vec<LoadRow> = (60..90).map(|no| LoadRow::Request(request(no), paid(no))).collect();
    let loads = [
        scenario(fixture, "clear", clear(keys, LOADER, pages)),
        scenario(fixture, "load_rows", load_rows(keys, sku, LOADER, &rows)),
        scenario(fixture, "open", opening(LOADER, 400).call(keys)),
    ];
    all.extend(loads.map(|scenario| Scenario { state: State::Loading, ..scenario }));
    all
}

pub fn policies() -> [Policy; 3] {
    [ONE, ANY, quota(5)]
}

fn scenario<A: 'static>(fixture: &Fixture, name: &str, call: ScriptCall<A>) -> Scenario {
    let call = fixture.fenced(call);
    Scenario { name: name.to_owned(), state: State::Selling, call }
}

pub fn reserve(fixture: &Fixture, outbox: OutboxArgs) -> Scenario {
    let batch: Vec<_> = (10..20).map(|no| fixture.reservation(no, no, 1)).collect();
    let call = fixture.reserving(0, outbox, &batch);
    scenario(fixture, &format!("reserve {outbox:?}"), call)
}

/// `reserve` of this batch, without an outbox.
pub fn reserving(fixture: &Fixture, batch: &[OrderIntent]) -> Scenario {
    scenario(fixture, "reserve", fixture.reserving(0, fixture.outbox, batch))
}
