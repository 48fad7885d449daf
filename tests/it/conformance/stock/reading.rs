//! What can be read of requests and units, and what a process knows without asking.

use floodgate::domain::{Phase, Refusal, RequestStatus, Reservation, Verdict};
use floodgate::stock::{LoaderToken, StoredRequest};

use super::{Backend, OPENING, Shop, ordered};
use crate::support::offers::{ANY, ONE, buyer, quota, request};

pub async fn a_request_is_shown_to_its_owner_only(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 10, 1).await;
    let ask = shop.ask(7, 1, 3);
    shop.take(&[ask]).await;
    let found = StoredRequest {
        quantity: 3,
        asked_at_ms: ask.asked_at_ms,
        standing: RequestStatus::Queued,
    };
    let read = |owner| shop.stock.standing(shop.key(0), ask.request, buyer(owner));
    assert_eq!(read(1).await.unwrap(), Some(found));
    assert_eq!(read(2).await.unwrap(), None);
    assert_eq!(shop.stock.find(shop.key(0), ask.request).await.unwrap(), Some(found));
    assert_eq!(shop.stock.find(shop.key(0), request(8)).await.unwrap(), None);
    assert_eq!(shop.stock.standing(shop.key(0), request(8), buyer(1)).await.unwrap(), None);
}

pub async fn many_standings_come_in_the_order_of_the_question(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY, 3_000, 4).await;
    let asks: Vec<_> = (1..=1_500).map(|no| shop.ask(no, no, 1)).collect();
    for bucket in 0..4 {
        let own: Vec<_> = asks.iter().filter(|ask| ask.bucket.0 == bucket).copied().collect();
        shop.decide(&own).await;
    }
    shop.settle(&asks[..500]).await;
    for ask in &asks[500..510] {
        shop.release(ask, Refusal::Ended).await;
    }
    let mut asked: Vec<_> = asks.iter().map(|ask| (ask.request, ask.buyer)).collect();
    asked.push((request(1), buyer(2)));
    asked.push((request(9_999), buyer(1)));
    asked.push(asked[0]);
    let standings = shop.stock.standings(shop.sku.no, asked).await.unwrap();
    assert_eq!(standings.len(), 1_503);
    assert!(asks[..500].iter().zip(&standings).all(|(ask, found)| *found == Some(ordered(ask))));
    let failed = Some(RequestStatus::Failed(Refusal::Ended));
    assert!(standings[500..510].iter().all(|found| *found == failed));
    assert!(standings[510..1_500].iter().all(|found| *found == Some(RequestStatus::Queued)));
    assert_eq!(standings[1_500..], [None, None, Some(ordered(&asks[0]))]);
}

/// Whether a process may say that it never heard of the request.
fn knows(shop: &Shop, ask: &Reservation) -> bool {
    shop.stock.may_know(shop.home(ask), ask.request)
}

pub async fn nobody_denies_a_request_it_could_know_of(backend: &dyn Backend) {
    let here = Shop::open(backend, ONE, 3, 2).await;
    let there = here.elsewhere(backend).await;
    for shop in [&here, &there] {
        shop.refresh().await;
    }
    let asks = (1..1_000).map(|no| here.ask(no, no, 1)).filter(|ask| ask.bucket.0 == 0);
    let asks: Vec<_> = asks.take(2).chain([last_of_bucket_1(&here)]).collect();
    for (at, ask) in asks.iter().enumerate() {
        here.take(&[*ask]).await;
        assert!(knows(&here, ask), "its own, at once");
        there.refresh().await;
        for known in &asks[..=at] {
            assert!(knows(&here, known) && knows(&there, known), "{known:?}");
        }
    }
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
        assert!(asks.iter().all(|ask| knows(shop, ask)));
        shop.settle(&asks[..1]).await;
        shop.refresh().await;
        assert!(asks.iter().all(|ask| knows(shop, ask)));
    }
    // A process that was just started knows nothing, and denies nothing.
    let late = here.elsewhere(backend).await;
    assert!(asks.iter().all(|ask| knows(&late, ask)));
    late.refresh().await;
    assert!(asks.iter().all(|ask| knows(&late, ask)));
    late.turn(Phase::Paused, OPENING).await;
    assert!(asks.iter().all(|ask| knows(&late, ask)));
}

fn last_of_bucket_1(shop: &Shop) -> Reservation {
    (1..1_000).map(|no| shop.ask(no, no, 1)).find(|ask| ask.bucket.0 == 1).unwrap()
}

pub async fn sold_out_is_known_and_forgotten_when_units_come_back(backend: &dyn Backend) {
    let here = Shop::open(backend, ANY, 4, 1).await;
    let there = here.elsewhere(backend).await;
    let [a, b] = [here.ask(1, 1, 3), here.ask(2, 2, 1)];
    here.take(&[a]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(!shop.is_sold_out());
        assert_eq!(shop.stock.left(shop.sku.no), 1);
    }
    there.take(&[b]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
        assert_eq!(shop.stock.left(shop.sku.no), 0);
    }
    here.release(&a, Refusal::Ended).await;
    assert!(!here.is_sold_out(), "at once where it happens");
    assert_eq!(here.stock.left(here.sku.no), 3);
    there.refresh().await;
    assert!(!there.is_sold_out(), "elsewhere at the next look");
    there.take(&[there.ask(3, 3, 3)]).await;
}

/// A unit comes back and is sold again between two looks of another process: that one sees no unit
/// at all, and must not tell the buyer that there was none.
pub async fn a_unit_that_was_sold_again_is_not_denied(backend: &dyn Backend) {
    let here = Shop::open(backend, ONE, 2, 1).await;
    let there = here.elsewhere(backend).await;
    let [a, b, c] = [here.ask(1, 1, 1), here.ask(2, 2, 1), here.ask(3, 3, 1)];
    here.take(&[a, b]).await;
    here.settle(&[a]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
    }
    here.release(&b, Refusal::AlreadyPurchased { first: a.request }).await;
    here.take(&[c]).await;
    there.refresh().await;
    assert!(knows(&there, &c));
    here.refresh().await;
    assert!([a, b, c].iter().all(|ask| knows(&here, ask) && knows(&there, ask)));
    // An order that was on its way to the ledger all the time comes without units.
    let late = here.ask(4, 4, 1);
    here.settle(&[late]).await;
    there.refresh().await;
    assert!(knows(&there, &late) && knows(&here, &late));
    assert!(there.is_sold_out());
}

/// The store loses a request, a load deals its unit out again, and somebody else buys it: as many
/// requests as before, no unit, and another process must not take them for the same.
pub async fn a_load_that_lost_a_request_ends_what_was_known(backend: &dyn Backend) {
    let here = Shop::open(backend, ONE, 2, 1).await;
    let there = here.elsewhere(backend).await;
    let [a, b, c] = [here.ask(1, 1, 1), here.ask(2, 2, 1), here.ask(3, 3, 1)];
    // Two changes, as there are after the load: its opening, and one that is accepted.
    here.take(&[a]).await;
    here.take(&[b]).await;
    for shop in [&here, &there] {
        shop.refresh().await;
        assert!(shop.is_sold_out());
    }
    here.settle(&[a, b]).await;
    here.load(LoaderToken(2), 1, vec![here.order(&a)], Vec::new()).await;
    here.take(&[c]).await;
    there.refresh().await;
    assert!(there.is_sold_out());
    assert!(knows(&there, &c) && knows(&there, &a));
    assert_eq!(there.reserve(b).await, Verdict::Short, "nobody has it");
}

pub async fn the_facts_are_the_sum_of_the_buckets(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(3), 40, 4).await;
    let asks: Vec<_> = (1..=20).map(|no| shop.ask(no, 1 + no % 10, 1)).collect();
    shop.take(&asks).await;
    shop.settle(&asks[..8]).await;
    shop.release(&asks[8], Refusal::SoldOut).await;
    shop.release(&asks[9], Refusal::Ended).await;
    shop.stock.lend(shop.key(0), floodgate::domain::BucketNo(1), 1).await.unwrap();

    let facts = shop.stock.facts(shop.sku.no).await.unwrap().unwrap();
    let mut sum = floodgate::domain::invariants::GateFacts::default();
    let mut failed = 0;
    for bucket in 0..4 {
        let counts = shop.counts(bucket).await;
        sum.left += u64::from(counts.available) + u64::from(counts.lent_units);
        sum.num_unsettled += counts.num_unsettled as u64;
        sum.num_ordered += counts.num_ordered as u64;
        sum.released_units += counts.released_units;
        sum.num_buyers = Some(sum.num_buyers.unwrap_or(0) + counts.num_buyers as u64);
        failed += counts.num_failed;
    }
    (sum.counts_units, sum.oldest_unsettled_ms) = (true, Some(asks[0].asked_at_ms));
    assert_eq!(facts, sum);
    assert_eq!((facts.left, facts.num_ordered, facts.num_unsettled, failed), (21, 8, 10, 2));
    assert_eq!((facts.released_units, facts.num_buyers), (1, Some(10)));
    shop.stock.note_left(shop.sku.no, 3);
    shop.refresh().await;
    assert_eq!(shop.stock.left(shop.sku.no), 21, "this stock counts by itself");
}

pub async fn the_store_answers(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE, 10, 3).await;
    shop.stock.ping().await.unwrap();
    let nowhere = shop.stock.snapshot(shop.key(3)).await;
    assert!(nowhere.is_err(), "there are three buckets: {nowhere:?}");
    let ask = Reservation { sku: floodgate::domain::SkuNo(99), ..shop.ask(1, 1, 1) };
    let key = floodgate::stock::BucketKey { sku: ask.sku, bucket: ask.bucket };
    assert!(shop.stock.reserve(key, vec![ask]).await.is_err());
    assert_eq!(shop.stock.facts(ask.sku).await.unwrap(), None);
    assert!(!shop.stock.is_sold_out(ask.sku));
    assert_eq!(shop.reserve(shop.ask(2, 2, 1)).await, Verdict::Reserved);
}
