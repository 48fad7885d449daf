//! What `reserve`, `settle` and `release` decide.

use floodgate::domain::{Epoch, OrderState, Phase, Policy, Refusal, RequestStatus, Verdict};
use floodgate::redis::scripts::settle::SettleOutcome;

use super::rig::{Shop, Wire, refused, sku};
use crate::support::offers::{ANY, ONE, quota, request};
use crate::support::servers::redis::Redis;

fn shop(policy: Policy, stock: u32) -> (Redis, Wire, Shop) {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, policy, 2 * stock), stock);
    (redis, wire, shop)
}

fn ordered(quantity: u32, state: OrderState) -> Verdict {
    let placed_at_ms = 1_790_000_000_000;
    Verdict::Repeat(RequestStatus::Ordered { quantity, placed_at_ms, state })
}

const QUEUED: Verdict = Verdict::Repeat(RequestStatus::Queued);
const REUSED: Verdict = Verdict::Refused(Refusal::RequestIdReused);

#[test]
fn reservations_of_one_batch_see_each_other() {
    let (_redis, mut wire, shop) = shop(ONE, 3);
    let batch = [
        shop.ask(1, 1, 1),
        shop.ask(1, 1, 1),
        shop.ask(1, 2, 1),
        shop.ask(1, 1, 2),
        shop.ask(3, 3, 3),
        shop.ask(4, 4, 2),
    ];
    let expected = [Verdict::Reserved, QUEUED, REUSED, REUSED, Verdict::Short, Verdict::Reserved];
    assert_eq!(shop.reserve(&mut wire, 0, &batch), expected);
    let again = [QUEUED, QUEUED, REUSED, REUSED, Verdict::Short, QUEUED];
    assert_eq!(shop.reserve(&mut wire, 0, &batch), again);
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.left.stock, counts.num_requests, counts.num_buyers), (0, 2, 0));
    assert_eq!(counts.num_unsettled(), 2);
}

#[test]
fn a_quota_counts_over_batches_and_comes_back_with_a_refusal() {
    let (_redis, mut wire, shop) = shop(quota(5), 10);
    let [a, b, c] = [shop.ask(1, 7, 3), shop.ask(2, 7, 2), shop.ask(3, 7, 1)];
    let over = |owned| Verdict::Refused(Refusal::QuotaExceeded { owned, limit: 5 });
    assert_eq!(
        shop.reserve(&mut wire, 0, &[a, b, c]),
        [Verdict::Reserved, Verdict::Reserved, over(5)]
    );
    let notes = shop.release(&mut wire, 0, &[refused(&a, Refusal::RequestIdReused)]);
    assert_eq!((notes.items, notes.left.stock), (vec![SettleOutcome::Now], 8));
    assert_eq!(shop.reserve(&mut wire, 0, &[c, shop.ask(4, 7, 3)]), [Verdict::Reserved, over(3)]);
    let failed = Verdict::Repeat(RequestStatus::Failed(Refusal::RequestIdReused));
    assert_eq!(shop.reserve(&mut wire, 0, &[a]), [failed]);
}

#[test]
fn an_order_is_settled_once_and_never_goes_back() {
    let (_redis, mut wire, shop) = shop(ONE, 10);
    let ask = shop.ask(1, 1, 2);
    shop.reserve(&mut wire, 0, &[ask]);
    let order = shop.order(&ask);
    assert_eq!(
        shop.settle(&mut wire, 0, &[order, order]),
        [SettleOutcome::Now, SettleOutcome::Repeat]
    );
    let notes = shop.release(&mut wire, 0, &[refused(&ask, Refusal::SoldOut)]);
    assert_eq!((notes.items, notes.left.stock), (vec![SettleOutcome::Contradicts], 8));
    let repeat = ordered(2, OrderState::PendingPayment);
    assert_eq!(shop.reserve(&mut wire, 0, &[ask]), [repeat]);
    assert_eq!(shop.counts(&mut wire, 0).num_unsettled(), 0);
}

#[test]
fn a_refusal_gives_back_once_and_only_what_the_ledger_still_has() {
    for (reason, stock, released) in
        [(Refusal::SoldOut, 8, 0), (Refusal::AlreadyPurchased { first: request(9) }, 10, 2)]
    {
        let (_redis, mut wire, shop) = shop(ONE, 10);
        let ask = shop.ask(1, 1, 2);
        shop.reserve(&mut wire, 0, &[ask]);
        let refusal = refused(&ask, reason);
        let notes = shop.release(&mut wire, 0, &[refusal, refusal]);
        assert_eq!(
            (notes.items, notes.left.stock),
            (vec![SettleOutcome::Now, SettleOutcome::Repeat], stock)
        );
        let counts = shop.counts(&mut wire, 0);
        assert_eq!((counts.released_units, counts.num_failed, counts.num_buyers), (released, 1, 0));
        assert_eq!(shop.settle(&mut wire, 0, &[shop.order(&ask)]), [SettleOutcome::Contradicts]);
        let failed = Verdict::Repeat(RequestStatus::Failed(reason));
        let next = shop.ask(2, 1, 1);
        assert_eq!(shop.reserve(&mut wire, 0, &[ask, next]), [failed, Verdict::Reserved]);
    }
}

#[test]
fn an_order_nobody_reserved_takes_its_units_and_its_buyer() {
    let (_redis, mut wire, shop) = shop(quota(2), 3);
    let [a, b] = [shop.ask(1, 1, 2), shop.ask(2, 2, 2)];
    let mut cancelled = shop.order(&shop.ask(3, 3, 1));
    cancelled.state = OrderState::Cancelled;
    let orders = [shop.order(&a), shop.order(&b), cancelled];
    assert_eq!(shop.settle(&mut wire, 0, &orders), [SettleOutcome::Adopted; 3]);
    assert_eq!(shop.settle(&mut wire, 0, &orders), [SettleOutcome::Repeat; 3]);
    let counts = shop.counts(&mut wire, 0);
    assert_eq!((counts.left.stock, counts.num_requests, counts.num_buyers), (0, 3, 2));
    let over = Verdict::Refused(Refusal::QuotaExceeded { owned: 2, limit: 2 });
    assert_eq!(shop.reserve(&mut wire, 0, &[shop.ask(4, 1, 1)]), [over]);
}

#[test]
fn a_later_opening_refuses_the_earlier_and_still_answers_repeats() {
    let (_redis, mut wire, shop) = shop(ANY, 10);
    let known = shop.ask(1, 1, 1);
    shop.reserve(&mut wire, 0, &[known]);
    assert!(shop.turn(&mut wire, 0, Phase::Open, Epoch(2)));
    assert!(!shop.turn(&mut wire, 0, Phase::Closed, Epoch(1)), "an older opening");
    let batch = [known, shop.ask(2, 2, 1), shop.ask(1, 2, 1)];
    assert_eq!(shop.reserve(&mut wire, 0, &batch), [QUEUED, Verdict::StaleEpoch, REUSED]);
    for (phase, refusal) in [(Phase::Paused, Refusal::NotStarted), (Phase::Closed, Refusal::Ended)]
    {
        assert!(shop.turn(&mut wire, 0, phase, Epoch(2)));
        let mut ask = shop.ask(2, 2, 1);
        ask.epoch = Epoch(2);
        assert_eq!(shop.reserve(&mut wire, 0, &[ask]), [Verdict::Refused(refusal)]);
    }
}
