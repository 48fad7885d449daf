//! Sales and their phases.

use std::sync::Arc;

use floodgate::db::{ErrorClass, Ledger};
use floodgate::domain::{Epoch, Phase};

use super::Backend;
use crate::support::offers::{ANY, ONE, offer, quota, sale_draft, sku_draft};

pub async fn a_sale_reads_back_as_it_was_described(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let mut draft = sale_draft(
        "autumn-2026.11_21",
        vec![sku_draft("one", ONE, 1), sku_draft("any", ANY, 1_000_000_000), {
            let mut sku = sku_draft("quota", quota(5), 77);
            sku.bar_lapsed = false;
            sku.price = 1_000_000_000_000;
            sku
        }],
    );
    // Each character has four bytes.
    draft.title = "🍵".repeat(200);

    let sale = ledger.create_sale(draft.clone(), 5).await.unwrap().unwrap();

    assert_eq!((sale.id.as_str(), sale.title.as_str()), (draft.id.as_str(), draft.title.as_str()));
    assert_eq!((sale.starts_at_ms, sale.ends_at_ms), (draft.starts_at_ms, draft.ends_at_ms));
    assert_eq!((sale.phase, sale.epoch), (Phase::Draft, Epoch(0)));
    assert!(sale.is_new(&draft), "{sale:?}");
    assert_eq!(sale.skus.len(), draft.skus.len());
    for (sku, draft_sku) in sale.skus.iter().zip(&draft.skus) {
        assert_eq!((&sku.id, &sku.title), (&draft_sku.id, &draft_sku.title));
        assert_eq!((sku.price, sku.initial), (draft_sku.price, draft_sku.initial));
        assert_eq!((sku.policy, sku.buckets), (draft_sku.policy, draft_sku.buckets));
        assert_eq!(sku.payment_window_s, draft_sku.payment_window_s);
        assert_eq!(sku.bar_lapsed, draft_sku.bar_lapsed);
        assert_eq!(ledger.available(sku.no).await.unwrap(), draft_sku.initial);
    }
    assert_eq!(ledger.sales().await.unwrap(), [sale]);
}

pub async fn a_name_is_taken_once(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let first = offer(&*ledger, "first", ONE, 1).await;
    let draft = sale_draft("first", vec![sku_draft("other", ANY, 9)]);
    assert_eq!(ledger.create_sale(draft, 2).await.unwrap(), None);
    let second = offer(&*ledger, "second", ONE, 1).await;

    let sales = ledger.sales().await.unwrap();
    let names: Vec<_> = sales.iter().map(|sale| sale.id.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!(sales[0].skus, [Arc::new(first)]);
    assert_eq!(sales[1].skus, [Arc::new(second)]);
}

pub async fn a_draft_that_does_not_fit_is_not_stored(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let draft = sale_draft("sale", vec![sku_draft("sku", ONE, 0)]);
    let error = ledger.create_sale(draft, 1).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Bug);
    assert!(error.to_string().contains("initial_stock"), "{error}");
    assert_eq!(ledger.sales().await.unwrap(), []);
}

pub async fn an_opening_takes_the_next_epoch(backend: &dyn Backend) {
    let ledger = backend.open().await;
    offer(&*ledger, "sale", ONE, 1).await;
    let mut seen = Vec::new();
    for (next, now_ms) in [
        (Phase::Open, 10),
        (Phase::Open, 20), // Setting the same phase again has no effect.
        (Phase::Paused, 30),
        (Phase::Open, 40),
        (Phase::Closed, 50),
        (Phase::Closed, 60),
    ] {
        let sale = set_phase(&*ledger, next, now_ms).await.unwrap();
        assert_eq!(sale.phase, next);
        seen.push(sale.epoch.0);
        let closed = (next == Phase::Closed).then_some(50);
        assert_eq!(sale.closed_at_ms, closed, "at {now_ms}");
        assert_eq!(ledger.sales().await.unwrap(), [sale]);
    }
    assert_eq!(seen, [1, 1, 1, 2, 2, 2]);
}

pub async fn a_move_that_is_not_allowed_changes_nothing(backend: &dyn Backend) {
    let ledger = backend.open().await;
    offer(&*ledger, "sale", ONE, 1).await;
    assert!(set_phase(&*ledger, Phase::Paused, 1).await.is_none());
    set_phase(&*ledger, Phase::Closed, 2).await.unwrap();
    let before = ledger.sales().await.unwrap();
    for next in [Phase::Draft, Phase::Open, Phase::Paused] {
        assert!(set_phase(&*ledger, next, 3).await.is_none());
    }
    let unknown_sale = ledger
        .set_sale_phase("nobody".parse().unwrap(), Epoch(0), Phase::Open, 4, None)
        .await
        .unwrap();
    assert_eq!(unknown_sale, None);
    assert_eq!(ledger.sales().await.unwrap(), before);
}

pub async fn sales_survive_a_restart(backend: &dyn Backend) {
    let ledger = backend.open().await;
    offer(&*ledger, "sale", quota(3), 8).await;
    set_phase(&*ledger, Phase::Open, 2).await.unwrap();
    let before = ledger.sales().await.unwrap();
    ledger.close().await;

    let ledger = backend.open().await;
    assert_eq!(ledger.sales().await.unwrap(), before);
    let next = offer(&*ledger, "next", ONE, 1).await;
    assert!(next.no > before[0].skus[0].no, "a SKU number is never reused");
}

/// Two processes change the phase of one sale. A change that names an outdated epoch is rejected,
/// because another process may already have sold under the next epoch.
pub async fn an_opening_follows_the_one_that_was_seen(backend: &dyn Backend) {
    let ledger = backend.open().await;
    offer(&*ledger, "sale", ONE, 1).await;
    let set_phase =
        |seen, next| ledger.set_sale_phase("sale".parse().unwrap(), Epoch(seen), next, 1, None);
    for (seen, next) in [(0, Phase::Open), (1, Phase::Paused), (1, Phase::Open), (2, Phase::Paused)]
    {
        assert!(set_phase(seen, next).await.unwrap().is_some(), "{seen} {next:?}");
    }
    let before = ledger.sales().await.unwrap();
    for stale in [Phase::Open, Phase::Closed] {
        assert_eq!(set_phase(1, stale).await.unwrap(), None);
    }
    assert_eq!(ledger.sales().await.unwrap(), before);
    assert_eq!(set_phase(2, Phase::Open).await.unwrap().unwrap().epoch, Epoch(3));
}

/// A ledger that was restored from a backup continues above the buckets.
pub async fn a_sale_is_paused_above_a_later_epoch(backend: &dyn Backend) {
    let ledger = backend.open().await;
    offer(&*ledger, "sale", ONE, 1).await;
    let pause_above =
        |epoch, above| ledger.pause_above("sale".parse().unwrap(), Epoch(epoch), Epoch(above));
    for (epoch, above, raised) in [(0, 0, 1), (1, 8, 9), (9, 3, 9)] {
        let sale = pause_above(epoch, above).await.unwrap().unwrap();
        assert_eq!((sale.phase, sale.epoch), (Phase::Paused, Epoch(raised)));
        assert_eq!(ledger.sales().await.unwrap(), [sale]);
    }
    assert_eq!(pause_above(1, 20).await.unwrap(), None, "another epoch");
    let unknown = ledger.pause_above("nobody".parse().unwrap(), Epoch(0), Epoch(1)).await;
    assert_eq!(unknown.unwrap(), None);
    assert_eq!(set_phase(&*ledger, Phase::Open, 2).await.unwrap().epoch, Epoch(10));
    set_phase(&*ledger, Phase::Closed, 3).await.unwrap();
    assert_eq!(pause_above(10, 20).await.unwrap(), None, "closed");
}

async fn set_phase(
    ledger: &dyn Ledger,
    next: Phase,
    now_ms: i64,
) -> Option<floodgate::domain::Sale> {
    let seen = ledger.sales().await.unwrap()[0].epoch;
    ledger.set_sale_phase("sale".parse().unwrap(), seen, next, now_ms, None).await.unwrap()
}
