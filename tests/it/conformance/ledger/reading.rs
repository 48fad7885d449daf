//! Scans, pages, failures and the rows of an audit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use floodgate::db::{AuditRow, Ledger, LedgerSize, OrderCursor};
use floodgate::domain::{
    Epoch, Failure, OrderIntent, OrderKey, OrderTimeline, Phase, PhaseChange, PhaseHistory,
    PlaceOutcome, Refusal, Sku, SkuNo, TraceId,
};

use futures_util::future::join_all;
use tokio::sync::mpsc;

use super::{Backend, NOW_MS};
use crate::support::offers::{
    ANY, ONE, buyer, evidence, failures, intent, offer, orders, quota, request,
};

async fn place(ledger: &dyn Ledger, batch: Vec<OrderIntent>) {
    assert!(ledger.place(batch).await.unwrap().is_some());
}

fn failure(sku: &Sku, number: u64, reason: Refusal) -> Failure {
    Failure {
        request: request(number),
        sku: sku.no,
        buyer: buyer(number),
        quantity: 3,
        reason,
        recorded_at_ms: 1_800_000_000_000,
    }
}

pub async fn a_scan_is_sorted_and_may_end_early(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let before = offer(&*ledger, "before", ANY, 100).await;
    let sku = offer(&*ledger, "sale", ANY, 100).await;
    let after = offer(&*ledger, "after", ANY, 100).await;
    place(&*ledger, vec![intent(&before, 1, 9, 1), intent(&after, 2, 1, 1)]).await;
    let requests = [(9, 5), (3, 7), (8, 5), (4, 7), (7, 1)];
    for (request, buyer) in requests {
        place(&*ledger, vec![intent(&sku, request, buyer, 1)]).await;
    }

    let found = orders(&*ledger, sku.no).await;
    let keys: Vec<_> = found.iter().map(|o| (o.buyer.get(), o.request.get())).collect();
    assert_eq!(keys, [(1, 7), (5, 8), (5, 9), (7, 3), (7, 4)]);

    let visited = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&visited);
    let visit = Box::new(move |_| count.fetch_add(1, Ordering::SeqCst) < 2);
    ledger.scan_orders(sku.no, visit).await.unwrap();
    assert_eq!(visited.load(Ordering::SeqCst), 3);
    assert_eq!(orders(&*ledger, SkuNo(999)).await, []);
}

/// A scan excludes concurrent writes, even if it reads several pages.
pub async fn a_scan_sees_one_instant(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 10_000).await;
    let batch = |from: u64| (from..from + 500).map(|n| intent(&sku, n, n, 1)).collect();
    for from in 0..9 {
        place(&*ledger, batch(1_000 * from + 1)).await;
    }
    for is_audit in [false, true] {
        let (started, scan_started) = tokio::sync::oneshot::channel();
        let (resume_scan, resume) = std::sync::mpsc::channel::<()>();
        let mut started = Some(started);
        let visited = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&visited);
        let mut visit = move || {
            // Block on the first row until another order has been committed.
            if let Some(started) = started.take() {
                started.send(()).unwrap();
                resume.recv().unwrap();
            }
            count.fetch_add(1, Ordering::SeqCst);
            true
        };
        let before = orders(&*ledger, sku.no).await.len();
        let scan = async {
            if is_audit {
                ledger.scan_audit(sku.no, Box::new(move |_| visit())).await.unwrap();
            } else {
                ledger.scan_orders(sku.no, Box::new(move |_| visit())).await.unwrap();
            }
        };
        let write = async {
            scan_started.await.unwrap();
            place(&*ledger, batch(20_001 + 1_000 * u64::from(is_audit))).await;
            resume_scan.send(()).unwrap();
        };
        tokio::join!(scan, write);
        assert_eq!(visited.load(Ordering::SeqCst), before + usize::from(is_audit), "{is_audit}");
        assert_eq!(orders(&*ledger, sku.no).await.len(), before + 500);
    }
}

/// Of three readers; a scan whose caller has gone occupies its reader until it ends.
pub async fn scans_leave_a_reader_for_other_reads(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ONE, 100).await;
    place(&*ledger, vec![intent(&sku, 1, 1, 1)]).await;
    let (begin, mut begun) = mpsc::unbounded_channel();
    let mut resumes = Vec::new();
    let mut scan = || {
        let (resume, resumed) = std::sync::mpsc::channel::<()>();
        let begin = begin.clone();
        resumes.push(resume);
        let wait = move |_| {
            begin.send(()).ok();
            // Until the sender is dropped.
            resumed.recv().ok();
            true
        };
        ledger.scan_orders(sku.no, Box::new(wait))
    };
    for abandoned in [scan(), scan()] {
        tokio::select! {
            ended = abandoned => panic!("{ended:?}"),
            _ = begun.recv() => {}
        }
    }
    let scans = join_all((0..5).map(|_| scan()));
    let (ledger, sku) = (&ledger, &sku);
    let reads = async move {
        let left = ledger.available(sku.no).await;
        let examined = ledger.examine(vec![intent(sku, 1, 1, 1)]).await;
        drop(resumes);
        assert_eq!((left.unwrap(), examined.unwrap().orders.len()), (99, 1));
    };
    let (scanned, ()) = tokio::join!(scans, reads);
    assert!(scanned.into_iter().all(|scan| scan.is_ok()));
}

pub async fn an_order_is_found_by_its_request_and_by_its_key(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ONE, 100).await;
    let placed = intent(&sku, 123_456_789_012_345_678, 4, 2);
    place(&*ledger, vec![placed]).await;
    assert_eq!(
        ledger.order_timeline(placed.request).await.unwrap().map(|it| it.order),
        Some(placed.order(NOW_MS))
    );
    assert_eq!(ledger.order_timeline(request(1)).await.unwrap().map(|it| it.order), None);
    let key = OrderKey { sku: sku.no, buyer: placed.buyer, request: placed.request };
    assert_eq!(ledger.order(key).await.unwrap(), Some(placed.order(NOW_MS)));
    for other in [
        OrderKey { request: request(1), ..key },
        OrderKey { buyer: buyer(5), ..key },
        OrderKey { sku: SkuNo(99), ..key },
    ] {
        assert_eq!(ledger.order(other).await.unwrap(), None, "{other:?}");
    }
    assert_eq!(ledger.failure(placed.request).await.unwrap(), None);
    ledger.ping().await.unwrap();
}

/// A repeat with another trace and publish time does not change the stored timeline.
pub async fn the_timeline_of_an_order_is_stored(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 100).await;
    let direct = intent(&sku, 1, 4, 2);
    let published_at_ms = Some(NOW_MS - 7);
    let published = |number| OrderIntent { published_at_ms, ..intent(&sku, number, 4, 1) };
    // More rows than one statement writes.
    let mut batch: Vec<_> = (2..40).map(published).collect();
    batch.push(direct);
    place(&*ledger, batch.clone()).await;

    let again = OrderIntent { published_at_ms: Some(NOW_MS), trace: TraceId(5), ..published(2) };
    assert!(ledger.place(vec![again]).await.unwrap().is_none());
    let seen = ledger.examine(vec![again]).await.unwrap().admit(&again);
    assert_eq!(seen, Some(PlaceOutcome::Repeat(published(2).order(NOW_MS))));

    for placed in batch {
        let expected = OrderTimeline {
            order: placed.order(NOW_MS),
            trace: placed.trace,
            published_at_ms: placed.published_at_ms,
            recorded_at_ms: NOW_MS,
        };
        assert_eq!(ledger.order_timeline(placed.request).await.unwrap(), Some(expected));
    }
    assert_eq!(ledger.order_timeline(request(99)).await.unwrap(), None);
}

pub async fn a_buyers_orders_come_newest_first_in_pages(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let skus = [
        offer(&*ledger, "a", ANY, 100).await,
        offer(&*ledger, "b", ONE, 100).await,
        offer(&*ledger, "c", quota(9), 100).await,
    ];
    // Requests 2..=5 share a timestamp. SKU b allows one order per buyer.
    let mut batch = Vec::new();
    let plan = [(1, 0, 10), (2, 2, 50), (3, 0, 50), (4, 1, 50), (5, 2, 50), (6, 0, 60), (7, 2, 70)];
    for (number, sku, placed_at_ms) in plan {
        batch.push(OrderIntent { placed_at_ms, ..intent(&skus[sku], number, 77, 1) });
    }
    batch.push(intent(&skus[0], 99, 78, 1));
    place(&*ledger, batch).await;

    for limit in [1, 2, 3, 100] {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = ledger.orders_of(buyer(77), cursor, limit).await.unwrap();
            let Some(last) = page.last() else { break };
            assert!(page.len() <= limit as usize);
            cursor = Some(OrderCursor { placed_at_ms: last.placed_at_ms, request: last.request });
            found.extend(page.iter().map(|order| order.request.get()));
        }
        assert_eq!(found, [7, 6, 5, 4, 3, 2, 1], "pages of {limit}");
    }
    assert_eq!(ledger.orders_of(buyer(5), None, 10).await.unwrap(), []);
    assert_eq!(ledger.orders_of(buyer(77), None, 0).await.unwrap(), []);
}

fn reasons() -> [Refusal; 9] {
    [
        Refusal::SoldOut,
        Refusal::AlreadyPurchased { first: request(1) },
        Refusal::QuotaExceeded { owned: 4, limit: 5 },
        Refusal::RequestIdReused,
        Refusal::NotStarted,
        Refusal::Ended,
        Refusal::Discarded,
        Refusal::CancelledByBuyer,
        Refusal::QueueTimeout,
    ]
}

pub async fn every_reason_reads_back(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 100).await;
    let other = offer(&*ledger, "other", ANY, 100).await;
    let codes = [
        "sold-out",
        "already-purchased",
        "quota-exceeded",
        "request-id-reused",
        "not-started",
        "ended",
        "discarded",
        "cancelled-by-buyer",
        "queue-timeout",
    ];
    assert_eq!(reasons().map(|reason| reason.code()), codes);
    let recorded: Vec<_> =
        (10..).zip(reasons()).map(|(n, reason)| failure(&sku, n, reason)).collect();
    ledger.record_failures(recorded.clone()).await.unwrap();
    ledger.record_failures(vec![failure(&other, 90, Refusal::Ended)]).await.unwrap();
    ledger.record_failures(Vec::new()).await.unwrap();

    assert_eq!(failures(&*ledger, sku.no).await, recorded);
    for failure in &recorded {
        assert_eq!(ledger.failure(failure.request).await.unwrap(), Some(*failure));
    }
    let intents =
        recorded.iter().map(|f| intent(&sku, f.request.get(), f.buyer.get(), 3)).collect();
    let seen = ledger.examine(intents).await.unwrap();
    assert_eq!(seen.failures, recorded.iter().map(|f| (f.request, f.reason)).collect());

    let visited = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&visited);
    let visit = Box::new(move |_| count.fetch_add(1, Ordering::SeqCst) < 2);
    ledger.scan_failures(sku.no, visit).await.unwrap();
    assert_eq!(visited.load(Ordering::SeqCst), 3);
}

pub async fn the_first_record_of_a_failure_stays(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 100).await;
    let first = failure(&sku, 10, Refusal::SoldOut);
    let fresh = failure(&sku, 11, Refusal::Ended);
    ledger.record_failures(vec![first]).await.unwrap();
    let again = Failure { reason: Refusal::Ended, quantity: 1, recorded_at_ms: 0, ..first };
    let recorded = ledger.record_failures(vec![again, fresh, again]).await.unwrap();
    let kept = [(first.request, Refusal::SoldOut), (fresh.request, Refusal::Ended)];
    assert_eq!(recorded, HashMap::from(kept));
    assert_eq!(failures(&*ledger, sku.no).await, [first, fresh]);
}

pub async fn an_order_is_never_recorded_as_a_failure(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 100).await;
    let one = offer(&*ledger, "one", ONE, 100).await;
    place(&*ledger, vec![intent(&sku, 10, 1, 1), intent(&one, 20, 20, 1)]).await;
    // Another buyer reuses the request id.
    let reused = failure(&sku, 10, Refusal::RequestIdReused);
    let other = failure(&sku, 11, Refusal::SoldOut);
    // The same buyer changes the quantity: under one_per_buyer the request id is the same.
    let again = failure(&one, 20, Refusal::RequestIdReused);
    let recorded = ledger.record_failures(vec![reused, other, again]).await.unwrap();
    assert_eq!(recorded, HashMap::from([(other.request, Refusal::SoldOut)]));
    assert_eq!(failures(&*ledger, sku.no).await, [other]);
    assert_eq!(failures(&*ledger, one.no).await, []);
    assert_eq!(ledger.anomalies(sku.no).await.unwrap(), []);
}

pub async fn the_evidence_begins_with_the_facts(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", quota(7), 100).await;
    let set = async |phase, epoch, now_ms| {
        let sale = "sale".parse().unwrap();
        ledger.set_sale_phase(sale, Epoch(epoch), phase, now_ms, None).await.unwrap().unwrap()
    };
    let opened = set(Phase::Open, 0, 321).await;
    for now_ms in [400, 500] {
        ledger.phase_applied(&opened, now_ms).await.unwrap();
    }
    set(Phase::Paused, 1, 600).await;
    let sale = "sale".parse().unwrap();
    ledger.pause_above(sale, Epoch(1), Epoch(0)).await.unwrap().expect("paused already");
    place(&*ledger, vec![intent(&sku, 1, 2, 5), intent(&sku, 2, 1, 7)]).await;
    let recorded = (10..).zip(reasons()).map(|(n, reason)| failure(&sku, n, reason)).collect();
    ledger.record_failures(recorded).await.unwrap();

    let rows = evidence(&*ledger, sku.no).await;
    let [AuditRow::Sku(facts), AuditRow::Order(first), AuditRow::Order(second)] = &rows[..] else {
        panic!("{rows:?}")
    };
    assert_eq!((facts.sku, facts.initial, facts.available), (sku.no, 100, 88));
    assert_eq!((facts.policy, facts.price), (sku.policy, sku.price));
    assert_eq!((facts.starts_at_ms, facts.ends_at_ms), (1_000, 4_000_000_000_000));
    let change = |phase, changed_at_ms, applied_at_ms| PhaseChange {
        epoch: Epoch(1),
        phase,
        changed_at_ms,
        applied_at_ms,
    };
    let expected = vec![change(Phase::Open, 321, Some(400)), change(Phase::Paused, 600, None)];
    assert_eq!(facts.phases, PhaseHistory::new(expected));
    // Nine failures of three units each. The sold-out one gives back none: the ledger has none.
    assert_eq!(facts.given_back_units, 24);
    assert_eq!((first.request, second.request), (request(2), request(1)));

    let visited = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&visited);
    let visit = Box::new(move |_| count.fetch_add(1, Ordering::SeqCst) < 1);
    ledger.scan_audit(sku.no, visit).await.unwrap();
    assert_eq!(visited.load(Ordering::SeqCst), 2);
    assert!(evidence(&*ledger, SkuNo(999)).await.is_empty());
}

pub async fn a_healthy_ledger_has_no_anomalies(backend: &dyn Backend) {
    let ledger = backend.open().await;
    for (id, policy) in [("one", ONE), ("any", ANY), ("quota", quota(4))] {
        let sku = offer(&*ledger, id, policy, 100).await;
        let base = u64::try_from(sku.no.0).unwrap() * 100;
        let mut batch: Vec<_> = (1..=20).map(|n| intent(&sku, base + n, n, 2)).collect();
        if policy != ONE {
            batch.push(intent(&sku, base + 50, 1, 1));
        }
        place(&*ledger, batch).await;
        ledger.record_failures(vec![failure(&sku, base + 90, Refusal::Ended)]).await.unwrap();
        assert_eq!(ledger.anomalies(sku.no).await.unwrap(), []);
    }
    assert_eq!(ledger.anomalies_across_skus().await.unwrap(), []);
}

pub async fn the_counts_are_those_of_one_sku(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ANY, 100).await;
    let other = offer(&*ledger, "other", ANY, 100).await;
    let fresh = LedgerSize { available: 100, ..LedgerSize::default() };
    assert_eq!(ledger.ledger_size(sku.no).await.unwrap(), fresh);
    ledger.set_sale_phase("sale".parse().unwrap(), Epoch(0), Phase::Open, 1, None).await.unwrap();
    place(&*ledger, vec![intent(&sku, 1, 1, 5), intent(&sku, 2, 2, 5), intent(&other, 3, 1, 1)])
        .await;
    ledger.record_failures(vec![failure(&sku, 4, Refusal::Ended)]).await.unwrap();
    let expected = LedgerSize { num_orders: 2, num_failures: 1, available: 90 };
    assert_eq!(ledger.ledger_size(sku.no).await.unwrap(), expected);
    assert_eq!(ledger.ledger_size(SkuNo(999)).await.unwrap(), LedgerSize::default());
}
