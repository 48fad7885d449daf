//! Crowds that buy one to three units each time, twice each, under a quota that not both purchases
//! always fit into; and the end of such a sale, at which every unit must be for sale.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use serde_json::{Value as Json, json};

use super::crowd::{Attempt, History, Wish, issue_ids};
use super::gate::{insist_until, try_stage};
use super::wait::until;

/// Purchases of one buyer.
const PURCHASES: u64 = 2;
/// Buyers who come last, each for one unit.
const LAST_BUYERS: u64 = 1_000_000_000;
/// Units come back as long as requests fail; each time somebody buys them.
const LAST_ROUNDS: u64 = 20;

/// Four units for each buyer, at most three at a time.
pub fn quota() -> Json {
    json!({"kind": "quota", "limit": 4, "max_quantity": 3})
}

/// The purchases of these buyers.
pub async fn wishes(public: SocketAddr, buyers: Range<u64>, random: &mut Rng) -> Arc<Vec<Wish>> {
    let buyers: Vec<u64> = (0..PURCHASES).flat_map(|_| buyers.clone()).collect();
    let ids = issue_ids(public, "sale", buyers.clone()).await;
    let wish = |(buyer, id)| Wish { buyer, request_id: Some(id), quantity: random.u32(1..=3) };
    Arc::new(buyers.into_iter().zip(ids).map(wish).collect())
}

/// Every purchase `times` times in random order: repeats arrive while the first is on its way.
pub fn shuffled(wishes: &[Wish], times: usize, random: &mut Rng) -> Arc<Vec<usize>> {
    let mut attempts: Vec<usize> = (0..times).flat_map(|_| 0..wishes.len()).collect();
    random.shuffle(&mut attempts);
    attempts.into()
}

/// Accepted, or refused for good.
pub fn is_final(attempt: &Attempt) -> bool {
    attempt.is_promise() || attempt.status == Some(409)
}

/// Sells the units that are left, one by one: a unit that is on no shelf shows here.
pub async fn sell_rest(public: SocketAddr, internal: SocketAddr, history: &mut History) {
    for round in 0..LAST_ROUNDS {
        let left = until("everything to be decided", async || {
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
        let wish = |(buyer, id)| Wish { buyer, request_id: Some(id), quantity: 1 };
        let wishes: Vec<Wish> = buyers.into_iter().zip(ids).map(wish).collect();
        history.absorb(insist_until(public, wishes.into(), 16, is_final).await);
    }
    panic!("units are left after {LAST_ROUNDS} rounds of buyers, each of whom wanted one");
}
