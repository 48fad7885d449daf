//! The archive and the purge of finished sales.

use std::sync::Arc;

use floodgate::db::{Ledger, PurgeStep};
use floodgate::domain::{
    ArchiveCursor, ArchiveDigest, ArchiveTable, ByOperator, CancelOutcome, Epoch, Failure, OpenEnd,
    OpenPayment, OrderIntent, PaymentOutcome, PaymentRecorded, PaymentTerms, Phase, PlaceOutcome,
    Refusal, RepairOutcome, RetentionChange, RetentionState, Sale, Sku, SkuDraft,
    StockChangeRequest, TableContents,
};
use serde_json::{Map, Value as Json};

use super::life::{Shop, WINDOW_MS, paid, report};
use super::{Backend, NOW_MS};
use crate::support::offers::{
    ANY, ONE, buyer, intent, open_offer, order_events, orders, request, sale_draft, sku_draft,
};

const DIGEST: ArchiveDigest = ArchiveDigest([7; 32]);
const READERS: &[&str] = &["stock"];

async fn sale(ledger: &dyn Ledger, id: &str) -> Sale {
    let sales = ledger.sales().await.unwrap();
    sales.into_iter().find(|sale| sale.id.as_str() == id).unwrap()
}

async fn close(ledger: &dyn Ledger, id: &str) -> Sale {
    let closed =
        ledger.set_sale_phase(id.parse().unwrap(), Epoch(1), Phase::Closed, NOW_MS, None).await;
    closed.unwrap().unwrap()
}

fn olga() -> ByOperator {
    ByOperator { name: "olga".to_owned(), reason: Some("season over".to_owned()) }
}

async fn retain(ledger: &dyn Ledger, id: &str, change: RetentionChange) -> Option<Sale> {
    ledger.set_retention(id.parse().unwrap(), change, Some(olga())).await.unwrap()
}

/// Numbers all events, and moves the reader behind them.
async fn read_events(ledger: &dyn Ledger) -> i64 {
    while ledger.number_events(100).await.unwrap() > 0 {}
    let last = ledger.last_feed_no().await.unwrap();
    ledger.move_cursor("stock", last).await.unwrap();
    last
}

async fn rows(
    ledger: &dyn Ledger,
    sale: &Sale,
    table: ArchiveTable,
    limit: u32,
) -> Vec<Map<String, Json>> {
    let (mut rows, mut after) = (Vec::new(), ArchiveCursor::default());
    loop {
        let page = ledger.archive_page(sale, table, after, limit).await.unwrap();
        rows.extend(page.rows);
        let Some(next) = page.next else { return rows };
        after = next;
    }
}

fn contents_of(all: &[TableContents], table: ArchiveTable) -> &TableContents {
    all.iter().find(|contents| contents.table == table).unwrap()
}

/// Deletes the rows of a SKU, two orders at a time; returns the size of each step.
async fn purge_rows(ledger: &dyn Ledger, sku: &Sku) -> Vec<u64> {
    let mut steps = Vec::new();
    loop {
        let PurgeStep { num_rows, .. } = ledger.purge_step(sku.no, 2).await.unwrap();
        if num_rows == 0 {
            return steps;
        }
        steps.push(num_rows);
    }
}

async fn purge(ledger: &dyn Ledger, id: &str) -> Vec<u64> {
    let archived = ledger.contents(&sale(ledger, id).await).await.unwrap();
    let changes = [RetentionChange::Archive(DIGEST), RetentionChange::Seal(DIGEST)];
    for change in changes.into_iter().chain([RetentionChange::BeginPurge(archived)]) {
        assert!(retain(ledger, id, change.clone()).await.is_some(), "{change:?}");
    }
    let mut steps = Vec::new();
    for sku in &sale(ledger, id).await.skus {
        steps.extend(purge_rows(ledger, sku).await);
    }
    retain(ledger, id, RetentionChange::EndPurge).await.unwrap();
    steps
}

/// A closed sale with one order of each end, a failure and a barred buyer.
async fn finished(backend: &dyn Backend) -> (Shop, Sale) {
    let draft = SkuDraft { bar_lapsed: true, ..sku_draft("sku", ONE, 10) };
    let shop = Shop::with(backend, draft).await;
    let paid_for = shop.place(1, 1, 2).await;
    let (_, payment) = shop.open_payment(paid_for).await;
    let (outcome, ..) = shop.reported(&payment, "\"秒\"", paid(&payment)).await;
    assert_eq!(outcome, PaymentOutcome::Applied);
    let lapsed = shop.place(2, 2, 1).await;
    let cancelled = shop.place(3, 3, 1).await;
    shop.ledger.cancel(cancelled).await.unwrap();
    let failure = Failure {
        request: request(4),
        sku: shop.sku.no,
        buyer: buyer(4),
        quantity: 3,
        reason: Refusal::SoldOut,
        recorded_at_ms: NOW_MS,
    };
    shop.ledger.record_failures(vec![failure]).await.unwrap();
    shop.pass(WINDOW_MS);
    assert_eq!(shop.end_due(&[lapsed]).await.len(), 1);
    let sale = close(&*shop.ledger, "sale").await;
    read_events(&*shop.ledger).await;
    (shop, sale)
}

pub async fn an_archive_is_complete_and_the_same_at_every_page_size(backend: &dyn Backend) {
    let (shop, sale) = finished(backend).await;
    assert_eq!(shop.ledger.open_ends(&sale, READERS).await.unwrap(), []);
    let contents = shop.ledger.contents(&sale).await.unwrap();
    assert_eq!(contents.len(), ArchiveTable::ALL.len());
    for table in ArchiveTable::ALL {
        let all = rows(&*shop.ledger, &sale, table, 500).await;
        for limit in [1, 2] {
            assert_eq!(rows(&*shop.ledger, &sale, table, limit).await, all, "{}", table.name());
        }
        let TableContents { rows, sums, .. } = contents_of(&contents, table);
        assert_eq!(*rows, all.len() as u64, "{}", table.name());
        for (column, sum) in sums {
            let values = all.iter().map(|row| row[column].as_i64().unwrap_or(0));
            assert_eq!(*sum, values.sum::<i64>().to_string(), "{}.{column}", table.name());
        }
    }
    let expected = [
        (ArchiveTable::Sales, 1),
        (ArchiveTable::SalePhases, 2),
        (ArchiveTable::Skus, 1),
        (ArchiveTable::Orders, 3),
        (ArchiveTable::OrderEvents, 8),
        (ArchiveTable::Payments, 1),
        (ArchiveTable::PaymentEvents, 1),
        (ArchiveTable::FailedRequests, 1),
        (ArchiveTable::Bars, 1),
        (ArchiveTable::Quotas, 0),
    ];
    for (table, num) in expected {
        assert_eq!(contents_of(&contents, table).rows, num, "{}", table.name());
    }
    let orders = rows(&*shop.ledger, &sale, ArchiveTable::Orders, 500).await;
    assert_eq!((&orders[0]["buyer_id"], &orders[0]["amount"]), (&"1".into(), &500.into()));
    assert_eq!(orders[0]["trace_id"], "00000000000000010000000000000007");
    let events = rows(&*shop.ledger, &sale, ArchiveTable::OrderEvents, 500).await;
    let [.., last, refused] = &events[..] else { panic!("{events:?}") };
    assert_eq!(refused["version"], 0, "{refused:?}");
    assert!(events[0]["placed"].is_string() && last["placed"].is_null(), "{events:?}");
    assert_eq!((&last["actor"], &last["reason"]), (&"buyer".into(), &Json::Null));
    let reports = rows(&*shop.ledger, &sale, ArchiveTable::PaymentEvents, 500).await;
    assert_eq!(reports[0]["event_id"], "\"秒\"");
}

pub async fn the_sums_of_an_archive_show_a_payment(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 1).await;
    let sale = close(&*shop.ledger, "sale").await;
    let orders = async || {
        let contents = shop.ledger.contents(&sale).await.unwrap();
        contents_of(&contents, ArchiveTable::Orders).sums.clone()
    };
    let before = orders().await;
    shop.open_payment(key).await;
    assert_ne!(orders().await, before, "no unit and no amount has changed");
}

pub async fn the_sums_of_an_archive_may_exceed_64_bits(backend: &dyn Backend) {
    const NUM: u64 = 1_025;
    const AMOUNT: i64 = (1 << 53) - 1;
    let shop = Shop::with(backend, sku_draft("sku", ANY, 2_000)).await;
    let batch = (1..=NUM).map(|no| OrderIntent { amount: AMOUNT, ..intent(&shop.sku, no, no, 1) });
    for chunk in batch.collect::<Vec<_>>().chunks(500) {
        assert!(shop.ledger.place(chunk.to_vec()).await.unwrap().is_some());
    }
    let taken_out = StockChangeRequest {
        id: "damaged".to_owned(),
        sku: shop.sku.no,
        wanted: -3,
        withdrawn: 3,
        load: None,
        reason: None,
        operator: None,
        at_ms: NOW_MS,
    };
    shop.ledger.change_stock(taken_out).await.unwrap();
    let sale = sale(&*shop.ledger, "sale").await;
    let contents = shop.ledger.contents(&sale).await.unwrap();
    let sum = |table, column: &str| contents_of(&contents, table).sums[column].clone();
    let amount = i128::from(AMOUNT) * i128::from(NUM);
    assert_eq!(sum(ArchiveTable::Orders, "amount"), amount.to_string());
    assert_eq!(sum(ArchiveTable::StockChanges, "units"), "-3");
    assert_eq!(sum(ArchiveTable::Payments, "received"), "0");
}

pub async fn open_ends_of_a_sale_are_named(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 1).await;
    let sale = close(&*shop.ledger, "sale").await;
    let open = async || shop.ledger.open_ends(&sale, READERS).await.unwrap();
    assert_eq!(open().await, [(OpenEnd::Deadlines, 1), (OpenEnd::UnreadEvents, 1)]);
    read_events(&*shop.ledger).await;
    let (_, payment) = shop.open_payment(key).await;
    let paying = [(OpenEnd::Deadlines, 1), (OpenEnd::Payments, 1), (OpenEnd::UnreadEvents, 1)];
    assert_eq!(open().await, paying);
    shop.reported(&payment, "e1", paid(&payment)).await;
    assert_eq!(open().await, [(OpenEnd::UnreadEvents, 2)]);
    read_events(&*shop.ledger).await;
    assert_eq!(open().await, []);
    let refused = intent(&shop.sku, 2, 2, 1).failure(Refusal::SoldOut, NOW_MS);
    shop.ledger.record_failures(vec![refused]).await.unwrap();
    assert_eq!(open().await, [(OpenEnd::UnreadEvents, 1)]);
    read_events(&*shop.ledger).await;
    assert_eq!(open().await, []);
    let others: &'static [&'static str] = &["stock", "never-read"];
    let unread = shop.ledger.open_ends(&sale, others).await.unwrap();
    assert_eq!(unread, [(OpenEnd::UnreadEvents, 4)]);
}

pub async fn a_batch_of_two_sales_is_unread_in_both(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let other = open_offer(&*shop.ledger, "other", ANY, 10).await;
    let batch = [(&other, 1), (&shop.sku, 2), (&other, 3), (&shop.sku, 4)];
    let batch = batch.map(|(sku, no)| intent(sku, no, no, 1)).to_vec();
    assert!(shop.ledger.place(batch).await.unwrap().is_some());
    let open = async |id| {
        let sale = sale(&*shop.ledger, id).await;
        shop.ledger.open_ends(&sale, READERS).await.unwrap()
    };
    for id in ["sale", "other"] {
        assert_eq!(open(id).await, [(OpenEnd::Deadlines, 2), (OpenEnd::UnreadEvents, 1)], "{id}");
    }
    read_events(&*shop.ledger).await;
    for id in ["sale", "other"] {
        assert_eq!(open(id).await, [(OpenEnd::Deadlines, 2)], "{id}");
    }
}

pub async fn orders_of_a_sealed_sale_do_not_change(backend: &dyn Backend) {
    let draft = SkuDraft { payment_window_s: 0, ..sku_draft("sku", ONE, 10) };
    let shop = Shop::with(backend, draft).await;
    let key = shop.place(1, 1, 1).await;
    let (_, payment) = shop.open_payment(shop.place(2, 2, 1).await).await;
    assert_eq!(retain(&*shop.ledger, "sale", RetentionChange::Archive(DIGEST)).await, None);
    close(&*shop.ledger, "sale").await;
    let begin_purge = RetentionChange::BeginPurge(Vec::new());
    for refused in [RetentionChange::Seal(DIGEST), begin_purge] {
        assert_eq!(retain(&*shop.ledger, "sale", refused.clone()).await, None, "{refused:?}");
    }
    let archived = retain(&*shop.ledger, "sale", RetentionChange::Archive(DIGEST)).await.unwrap();
    assert_eq!(archived.retention.since_ms, Some(NOW_MS));
    let sealed = retain(&*shop.ledger, "sale", RetentionChange::Seal(DIGEST)).await.unwrap();
    assert_eq!(sealed.retention.state, RetentionState::Sealed);
    assert_eq!(sale(&*shop.ledger, "sale").await, sealed);

    let before = orders(&*shop.ledger, shop.sku.no).await;
    let terms =
        PaymentTerms { provider: "demo".to_owned(), paying_window_ms: 1, extension_max_ms: 1 };
    let opened = shop.ledger.open_payment(key, terms).await.unwrap();
    assert_eq!(opened, OpenPayment::UnknownOrder);
    let cancel = async || shop.ledger.cancel(key).await.unwrap();
    assert_eq!(cancel().await, CancelOutcome::UnknownOrder);
    let recorded = shop.ledger.record_payment(report(&payment, "e1", paid(&payment))).await;
    assert_eq!(recorded.unwrap(), PaymentRecorded::Recorded(PaymentOutcome::Unmatched, None));
    assert_eq!(orders(&*shop.ledger, shop.sku.no).await, before);
    assert_eq!(purge_rows(&*shop.ledger, &shop.sku).await, [0; 0], "nothing is deleted yet");
    assert_eq!(orders(&*shop.ledger, shop.sku.no).await, before);

    let kept = retain(&*shop.ledger, "sale", RetentionChange::Unseal).await.unwrap();
    assert_eq!(kept.retention, floodgate::domain::Retention::default());
    assert!(matches!(cancel().await, CancelOutcome::Cancelled(_)));
    let matched = shop.ledger.match_event("demo".to_owned(), "e1".to_owned()).await.unwrap();
    assert!(matches!(matched, Some(PaymentRecorded::Recorded(PaymentOutcome::Applied, _))));
}

pub async fn a_purge_deletes_every_row_and_keeps_the_name(backend: &dyn Backend) {
    let (shop, before) = finished(backend).await;
    let ledger = &*shop.ledger;
    // Three orders in two steps, then the failure and the bar.
    assert_eq!(purge(ledger, "sale").await, [2, 1, 1, 1]);
    let sale = sale(ledger, "sale").await;
    assert_eq!(sale.retention.state, RetentionState::Purged);
    assert_eq!((sale.retention.digest, sale.title), (Some(DIGEST), before.title.clone()));
    let recounted = ledger.recount(shop.sku.no, None, NOW_MS).await.unwrap();
    assert_eq!((recounted.outcome, shop.left().await), (RepairOutcome::FailedFinal, 0));
    let kept = [ArchiveTable::Sales, ArchiveTable::Skus, ArchiveTable::SalePhases];
    for TableContents { table, rows, .. } in ledger.contents(&before).await.unwrap() {
        assert_eq!(rows > 0, kept.contains(&table), "{}: {rows}", table.name());
    }
    assert_eq!(ledger.events_after(0, 9).await.unwrap(), []);
    // Its own event is deleted with a failure: it has a new one when it is recorded again.
    let failure = intent(&shop.sku, 4, 4, 3).failure(Refusal::SoldOut, NOW_MS);
    ledger.record_failures(vec![failure]).await.unwrap();
    assert_eq!(ledger.number_events(9).await.unwrap(), 1);
    // The contents are those of existing orders only.
    let report = ledger.match_event("demo".to_owned(), "e1".to_owned()).await.unwrap();
    assert_eq!(report, None, "the report of the payment is deleted");
    let verbs = ledger.verbs(Some("sale:sale".to_owned()), None, 9).await.unwrap();
    let verbs: Vec<_> = verbs.into_iter().map(|(_, one)| (one.verb, one.by)).collect();
    assert_eq!(verbs, ["purge", "archive"].map(|verb| (verb.to_owned(), olga())));
    let draft = sale_draft("sale", vec![sku_draft("sku", ONE, 10)]);
    assert_eq!(ledger.create_sale(draft, NOW_MS).await.unwrap(), None);
    assert!(ledger.begin_load(shop.sku.no).await.is_err(), "its buckets are not loaded again");
    // A late copy of an intent does not become an order.
    let late = intent(&shop.sku, 1, 1, 1);
    assert_eq!(ledger.place(vec![late]).await.unwrap(), None);
    let examined = ledger.examine(vec![late]).await.unwrap();
    assert_eq!(examined.outcome_of(&late), Some(PlaceOutcome::Refused(Refusal::SoldOut)));
    assert_eq!(retain(ledger, "sale", RetentionChange::Archive(DIGEST)).await, None);
    shop.holds().await;
}

pub async fn nothing_is_placed_or_refused_between_archive_and_purge(backend: &dyn Backend) {
    let draft = SkuDraft { payment_window_s: 0, ..sku_draft("sku", ANY, 10) };
    let shop = Shop::with(backend, draft).await;
    shop.place(1, 1, 2).await;
    let (ledger, late) = (&*shop.ledger, buyer(2));
    let sale = close(ledger, "sale").await;
    let failure = Failure {
        request: request(3),
        sku: shop.sku.no,
        buyer: late,
        quantity: 1,
        reason: Refusal::Ended,
        recorded_at_ms: NOW_MS,
    };
    for written in ["order", "failure"] {
        let archived = ledger.contents(&sale).await.unwrap();
        retain(ledger, "sale", RetentionChange::Archive(DIGEST)).await.unwrap();
        retain(ledger, "sale", RetentionChange::Seal(DIGEST)).await.unwrap();
        if written == "order" {
            shop.place(2, 2, 1).await;
        } else {
            ledger.record_failures(vec![failure]).await.unwrap();
        }
        let begin = RetentionChange::BeginPurge(archived);
        assert_eq!(retain(ledger, "sale", begin).await, None, "{written}");
        assert_eq!(shop.left().await, 7, "no unit was taken");
        let sealed = retain(ledger, "sale", RetentionChange::Seal(DIGEST)).await.unwrap();
        assert_eq!(sealed.retention.state, RetentionState::Sealed);
        retain(ledger, "sale", RetentionChange::Unseal).await.unwrap();
    }
    read_events(ledger).await;
    // Two orders in one step, then the failure.
    assert_eq!(purge(ledger, "sale").await, [2, 1]);
}

pub async fn a_purge_leaves_the_events_of_other_sales(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let ledger: &Arc<dyn Ledger> = &shop.ledger;
    let other = open_offer(&**ledger, "other", ANY, 10).await;
    // One transaction places orders of both sales.
    let both = vec![intent(&shop.sku, 1, 1, 1), intent(&other, 2, 2, 1), intent(&other, 3, 3, 1)];
    assert!(ledger.place(both).await.unwrap().is_some());
    shop.place(4, 4, 1).await;
    assert!(ledger.place(vec![intent(&other, 5, 5, 1)]).await.unwrap().is_some());
    let last = read_events(&**ledger).await;
    assert_eq!(last, 5);
    let feed = async |after| {
        let events = order_events(&**ledger, after, 1).await;
        events.first().map(|event| (event.feed_no, event.order.request.get()))
    };
    let mut of_other: Vec<(i64, u64)> = Vec::new();
    while let Some((feed_no, no)) = feed(of_other.last().map_or(0, |(feed_no, _)| *feed_no)).await {
        of_other.push((feed_no, no));
    }
    assert_eq!(of_other.len(), 5);
    of_other.retain(|(_, no)| [2, 3, 5].contains(no));

    close(&**ledger, "sale").await;
    purge(&**ledger, "sale").await;
    let mut found: Vec<(i64, u64)> = Vec::new();
    while let Some(event) = feed(found.last().map_or(0, |(feed_no, _)| *feed_no)).await {
        found.push(event);
    }
    assert_eq!(found, of_other, "a reader passes over the purged events");
    shop.holds().await;

    close(&**ledger, "other").await;
    purge(&**ledger, "other").await;
    assert_eq!(feed(0).await, None);
    let page = ledger.changes_after(0, 9).await.unwrap();
    assert_eq!((page.events, page.read_to), (vec![], last), "a cursor passes to the end");
    assert_eq!(ledger.last_feed_no().await.unwrap(), last);
    let third = open_offer(&**ledger, "third", ANY, 10).await;
    assert!(ledger.place(vec![intent(&third, 9, 9, 1)]).await.unwrap().is_some());
    read_events(&**ledger).await;
    assert_eq!(feed(0).await, Some((last + 1, 9)));
}
