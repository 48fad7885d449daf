//! The same request many times at once, with answers cut on the way from Redis and on the way to
//! the buyer: C02.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use floodgate::redis::scripts::Script;
use serde_json::{Value as Json, json};

use crate::support::TestApp;
use crate::support::crowd::{History, Wish, send};
use crate::support::fault_proxy::{FaultProxy, Way};
use crate::support::gate::{GateGround, assert_holds_at_rest, insist};

const BUYERS: u64 = 150;
const STOCK: u32 = 200;
/// So many connections to Redis are cut at least.
const CUTS: usize = 10;
const SEED: u64 = 20_261_002;

async fn wishes_of(app: &TestApp, policy: &Json) -> Arc<Vec<Wish>> {
    let mut wishes = Vec::new();
    for buyer in 1..=BUYERS {
        let derived = policy["kind"] == "one_per_buyer";
        let request_id = if derived { None } else { Some(app.request_id("sale", buyer).await) };
        wishes.push(Wish { buyer, request_id, quantity: 1 });
    }
    wishes.into()
}

/// Each wish 2 to 10 times, neighbours close together.
fn attempts(random: &mut fastrand::Rng, wishes: usize) -> Vec<usize> {
    let mut attempts: Vec<(usize, usize)> = Vec::new();
    for wish in 0..wishes {
        for _ in 0..random.usize(2..=10) {
            attempts.push((wish + random.usize(0..8), wish));
        }
    }
    attempts.sort_unstable();
    attempts.into_iter().map(|(_, wish)| wish).collect()
}

/// Sets one trap after the other until the storm is over; a trap that did not close in one round of
/// it is replaced in the next.
async fn cut(
    ground: &GateGround,
    http: &FaultProxy,
    rounds: &Cell<u32>,
    storm: impl Future<Output = History>,
) -> History {
    let (reserve, settle) = (ground.sha_of(Script::Reserve), ground.sha_of(Script::Settle));
    let mut random = fastrand::Rng::with_seed(SEED);
    let seen = || (ground.proxy.cuts(), http.cuts(), rounds.get());
    let cutting = async {
        loop {
            match random.u8(0..6) {
                // The server has run the script; its answer never arrives.
                0..3 => ground.proxy.cut_reply(&reserve),
                3 => ground.proxy.cut_reply(&settle),
                4 => ground.proxy.cut_after(Way::ToClient, random.usize(1..200)),
                _ => http.cut_after(Way::ToClient, random.usize(1..2_000)),
            }
            let before = seen();
            while seen() == before {
                tokio::task::yield_now().await;
            }
        }
    };
    tokio::select! {
        history = storm => history,
        never = cutting => never,
    }
}

fn storm(policy: Json) {
    let ground = GateGround::new();
    let app = ground.app(&[]);
    let http = FaultProxy::start(app.public);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (wishes, history) = runtime.block_on(async {
        app.open_sale("sale", policy.clone(), STOCK, 4).await;
        let wishes = wishes_of(&app, &policy).await;
        let attempts = attempts(&mut fastrand::Rng::with_seed(SEED), wishes.len());
        let attempts: Arc<Vec<usize>> = attempts.into();
        let rounds = Cell::new(0);
        let storm = async {
            let mut history = History::default();
            // A quick machine is through before the traps are set: it storms again.
            while ground.proxy.cuts() < CUTS || http.cuts() < 2 {
                let (wishes, attempts) = (wishes.clone(), attempts.clone());
                let sent = send(http.addr(), "sale", wishes, attempts, 24).await;
                history.absorb(sent);
                rounds.set(rounds.get() + 1);
            }
            history
        };
        let mut history = cut(&ground, &http, &rounds, storm).await;
        ground.proxy.heal();
        http.heal();
        history.absorb(insist(app.public, wishes.clone(), 16).await);
        (wishes, history)
    });
    assert_each_heard_of_its_own(&history, &wishes);
    runtime.block_on(async {
        let verdict = ground.judge(app.internal, &history, STOCK.into()).await;
        assert_eq!(verdict.ok, wishes.len(), "one order for each request");
        other_content_is_refused(&app, &wishes, &history).await;
    });
}

/// Successes name the wish's own request; nobody is refused because of it.
fn assert_each_heard_of_its_own(history: &History, wishes: &[Wish]) {
    let mut ids: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for heard in &history.heard {
        assert!(matches!(heard.status, None | Some(200 | 202 | 503)), "{heard:?}");
        ids.entry(heard.wish).or_default().extend(heard.request_id.as_deref());
        if let Some(own) = wishes[heard.wish].request_id.as_deref() {
            assert!(heard.request_id.as_deref().is_none_or(|id| id == own), "{heard:?}");
        }
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    let successes = history.promised_by_wish();
    assert_eq!(successes.len(), wishes.len());
}

async fn other_content_is_refused(app: &TestApp, wishes: &[Wish], history: &History) {
    let successes = history.promised_by_wish();
    for (at, wish) in wishes.iter().enumerate().take(10) {
        let id = successes[&at].first().unwrap();
        let body = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
        let (status, told) = app.buy_json("sale", wish.buyer, body).await;
        assert_eq!((status.as_u16(), &told["code"]), (422, &json!("request-id-reused")));
    }
    assert_holds_at_rest(app.internal).await;
}

#[test]
fn a_storm_of_repeats_with_cut_answers_is_one_order_for_each_request() {
    storm(json!({"kind": "unlimited", "max_quantity": 2}));
}

#[test]
fn a_storm_of_one_per_buyer_never_hears_of_a_purchase_that_is_its_own() {
    storm(json!({"kind": "one_per_buyer", "max_quantity": 2}));
}

#[test]
fn a_storm_under_a_quota_counts_each_request_once() {
    storm(json!({"kind": "quota", "limit": 2, "max_quantity": 2}));
}
