//! The verdicts of `reserve` and the outcomes of `settle` and `release`.

use floodgate::domain::{
    Epoch, OrderIntent, OrderState, PayBy, Phase, Policy, RecordState, Refusal, RequestRecord,
    Verdict,
};
use floodgate::redis::scripts::reserve_settle::SettleOutcome;

use super::harness::{Fixture, ScriptClient, refused, sku};
use crate::support::offers::{ANY, ONE, buyer, order_of, quota, request};
use crate::support::servers::redis::Redis;

fn fixture(policy: Policy, stock: u32) -> (Redis, ScriptClient, Fixture) {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, policy, 2 * stock), stock);
    (redis, client, fixture)
}

/// The answer to buyer 1 with a new order.
fn ordered(quantity: u32) -> Verdict {
    let placed_at_ms = 1_790_000_000_000;
    let state = RecordState::Ordered {
        state: OrderState::PendingPayment,
        version: 0,
        amount: 250 * i64::from(quantity),
        pay_by: PayBy::from_ms(Some(placed_at_ms + 900_000)),
    };
    Verdict::Repeat(RequestRecord { buyer: buyer(1), quantity, placed_at_ms, state })
}

/// The answer to a repeat of an accepted request that the ledger refused.
fn failed(reservation: &OrderIntent, reason: Refusal) -> Verdict {
    let state = RecordState::Failed(reason);
    Verdict::Repeat(RequestRecord { state, ..RequestRecord::queued(reservation) })
}

const QUEUED: Verdict = Verdict::Queued { intent: None };
const REUSED: Verdict = Verdict::Refused(Refusal::RequestIdReused);

#[test]
fn reservations_of_one_batch_see_each_other() {
    let (_redis, mut client, fixture) = fixture(ONE, 3);
    let batch = [
        fixture.reservation(1, 1, 1),
        fixture.reservation(1, 1, 1),
        fixture.reservation(1, 2, 1),
        fixture.reservation(1, 1, 2),
        fixture.reservation(3, 3, 3),
        fixture.reservation(4, 4, 2),
    ];
    let expected = [Verdict::Reserved, QUEUED, REUSED, REUSED, Verdict::Short, Verdict::Reserved];
    assert_eq!(fixture.reserve(&mut client, 0, &batch), expected);
    let again = [QUEUED, QUEUED, REUSED, REUSED, Verdict::Short, QUEUED];
    assert_eq!(fixture.reserve(&mut client, 0, &batch), again);
    let counts = fixture.counts(&mut client, 0);
    assert_eq!((counts.left.stock, counts.num_requests, counts.num_buyers), (0, 2, 0));
    assert_eq!(counts.num_unsettled(), 2);
}

#[test]
fn a_quota_counts_over_batches_and_comes_back_with_a_refusal() {
    let (_redis, mut client, fixture) = fixture(quota(5), 10);
    let [a, b, c] =
        [fixture.reservation(1, 7, 3), fixture.reservation(2, 7, 2), fixture.reservation(3, 7, 1)];
    let over = |owned| Verdict::Refused(Refusal::QuotaExceeded { owned, limit: 5 });
    assert_eq!(
        fixture.reserve(&mut client, 0, &[a, b, c]),
        [Verdict::Reserved, Verdict::Reserved, over(5)]
    );
    let outcomes = fixture.release(&mut client, 0, &[refused(&a, Refusal::RequestIdReused)]);
    assert_eq!((outcomes.0, outcomes.1.stock), (vec![SettleOutcome::Now], 8));
    assert_eq!(
        fixture.reserve(&mut client, 0, &[c, fixture.reservation(4, 7, 3)]),
        [Verdict::Reserved, over(3)]
    );
    let failed = failed(&a, Refusal::RequestIdReused);
    assert_eq!(fixture.reserve(&mut client, 0, &[a]), [failed]);
}

#[test]
fn refusals_beyond_the_units_of_their_buyer_leave_none() {
    let (_redis, mut client, fixture) = fixture(quota(5), 10);
    let both = [fixture.reservation(1, 7, 3), fixture.reservation(2, 7, 2)];
    assert_eq!(fixture.reserve(&mut client, 0, &both), [Verdict::Reserved; 2]);
    let page = fixture.buckets[0].buyers(fixture.pages().page_of(both[0].buyer.get()));
    client.cmd(&["HSET", &page, &both[0].buyer.to_string(), "3"]);
    let refusals = both.map(|reservation| refused(&reservation, Refusal::Ended));
    assert_eq!(fixture.release(&mut client, 0, &refusals).0, [SettleOutcome::Now; 2]);
    assert_eq!(fixture.counts(&mut client, 0).num_buyers, 0);
}

#[test]
fn an_order_is_settled_once_and_never_goes_back() {
    let (_redis, mut client, fixture) = fixture(ONE, 10);
    let reservation = fixture.reservation(1, 1, 2);
    fixture.reserve(&mut client, 0, &[reservation]);
    let order = order_of(&reservation);
    assert_eq!(
        fixture.settle(&mut client, 0, &[order, order]),
        [SettleOutcome::Now, SettleOutcome::Repeat]
    );
    let outcomes = fixture.release(&mut client, 0, &[refused(&reservation, Refusal::SoldOut)]);
    assert_eq!((outcomes.0, outcomes.1.stock), (vec![SettleOutcome::Contradicts], 8));
    let repeat = ordered(2);
    assert_eq!(fixture.reserve(&mut client, 0, &[reservation]), [repeat]);
    assert_eq!(fixture.counts(&mut client, 0).num_unsettled(), 0);
}

#[test]
fn a_refusal_gives_back_once_and_only_what_the_ledger_still_has() {
    for (reason, stock, released) in
        [(Refusal::SoldOut, 8, 0), (Refusal::AlreadyPurchased { first: request(9) }, 10, 2)]
    {
        let (_redis, mut client, fixture) = fixture(ONE, 10);
        let reservation = fixture.reservation(1, 1, 2);
        fixture.reserve(&mut client, 0, &[reservation]);
        let refusal = refused(&reservation, reason);
        let outcomes = fixture.release(&mut client, 0, &[refusal, refusal]);
        assert_eq!(
            (outcomes.0, outcomes.1.stock),
            (vec![SettleOutcome::Now, SettleOutcome::Repeat], stock)
        );
        let counts = fixture.counts(&mut client, 0);
        assert_eq!((counts.released_units, counts.num_failed, counts.num_buyers), (released, 1, 0));
        assert_eq!(
            fixture.settle(&mut client, 0, &[order_of(&reservation)]),
            [SettleOutcome::Contradicts]
        );
        let failed = failed(&reservation, reason);
        let next = fixture.reservation(2, 1, 1);
        assert_eq!(
            fixture.reserve(&mut client, 0, &[reservation, next]),
            [failed, Verdict::Reserved]
        );
    }
}

#[test]
fn an_order_without_a_reservation_takes_its_units_and_its_buyer() {
    let (_redis, mut client, fixture) = fixture(quota(2), 3);
    let [a, b] = [fixture.reservation(1, 1, 2), fixture.reservation(2, 2, 2)];
    let mut cancelled = order_of(&fixture.reservation(3, 3, 1));
    (cancelled.state, cancelled.counts_for_limit) = (OrderState::Cancelled, false);
    let orders = [order_of(&a), order_of(&b), cancelled];
    assert_eq!(fixture.settle(&mut client, 0, &orders), [SettleOutcome::Adopted; 3]);
    assert_eq!(fixture.settle(&mut client, 0, &orders), [SettleOutcome::Repeat; 3]);
    let counts = fixture.counts(&mut client, 0);
    assert_eq!((counts.left.stock, counts.num_requests, counts.num_buyers), (0, 3, 2));
    let over = Verdict::Refused(Refusal::QuotaExceeded { owned: 2, limit: 2 });
    assert_eq!(fixture.reserve(&mut client, 0, &[fixture.reservation(4, 1, 1)]), [over]);
}

#[test]
fn a_later_opening_refuses_the_earlier_and_still_answers_repeats() {
    let (_redis, mut client, fixture) = fixture(ANY, 10);
    let known = fixture.reservation(1, 1, 1);
    fixture.reserve(&mut client, 0, &[known]);
    assert!(fixture.set_phase(&mut client, 0, Phase::Open, Epoch(2)));
    assert!(!fixture.set_phase(&mut client, 0, Phase::Closed, Epoch(1)), "an older opening");
    let batch = [known, fixture.reservation(2, 2, 1), fixture.reservation(1, 2, 1)];
    assert_eq!(fixture.reserve(&mut client, 0, &batch), [QUEUED, Verdict::StaleEpoch, REUSED]);
    for (phase, refusal) in [(Phase::Paused, Refusal::NotStarted), (Phase::Closed, Refusal::Ended)]
    {
        assert!(fixture.set_phase(&mut client, 0, phase, Epoch(2)));
        let mut reservation = fixture.reservation(2, 2, 1);
        reservation.epoch = Epoch(2);
        assert_eq!(fixture.reserve(&mut client, 0, &[reservation]), [Verdict::Refused(refusal)]);
    }
}
