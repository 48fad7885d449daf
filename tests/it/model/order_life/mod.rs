//! The life of orders compared with a model: random purchases, payments, reports (repeated and out
//! of order), refunds, cancellations and steps of the clock leave the states that the model says,
//! account for all money, and return each unit at most once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Ledger, OrderChanges, Refunds, Retakes, SaleStore};
use floodgate::domain::payment::record;
use floodgate::domain::{
    AttemptKey, Money, Order, OrderKey, OrderState, Payment, PaymentState, RefundResult, RetakeEnd,
    Sku, SkuDraft, SkuHistory, SlotReturns, lifecycle,
};
use floodgate::runtime::clock::ManualClock;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::test_runner::{Config, TestRunner};

use self::model::{
    EXTENSION_MS, Kind, Model, PAYING_MS, Plan, START_MS, STOCK, WINDOW_MS, ended, said,
};
use self::play::{Play, Step};
use crate::support::offers::{ANY, ONE, intent, order_events, quota, run, sale_draft, sku_draft};
use crate::support::random::num_cases;

mod model;
mod play;

const BUYERS: u64 = 3;

fn plans() -> impl Strategy<Value = Plan> {
    let order = || 0..8_usize;
    let kind = prop_oneof![
        1 => Just(Kind::Closed),
        2 => Just(Kind::Succeeded),
        1 => Just(Kind::Partly),
        1 => Just(Kind::Refunded),
    ];
    let step = prop_oneof![
        4 => (1..=BUYERS, 1..=2_u32).prop_map(|(buyer, quantity)| Step::Buy { buyer, quantity }),
        4 => order().prop_map(|order| Step::Open { order }),
        6 => (order(), 1..=3_u16, kind, 0..4_u8)
            .prop_map(|(order, attempt, kind, event)| Step::Report { order, attempt, kind, event }),
        2 => order().prop_map(|order| Step::Cancel { order }),
        1 => any::<bool>().prop_map(|done| Step::Refund { done }),
        2 => prop::bool::weighted(0.8).prop_map(|buys| Step::Retake { buys }),
        3 => prop_oneof![Just(1_000), Just(PAYING_MS), Just(WINDOW_MS)]
            .prop_map(|ms| Step::Pass { ms }),
        1 => prop_oneof![Just(-WINDOW_MS), Just(-1), Just(1), Just(PAYING_MS)]
            .prop_map(|ms| Step::SetClock { ms }),
    ];
    let ends = vec![OrderState::Cancelled, OrderState::TimedOut, OrderState::Refunded];
    (
        prop_oneof![Just(ONE), Just(ANY), (1..=4_u32).prop_map(quota)],
        subsequence(ends, 0..=3),
        0..=2_u16,
        prop::bool::weighted(0.2),
        vec((order(), 1..=3_u16), 0..3),
        vec(step, 1..40),
    )
        .prop_map(|(policy, returns, ends_max, bar_lapsed, short, steps)| Plan {
            policy,
            returns,
            ends_max,
            bar_lapsed,
            short,
            steps,
        })
}

/// Each order's events are its changes, of which at most one ended it.
async fn assert_ended_once(ledger: &SqliteLedger) {
    while ledger.number_events(500).await.unwrap() > 0 {}
    let mut seen: BTreeMap<OrderKey, (u16, u32)> = BTreeMap::new();
    let mut last = 0;
    loop {
        let events = order_events(ledger, last, 500).await;
        let Some(end) = events.last() else { break };
        last = end.feed_no;
        for event in events {
            let (versions, ends) = seen.entry(event.order.key()).or_default();
            assert_eq!(event.order.version, *versions);
            *versions += 1;
            *ends += u32::from(ended(event.order.state) && !event.is_unfulfilled);
        }
    }
    assert!(!seen.is_empty());
    assert!(seen.values().all(|(_, ends)| *ends <= 1));
}

#[test]
fn orders_live_as_the_model_says() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(START_MS));
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    let ledger =
        SqliteLedger::open(&OpenOptions { clock: Arc::clone(&clock) as _, ..options }).unwrap();
    let number = AtomicU64::new(0);
    let config = Config { cases: num_cases() / 4, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&plans(), |plan| {
            let number = number.fetch_add(1, Ordering::SeqCst) + 1;
            run(async {
                clock.set_wall_ms(START_MS);
                let draft = SkuDraft {
                    bar_lapsed: plan.bar_lapsed,
                    slot_returns: SlotReturns::of(&plan.returns).unwrap(),
                    ends_max: plan.ends_max,
                    history: SkuHistory::default(),
                    ..sku_draft("sku", plan.policy, STOCK)
                };
                let draft = sale_draft(&format!("sale-{number}"), vec![draft]);
                let sale = ledger.create_sale(draft, 1).await.unwrap().unwrap();
                let sku = (*sale.skus[0]).clone();
                let (orders, barred) = (Vec::new(), BTreeSet::new());
                let model = Model { plan: &plan, now: START_MS, orders, barred };
                let (base, known) = (1_000 * number, BTreeSet::new());
                let mut play = Play { ledger: &ledger, clock: &clock, sku, model, base, known };
                for step in &plan.steps {
                    play.step(*step).await;
                    play.compare().await;
                }
                // Nothing is left to do for the next plan.
                for due in ledger.due_retakes(999).await.unwrap() {
                    let refused = RetakeEnd::Refused("the plan is over".to_owned());
                    ledger.end_retake(due.key, refused).await.unwrap();
                }
                for due in ledger.due_refunds(i64::MAX, 999).await.unwrap() {
                    ledger.refund_result(due.key, RefundResult::Done).await.unwrap();
                }
                clock.advance(Duration::from_millis(10 * WINDOW_MS.unsigned_abs()));
                for state in [OrderState::PendingPayment, OrderState::Paying] {
                    let due = ledger.due_orders(state, i64::MAX, 999).await.unwrap();
                    let keys = due.iter().map(|due| due.order.key()).collect();
                    ledger.end_due(keys, EXTENSION_MS).await.unwrap();
                }
            });
            Ok(())
        })
        .unwrap();
    run(async {
        assert_ended_once(&ledger).await;
        ledger.close().await;
    });
}

/// Applies reports of one payment to an order that waits for it.
fn applied(order: Order, payment: Payment, sku: &Sku, kinds: &[Kind]) -> (Order, Payment) {
    let amount = payment.price.amount;
    kinds.iter().fold((order, payment), |(order, payment), kind| {
        let (payment, trigger, _) = record(&order, &payment, &said(*kind, amount));
        let changed = trigger
            .map(|trigger| lifecycle::change(&order, trigger, sku, 0, START_MS).unwrap().after);
        (changed.unwrap_or(order), payment)
    })
}

#[test]
fn reports_of_one_payment_end_alike_in_any_order() {
    let sku = crate::support::offers::sku(1, ANY, STOCK);
    let order = intent(&sku, 1, 1, 1).order(START_MS);
    let paying = Order { state: OrderState::Paying, version: 1, ..order };
    let payment = Payment {
        key: AttemptKey { order: order.key(), no: 1 },
        provider: "demo".to_owned(),
        started: None,
        price: Money { amount: order.amount, currency: "CNY".parse().unwrap() },
        state: PaymentState::Started,
        received: None,
        refunded_total: 0,
    };
    let kinds = vec![Kind::Closed, Kind::Succeeded, Kind::Partly, Kind::Refunded];
    let cases = subsequence(kinds, 1..=4).prop_flat_map(|some| {
        let repeated: Vec<Kind> = some.iter().chain(&some).copied().collect();
        (Just(some), Just(repeated).prop_shuffle())
    });
    let config = Config { cases: num_cases(), failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&cases, |(some, shuffled)| {
            for order in [paying, Order { state: OrderState::TimedOut, due_ms: None, ..paying }] {
                let (expected, money) = applied(order, payment.clone(), &sku, &some);
                let (found, found_money) = applied(order, payment.clone(), &sku, &shuffled);
                prop_assert_eq!(found.state, expected.state);
                prop_assert_eq!(found_money.refunded_total, money.refunded_total);
                prop_assert_eq!(found_money.received, money.received);
                prop_assert_eq!(found_money.state, money.state);
            }
            Ok(())
        })
        .unwrap();
}
