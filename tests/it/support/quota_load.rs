//! Buyers with two purchases of one to three units each, under a quota that may refuse the second;
//! and the end of such a sale, where every unsold unit must be available.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use serde_json::{Value as Json, json};

use super::crowd::{Attempt, History, Purchase, issue_ids};
use super::gate::{retry_until, try_stage};
use super::wait::until;

/// Purchases of one buyer.
const PURCHASES: u64 = 2;
/// Base of the ids of the last buyers, who buy one unit each.
const LAST_BUYERS: u64 = 1_000_000_000;
/// Failed requests return units, which the next round of buyers buys.
const LAST_ROUNDS: u64 = 20;

/// Four units for each buyer, at most three at a time.
pub fn quota() -> Json {
    json!({"kind": "quota", "limit": 4, "max_quantity": 3})
}

/// Purchases of random quantities, with issued request ids.
pub async fn purchases(
    public: SocketAddr,
    buyers: Range<u64>,
    random: &mut Rng,
) -> Arc<Vec<Purchase>> {
    let buyers: Vec<u64> = (0..PURCHASES).flat_map(|_| buyers.clone()).collect();
    let ids = issue_ids(public, "sale", buyers.clone()).await;
    let purchase =
        |(buyer, id)| Purchase { buyer, request_id: Some(id), quantity: random.u32(1..=3) };
    Arc::new(buyers.into_iter().zip(ids).map(purchase).collect())
}

/// Every purchase `times` times in random order, so that repeats overlap with first attempts.
pub fn shuffled(purchases: &[Purchase], times: usize, random: &mut Rng) -> Arc<Vec<usize>> {
    let mut attempts: Vec<usize> = (0..times).flat_map(|_| 0..purchases.len()).collect();
    random.shuffle(&mut attempts);
    attempts.into()
}

/// Whether the purchase was accepted or permanently refused.
pub fn is_final(attempt: &Attempt) -> bool {
    attempt.is_promise() || attempt.status == Some(409)
}

/// Sells the remaining units one by one. Fails if a unit is left that no bucket sells.
pub async fn sell_rest(public: SocketAddr, internal: SocketAddr, history: &mut History) {
    for round in 0..LAST_ROUNDS {
        let left = until("every accepted request to be settled", async || {
            (try_stage(internal, "unsettled").await? == 0).then_some(())?;
            try_stage(internal, "left").await
        })
        .await;
        if left == 0 {
            return;
        }
        let first = LAST_BUYERS * (1 + round);
        let buyers: Vec<u64> = (first..first + left).collect();
        let ids = issue_ids(public, "sale", buyers.clone()).await;
        let purchase = |(buyer, id)| Purchase { buyer, request_id: Some(id), quantity: 1 };
        let purchases: Vec<Purchase> = buyers.into_iter().zip(ids).map(purchase).collect();
        history.absorb(retry_until(public, purchases.into(), 16, is_final).await);
    }
    panic!("units are left after {LAST_ROUNDS} rounds of buyers of one unit each");
}
