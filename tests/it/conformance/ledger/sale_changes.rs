//! Sales that change while they run: terms by epoch, and the stock.

use floodgate::db::Ledger;
use floodgate::domain::{
    ByOperator, Epoch, LoaderToken, OrderIntent, Phase, Sale, SaleChange, SaleChanged, Sku,
    SkuChange, StockChange, StockChangeOutcome, StockChangeRequest, Terms,
};

use super::Backend;
use crate::support::offers::{ANY, assert_ledger_holds, intent, offer, open_offer, quota};

const NOW_MS: i64 = 5_000;

fn terms_of(sku: &Sku, terms: Terms) -> SaleChange {
    let Terms { price, limit, max_quantity, payment_window_s } = terms;
    let change = SkuChange {
        id: sku.id.clone(),
        title: None,
        price: Some(price),
        limit,
        max_quantity: Some(max_quantity),
        payment_window_s: Some(payment_window_s),
    };
    SaleChange { skus: vec![change], ..SaleChange::default() }
}

async fn change(ledger: &dyn Ledger, change: SaleChange) -> Sale {
    match ledger.change_sale("sale".parse().unwrap(), change, NOW_MS).await.unwrap() {
        SaleChanged::Changed(sale) => sale,
        other => panic!("{other:?}"),
    }
}

fn stock_change(sku: &Sku, id: &str, wanted: i32) -> StockChangeRequest {
    StockChangeRequest {
        id: id.to_owned(),
        sku: sku.no,
        wanted,
        withdrawn: wanted.min(0).unsigned_abs(),
        load: None,
        reason: Some("why".to_owned()),
        operator: None,
        at_ms: NOW_MS,
    }
}

async fn stock(ledger: &dyn Ledger, sku: &Sku) -> (u32, u32, i32, i32) {
    let sales = ledger.sales().await.unwrap();
    let found = sales.iter().flat_map(|sale| &sale.skus).find(|one| one.no == sku.no).unwrap();
    let history = &found.history;
    let available = ledger.available(sku.no).await.unwrap();
    (found.initial, available, history.change_no, history.changed_units)
}

pub async fn other_terms_are_the_next_epoch(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = open_offer(&*ledger, "sale", quota(5), 10).await;
    let old = sku.terms();
    let new = Terms { price: 99, limit: Some(3), max_quantity: 2, payment_window_s: 60 };
    let sale = change(&*ledger, terms_of(&sku, new)).await;
    assert_eq!((sale.epoch, sale.phase), (Epoch(2), Phase::Open));
    let found = &sale.skus[0];
    assert_eq!(
        (found.terms(), found.terms_in(Epoch(1)), found.terms_in(Epoch(2))),
        (new, old, new)
    );
    assert_eq!(ledger.sales().await.unwrap(), std::slice::from_ref(&sale));
    assert_eq!(change(&*ledger, terms_of(&sku, new)).await.epoch, Epoch(2), "a repeat");

    // Orders of both epochs, in whatever order they are written.
    let later = OrderIntent { epoch: Epoch(2), ..intent(found, 1, 1, 1) };
    assert!(ledger.place(vec![later]).await.unwrap().is_some());
    assert!(ledger.place(vec![intent(&sku, 2, 2, 5)]).await.unwrap().is_some());
    assert_ledger_holds(&*ledger).await;
}

pub async fn title_and_later_end_change_without_an_epoch(backend: &dyn Backend) {
    let ledger = backend.open().await;
    open_offer(&*ledger, "sale", ANY, 10).await;
    let later_ms = 4_000_000_000_001;
    let to = SaleChange {
        title: Some("Other 标题".to_owned()),
        ends_at_ms: Some(later_ms),
        ..SaleChange::default()
    };
    let sale = change(&*ledger, to).await;
    assert_eq!((sale.title.as_str(), sale.ends_at_ms), ("Other 标题", later_ms));
    assert_eq!(sale.epoch, Epoch(1));
    assert_eq!(ledger.sales().await.unwrap(), [sale]);
    let unknown = ledger.change_sale("other".parse().unwrap(), SaleChange::default(), NOW_MS);
    assert_eq!(unknown.await.unwrap(), SaleChanged::Unknown);
    let bad = SaleChange { ends_at_ms: Some(1), ..SaleChange::default() };
    let refused = ledger.change_sale("sale".parse().unwrap(), bad, NOW_MS).await.unwrap();
    assert!(matches!(refused, SaleChanged::Faults(_)), "{refused:?}");
    ledger.set_sale_phase("sale".parse().unwrap(), Epoch(1), Phase::Closed, 1, None).await.unwrap();
    let closed = ledger.change_sale("sale".parse().unwrap(), SaleChange::default(), NOW_MS);
    assert_eq!(closed.await.unwrap(), SaleChanged::Closed);
}

pub async fn an_earlier_end_is_the_next_epoch(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = open_offer(&*ledger, "sale", ANY, 10).await;
    let to = SaleChange { ends_at_ms: Some(NOW_MS + 9_999), ..SaleChange::default() };
    for _ in 0..2 {
        let sale = change(&*ledger, to.clone()).await;
        assert_eq!((sale.epoch, sale.ends_at_ms), (Epoch(2), NOW_MS + 9_999), "also of a repeat");
        assert_eq!(ledger.sales().await.unwrap(), [sale]);
    }
    for (no, epoch) in [(1, 2), (2, 1)] {
        let order = OrderIntent { epoch: Epoch(epoch), ..intent(&sku, no, no, 1) };
        assert!(ledger.place(vec![order]).await.unwrap().is_some(), "of epoch {epoch}");
    }
    assert_ledger_holds(&*ledger).await;
}

pub async fn a_change_is_recorded_with_its_operator_and_its_values(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = open_offer(&*ledger, "sale", quota(5), 10).await;
    let by = ByOperator { name: "anna".to_owned(), reason: None };
    let new = Terms { price: 99, limit: Some(3), max_quantity: 2, payment_window_s: 60 };
    let to = SaleChange { ends_at_ms: Some(NOW_MS + 9_999), ..terms_of(&sku, new) };
    let to = SaleChange { title: Some("Other".to_owned()), by: Some(by), ..to };
    change(&*ledger, to.clone()).await;
    change(&*ledger, to).await;
    let request = |id, wanted, operator: Option<&str>| StockChangeRequest {
        operator: operator.map(str::to_owned),
        ..stock_change(&sku, id, wanted)
    };
    for request in [request("a", 5, Some("anna")), request("b", -20, Some("anna"))] {
        ledger.change_stock(request.clone()).await.unwrap();
        ledger.change_stock(request).await.unwrap();
    }
    ledger.change_stock(request("c", 1, None)).await.unwrap();
    let verbs = ledger.verbs(Some("sale:sale".to_owned()), None, 9).await.unwrap();
    let verbs = verbs.into_iter().map(|(_, verb)| (verb.verb, verb.detail.unwrap()));
    let terms = "title Sale sale 秒杀 -> Other; \
                 ends_at 2096-10-02T07:06:40.000Z -> 1970-01-01T00:00:14.999Z; \
                 price of sku 250 -> 99; limit of sku 5 -> 3; max_quantity of sku 5 -> 2; \
                 payment_window_s of sku 900 -> 60";
    let expected = [
        ("stock", "-15 units of sku, change b"),
        ("stock", "+5 units of sku, change a"),
        ("change", terms),
    ];
    let expected = expected.map(|(verb, detail)| (verb.to_owned(), detail.to_owned()));
    assert_eq!(verbs.collect::<Vec<_>>(), expected);
}

pub async fn a_changed_limit_is_that_of_the_intent(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = open_offer(&*ledger, "sale", quota(2), 100).await;
    let raised = Terms { limit: Some(6), max_quantity: 4, ..sku.terms() };
    let raised = change(&*ledger, terms_of(&sku, raised)).await;
    let raised = raised.skus[0].clone();
    assert!(ledger.place(vec![intent(&sku, 1, 1, 2)]).await.unwrap().is_some());
    let more = OrderIntent { epoch: Epoch(2), ..intent(&raised, 2, 1, 4) };
    assert!(ledger.place(vec![more]).await.unwrap().is_some(), "the limit was raised");
    let lowered = Terms { limit: Some(3), max_quantity: 3, ..sku.terms() };
    let lowered = change(&*ledger, terms_of(&sku, lowered)).await;
    let lowered = lowered.skus[0].clone();
    for (no, buyer, units, is_placed) in [(3, 1, 1, false), (4, 2, 3, true), (5, 2, 1, false)] {
        let order = intent(&lowered, no, buyer, units);
        let order = OrderIntent { epoch: Epoch(3), ..order };
        let placed = ledger.place(vec![order]).await.unwrap().is_some();
        assert_eq!(placed, is_placed, "request {no}");
    }
    assert_ledger_holds(&*ledger).await;
}

pub async fn a_stock_changes_once_per_id(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = open_offer(&*ledger, "sale", ANY, 10).await;
    assert!(ledger.place(vec![intent(&sku, 1, 1, 4)]).await.unwrap().is_some());
    let up = StockChange { sku: sku.no, no: 1, wanted: 5, units: 5 };
    let added = ledger.change_stock(stock_change(&sku, "a", 5)).await.unwrap();
    assert_eq!(added, StockChangeOutcome::Recorded(up));
    let again = ledger.change_stock(stock_change(&sku, "a", 5)).await.unwrap();
    assert_eq!(again, StockChangeOutcome::Repeat(up));
    let other = ledger.change_stock(stock_change(&sku, "a", 6)).await.unwrap();
    assert_eq!(other, StockChangeOutcome::OtherContent);
    assert_eq!(stock(&*ledger, &sku).await, (15, 11, 1, 5));

    // Only what is available leaves.
    let down = StockChange { sku: sku.no, no: 2, wanted: -20, units: -11 };
    let taken = ledger.change_stock(stock_change(&sku, "b", -20)).await.unwrap();
    assert_eq!(taken, StockChangeOutcome::Recorded(down));
    assert_eq!(stock(&*ledger, &sku).await, (4, 0, 2, -6));
    assert_eq!(ledger.stock_changes(sku.no, 0).await.unwrap(), [up, down]);
    assert_eq!(ledger.stock_changes(sku.no, 1).await.unwrap(), [down]);
    assert_eq!(ledger.stock_change(sku.no, "b".to_owned()).await.unwrap(), Some(down));
    assert_eq!(ledger.stock_change(sku.no, "c".to_owned()).await.unwrap(), None);
    // The ids are those of the SKU.
    let sibling = offer(&*ledger, "other", ANY, 10).await;
    let up = StockChange { sku: sibling.no, no: 1, wanted: 7, units: 7 };
    let added = ledger.change_stock(stock_change(&sibling, "a", 7)).await.unwrap();
    assert_eq!(added, StockChangeOutcome::Recorded(up));
    assert_eq!(ledger.stock_change(sibling.no, "b".to_owned()).await.unwrap(), None);
    let huge = ledger.change_stock(stock_change(&sku, "c", 1_000_000_000)).await.unwrap();
    assert_eq!(huge, StockChangeOutcome::TooMany);
    assert!(ledger.place(vec![intent(&sku, 2, 2, 1)]).await.unwrap().is_none(), "sold out");
    assert_ledger_holds(&*ledger).await;
}

pub async fn the_stock_of_a_closed_sale_does_not_change(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = open_offer(&*ledger, "sale", ANY, 10).await;
    let recorded = ledger.change_stock(stock_change(&sku, "a", 5)).await.unwrap();
    assert!(matches!(recorded, StockChangeOutcome::Recorded(_)), "{recorded:?}");
    ledger.set_sale_phase("sale".parse().unwrap(), Epoch(1), Phase::Closed, 1, None).await.unwrap();
    for wanted in [5, -5] {
        let late = ledger.change_stock(stock_change(&sku, "b", wanted)).await.unwrap();
        assert_eq!(late, StockChangeOutcome::Closed);
    }
    let again = ledger.change_stock(stock_change(&sku, "a", 5)).await.unwrap();
    assert!(matches!(again, StockChangeOutcome::Repeat(_)), "{again:?}");
    assert_eq!(stock(&*ledger, &sku).await, (15, 15, 1, 5));
}

pub async fn units_given_up_before_a_load_stay(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 10).await;
    let of_load = |id: &str, load| StockChangeRequest { load, ..stock_change(&sku, id, -2) };
    let first = ledger.begin_load(sku.no).await.unwrap();
    let second = ledger.begin_load(sku.no).await.unwrap();
    assert!(second > first);
    for load in [LoaderToken(0), first] {
        let late = ledger.change_stock(of_load("late", Some(load))).await.unwrap();
        assert_eq!(late, StockChangeOutcome::Reloaded);
    }
    assert_eq!(stock(&*ledger, &sku).await, (10, 10, 0, 0));
    let taken = ledger.change_stock(of_load("good", Some(second))).await.unwrap();
    assert!(matches!(taken, StockChangeOutcome::Recorded(_)), "{taken:?}");
    assert_eq!(stock(&*ledger, &sku).await, (8, 8, 1, -2));
}
