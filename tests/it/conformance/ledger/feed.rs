//! The feed of order events.

use std::collections::HashMap;

use floodgate::db::FeedEvent;
use floodgate::domain::OrderState::{Cancelled, Paying, PendingPayment};
use floodgate::domain::{
    Actor, CancelOutcome, Failure, OrderEvent, OrderState, Refusal, RequestId, SkuNo,
};

use super::life::{Shop, report};
use super::{Backend, NOW_MS};
use crate::support::offers::{ANY, ONE, failures, intent, order_events};

impl Shop {
    async fn number_all(&self) {
        while self.ledger.number_events(3).await.unwrap() > 0 {}
    }

    /// The events of orders.
    async fn feed(&self, page: u32) -> Vec<OrderEvent> {
        self.whole_feed(page).await.into_iter().filter_map(FeedEvent::into_order).collect()
    }

    /// The whole feed, by pages.
    async fn whole_feed(&self, page: u32) -> Vec<FeedEvent> {
        let mut events: Vec<FeedEvent> = Vec::new();
        loop {
            let last = events.last().map_or(0, FeedEvent::feed_no);
            let next = self.ledger.events_after(last, page).await.unwrap();
            assert!(next.len() <= page as usize);
            if next.is_empty() {
                return events;
            }
            events.extend(next);
        }
    }
}

/// Request, version and state of each event.
fn kinds(events: &[OrderEvent]) -> Vec<(u64, u16, OrderState)> {
    let kind =
        |event: &OrderEvent| (event.order.request.get(), event.order.version, event.order.state);
    events.iter().map(kind).collect()
}

pub async fn events_come_in_order_each_with_its_order(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    // The placement of two orders is one row, of the second of which the events come first by id.
    let batch = vec![intent(&shop.sku, 7, 1, 1), intent(&shop.sku, 3, 2, 2)];
    assert!(shop.ledger.place(batch).await.unwrap().is_some());
    let key = shop.place(1, 3, 1).await;
    assert_eq!(shop.feed(9).await, [], "events are numbered first");
    assert_eq!(shop.ledger.last_feed_no().await.unwrap(), 0);
    let mut key_of_3 = key;
    key_of_3.request = RequestId::new(3).unwrap();
    key_of_3.buyer = floodgate::domain::BuyerId::new(2).unwrap();
    let (paying, payment) = shop.open_payment(key_of_3).await;
    shop.pass(5);
    let closed = report(&payment, "e1", floodgate::domain::PaymentReport::Closed);
    shop.ledger.record_payment(closed).await.unwrap();
    let cancelled = shop.ledger.cancel(key_of_3).await;
    let CancelOutcome::Cancelled(cancelled) = cancelled.unwrap() else { panic!("not cancelled") };
    shop.number_all().await;

    let events = shop.feed(2).await;
    assert_eq!(
        kinds(&events),
        [
            (1, 0, PendingPayment),
            (7, 0, PendingPayment),
            (3, 0, PendingPayment),
            (3, 1, Paying),
            (3, 2, PendingPayment),
            (3, 3, Cancelled),
        ]
    );
    let numbers: Vec<i64> = events.iter().map(|event| event.feed_no).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(shop.ledger.last_feed_no().await.unwrap(), 6);
    let [placed, opened, closed, ended] = events.last_chunk().unwrap();
    assert_eq!((placed.at_ms, placed.actor), (NOW_MS, Actor::Buyer));
    assert_eq!(placed.order.due_ms, placed.order.pay_by_ms);
    assert_eq!((opened.order.due_ms, opened.order.quantity), (paying.due_ms, 2));
    assert_eq!((closed.at_ms, closed.payment_id.as_deref()), (NOW_MS + 5, Some("pay-3-1")));
    assert!(placed.order.counts_for_limit && opened.order.counts_for_limit);
    assert_eq!(
        (ended.order, ended.actor, ended.reason.as_deref()),
        (cancelled, Actor::Buyer, None)
    );
    for page in [1, 3, 9] {
        assert_eq!(shop.feed(page).await, events);
    }
}

pub async fn several_sequencers_leave_no_gap(backend: &dyn Backend) {
    const ORDERS: u64 = 60;
    let shop = Shop::open(backend, ANY).await;
    let writing = async {
        for number in 1..=ORDERS {
            let key = shop.place(number, number, 1).await;
            shop.ledger.cancel(key).await.unwrap();
        }
    };
    let numbering = async || {
        for _ in 0..40 {
            shop.ledger.number_events(2).await.unwrap();
        }
    };
    // A reader who passes a number never misses one before it.
    let reading = async {
        let mut last = 0;
        for _ in 0..40 {
            for event in order_events(&*shop.ledger, last, 50).await {
                assert_eq!(event.feed_no, last + 1);
                last = event.feed_no;
            }
        }
    };
    tokio::join!(writing, numbering(), numbering(), reading);
    shop.number_all().await;
    let events = shop.feed(50).await;
    let numbers: Vec<i64> = events.iter().map(|event| event.feed_no).collect();
    let all = i64::try_from(2 * ORDERS).unwrap();
    assert_eq!(numbers, (1..=all).collect::<Vec<_>>());
    let mut versions: HashMap<RequestId, u16> = HashMap::new();
    for event in &events {
        let next = versions.entry(event.order.request).or_default();
        assert_eq!(event.order.version, *next);
        *next += 1;
    }
    assert!(versions.values().all(|count| *count == 2));
}

pub async fn changes_are_read_without_placements(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    for number in 1..=4 {
        let key = shop.place(number, number, 1).await;
        shop.number_all().await;
        if number % 2 == 0 {
            shop.ledger.cancel(key).await.unwrap();
            shop.number_all().await;
        }
    }
    let all = shop.feed(9).await;
    assert_eq!(all.len(), 6);
    let page = async |after, limit| shop.ledger.changes_after(after, limit).await.unwrap();
    let first = page(0, 1).await;
    assert_eq!((kinds(&first.events), first.read_to), (vec![(2, 1, Cancelled)], 3));
    let rest = page(3, 9).await;
    assert_eq!((kinds(&rest.events), rest.read_to), (vec![(4, 1, Cancelled)], 6));
    assert_eq!(rest.events[0], all[5]);
    let placement = page(3, 1).await;
    assert_eq!(placement.read_to, 6);
    let end = page(6, 9).await;
    assert_eq!((end.events, end.read_to), (vec![], 6));
    shop.place(5, 5, 1).await;
    shop.number_all().await;
    let placed = page(6, 9).await;
    assert_eq!((placed.events, placed.read_to), (vec![], 7), "the cursor moves all the same");
}

pub async fn a_recorded_failure_is_one_event(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let ordered = shop.place(1, 1, 1).await;
    let refused = intent(&shop.sku, 2, 2, 3).failure(Refusal::SoldOut, NOW_MS - 5);
    let again = Failure { reason: Refusal::Ended, quantity: 1, recorded_at_ms: 0, ..refused };
    let reused = intent(&shop.sku, 1, 9, 2).failure(Refusal::RequestIdReused, NOW_MS);
    let other = intent(&shop.sku, 3, 3, 1).failure(Refusal::CancelledByBuyer, NOW_MS);
    // No sale has it: its events would have no name.
    let unknown =
        Failure { sku: SkuNo(999), ..intent(&shop.sku, 4, 4, 1).failure(Refusal::Ended, 1) };
    for batch in [vec![refused, reused, again], vec![again, other], vec![unknown, refused]] {
        shop.ledger.record_failures(batch).await.unwrap();
        shop.number_all().await;
    }
    shop.ledger.cancel(ordered).await.unwrap();
    shop.number_all().await;
    assert_eq!(failures(&*shop.ledger, SkuNo(999)).await, [unknown], "recorded all the same");

    let events = shop.whole_feed(9).await;
    let numbers: Vec<i64> = events.iter().map(FeedEvent::feed_no).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(events[1], FeedEvent::Refused { feed_no: 2, failure: refused });
    assert_eq!(events[2], FeedEvent::Refused { feed_no: 3, failure: other });
    for page in [1, 2, 3] {
        assert_eq!(shop.whole_feed(page).await, events);
    }
    let orders = shop.feed(9).await;
    assert_eq!(kinds(&orders), [(1, 0, PendingPayment), (1, 1, Cancelled)]);
    let changes = shop.ledger.changes_after(1, 9).await.unwrap();
    assert_eq!((changes.events, changes.read_to), (vec![orders[1].clone()], 4));
    let passed = shop.ledger.changes_after(4, 9).await.unwrap();
    assert_eq!((passed.events, passed.read_to), (vec![], 4));
    shop.ledger.record_failures(vec![refused]).await.unwrap();
    assert_eq!(shop.ledger.number_events(9).await.unwrap(), 0, "a repeat");
}

pub async fn a_cursor_moves_forward(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    assert_eq!(shop.ledger.cursor("one").await.unwrap(), 0);
    for (to, expected) in [(5, 5), (3, 5), (9, 9)] {
        shop.ledger.move_cursor("one", to).await.unwrap();
        assert_eq!(shop.ledger.cursor("one").await.unwrap(), expected);
    }
    assert_eq!(shop.ledger.cursor("other").await.unwrap(), 0);
}
