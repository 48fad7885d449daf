//! Plays steps on a ledger and on the model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use floodgate::db::placement::place_each;
use floodgate::db::sqlite::SqliteLedger;
use floodgate::db::{OrderChanges, OrderReader, Refunds, Retakes, SaleStore};
use floodgate::domain::{
    AttemptKey, CancelOutcome, OpenPayment, OrderKey, OrderState, PaymentEvent, PaymentRecorded,
    PaymentTerms, PlaceOutcome, RefundResult, RetakeEnd, RetakeOutcome, Sku,
};
use floodgate::runtime::clock::ManualClock;

use super::model::{
    AttemptState, EXTENSION_MS, Kind, Model, ModelAttempt, ModelOrder, PAYING_MS, ended, price,
    said,
};
use crate::support::offers::{intent, orders, request};

/// The number of the purchases that the model refuses.
const REFUSED: u64 = 999;

#[derive(Debug, Clone, Copy)]
pub enum Step {
    Buy {
        buyer: u64,
        quantity: u32,
    },
    Open {
        order: usize,
    },
    Report {
        order: usize,
        attempt: u16,
        kind: Kind,
        event: u8,
    },
    Cancel {
        order: usize,
    },
    Refund {
        done: bool,
    },
    Retake {
        buys: bool,
    },
    Pass {
        ms: i64,
    },
    /// The clock steps, and nothing looks for due orders.
    SetClock {
        ms: i64,
    },
}

/// A plan in progress on a ledger.
pub struct Play<'a> {
    pub ledger: &'a SqliteLedger,
    pub clock: &'a ManualClock,
    pub sku: Sku,
    pub model: Model<'a>,
    /// Added to request numbers, so that plans do not share them.
    pub base: u64,
    /// The events so far.
    pub known: BTreeSet<String>,
}

impl Play<'_> {
    fn key(&self, at: usize) -> OrderKey {
        let order = intent(&self.sku, self.base + at as u64, self.model.orders[at].buyer, 1);
        OrderKey { sku: order.sku, buyer: order.buyer, request: order.request }
    }

    pub async fn step(&mut self, step: Step) {
        let at = match step {
            Step::Open { order } | Step::Report { order, .. } | Step::Cancel { order } => {
                if self.model.orders.is_empty() {
                    return;
                }
                order % self.model.orders.len()
            }
            Step::Buy { .. }
            | Step::Refund { .. }
            | Step::Retake { .. }
            | Step::Pass { .. }
            | Step::SetClock { .. } => 0,
        };
        match step {
            Step::Buy { buyer, quantity } => self.buy(buyer, quantity).await,
            Step::Open { .. } => {
                let terms = PaymentTerms {
                    provider: "demo".to_owned(),
                    paying_window_ms: PAYING_MS,
                    extension_max_ms: EXTENSION_MS,
                };
                let opened = self.ledger.open_payment(self.key(at), terms).await.unwrap();
                let is_open = matches!(opened, OpenPayment::Open(..));
                assert_eq!(is_open, self.model.open(at), "{opened:?}");
            }
            Step::Report { attempt, kind, event, .. } => {
                self.report(at, attempt, kind, event).await;
            }
            Step::Cancel { .. } => {
                let key = self.key(at);
                let cancelled = self.ledger.cancel(key).await.unwrap();
                self.model.cancel(at);
                let is_cancelled = self.model.orders[at].state == OrderState::Cancelled;
                let said_so = matches!(cancelled, CancelOutcome::Cancelled(_));
                assert_eq!(said_so, is_cancelled, "{cancelled:?}");
            }
            Step::Refund { done } => self.refund(done).await,
            Step::SetClock { ms } => {
                self.model.now += ms;
                self.clock.set_wall_ms(self.model.now);
            }
            Step::Retake { buys } => self.retake(buys).await,
            Step::Pass { ms } => {
                self.clock.advance(Duration::from_millis(ms.unsigned_abs()));
                self.model.pass(ms);
                let mut keys = Vec::new();
                for state in [OrderState::PendingPayment, OrderState::Paying] {
                    let due = self.ledger.due_orders(state, self.model.now, 99).await.unwrap();
                    keys.extend(due.iter().map(|due| due.order.key()));
                }
                self.ledger.end_due(keys, EXTENSION_MS).await.unwrap();
            }
        }
    }

    async fn buy(&mut self, buyer: u64, quantity: u32) {
        let sells = self.model.sells(buyer, quantity);
        // The next order's number may be that of late money which bought nothing: a bar exempts it.
        let number = if sells { self.model.orders.len() as u64 } else { REFUSED };
        let batch = [intent(&self.sku, self.base + number, buyer, quantity)];
        let mut outcomes = [None];
        place_each(self.ledger, &batch, &mut outcomes).await.unwrap();
        if sells {
            let placed = PlaceOutcome::Placed(batch[0].order(self.model.now));
            assert_eq!(outcomes, [Some(placed)]);
            self.model.buy(buyer, quantity);
        } else {
            assert!(matches!(outcomes, [Some(PlaceOutcome::Refused(_))]), "{outcomes:?}");
        }
    }

    async fn report(&mut self, at: usize, attempt: u16, kind: Kind, event: u8) {
        let (at, attempt) = self.model.first_of(at, attempt);
        let num_attempts = self.model.orders[at].attempts.len();
        let is_short = self.model.plan.short.contains(&(at, attempt));
        let amount = price(self.model.orders[at].quantity) - i64::from(is_short);
        let key = AttemptKey { order: self.key(at), no: attempt };
        let event_id = format!("{}-{attempt}-{kind:?}-{event}", key.order.request);
        let is_repeat = self.known.contains(&event_id);
        let event = PaymentEvent {
            provider: "demo".to_owned(),
            event_id: event_id.clone(),
            payment_id: format!("{}-{attempt}", key.order.request),
            attempt: Some(key),
            report: said(kind, amount),
        };
        let recorded = self.ledger.record_payment(event).await.unwrap();
        if is_repeat {
            assert_eq!(recorded, PaymentRecorded::Known);
            return;
        }
        self.known.insert(event_id);
        let is_matched = matches!(recorded, PaymentRecorded::Recorded(_, Some(_)));
        assert_eq!(is_matched, usize::from(attempt) <= num_attempts, "{recorded:?}");
        if is_matched {
            self.model.report(at, usize::from(attempt) - 1, kind, amount);
        }
    }

    async fn refund(&mut self, done: bool) {
        let Some(due) = self.ledger.due_refunds(i64::MAX, 1).await.unwrap().pop() else { return };
        let result = if done {
            RefundResult::Done
        } else {
            RefundResult::Again { next_ms: self.model.now + 1 }
        };
        self.ledger.refund_result(due.key, result).await.unwrap();
        if done {
            let at = usize::try_from(due.key.order.request.get() - self.base).unwrap();
            let attempt = usize::from(due.key.no) - 1;
            let paying = &mut self.model.orders[at].attempts[attempt];
            assert_eq!(
                (paying.state, due.money.amount),
                (AttemptState::Owed, paying.received - paying.refunded)
            );
            paying.refunded = paying.received;
            paying.state = AttemptState::Returned;
        }
    }

    /// Decides the oldest late money; every step runs twice, as after a crash.
    async fn retake(&mut self, buys: bool) {
        let Some(due) = self.ledger.due_retakes(1).await.unwrap().pop() else { return };
        let at = usize::try_from(due.key.order.request.get() - self.base).unwrap();
        let attempt = usize::from(due.key.no) - 1;
        let paying = self.model.orders[at].attempts[attempt].clone();
        assert_eq!(paying.state, AttemptState::Late);
        let number = self.base + self.model.orders.len() as u64;
        let ModelOrder { buyer, quantity, .. } = self.model.orders[at];
        let batch = [intent(&self.sku, number, buyer, quantity)];
        let mut end = RetakeEnd::Refused("not bought".to_owned());
        let mut is_moved = false;
        if buys {
            for _ in 0..2 {
                self.ledger.exempt_retake(due.key.order, batch[0].request).await.unwrap();
            }
            let mut outcomes = [None];
            place_each(self.ledger, &batch, &mut outcomes).await.unwrap();
            let is_placed = matches!(outcomes, [Some(PlaceOutcome::Placed(_))]);
            assert_eq!(is_placed, self.model.has(buyer, quantity), "{outcomes:?}");
            if is_placed {
                self.model.buy(buyer, quantity);
                end = RetakeEnd::Placed(batch[0].request);
                is_moved = paying.refunded == 0;
            }
        }
        let ended = self.ledger.end_retake(due.key, end.clone()).await.unwrap();
        assert_eq!(matches!(ended, RetakeOutcome::Applied(_)), is_moved, "{ended:?}");
        assert_eq!(self.ledger.end_retake(due.key, end).await.unwrap(), RetakeOutcome::Known);
        if is_moved {
            self.model.move_to_last(at, attempt);
        } else {
            self.model.owe(at, attempt);
        }
    }

    /// Compares every order, the units and the money owed.
    pub async fn compare(&self) {
        let found: BTreeMap<_, _> = orders(self.ledger, self.sku.no)
            .await
            .into_iter()
            .map(|order| (order.request, order))
            .collect();
        assert_eq!(found.len(), self.model.orders.len());
        for (at, expected) in self.model.orders.iter().enumerate() {
            let order = found[&request(self.base + at as u64)];
            let is_timed = !ended(expected.state) && expected.state != OrderState::Paid;
            assert_eq!(
                (order.state, order.version, order.counts_for_limit, order.due_ms),
                (
                    expected.state,
                    expected.changes,
                    expected.counts,
                    is_timed.then_some(expected.due)
                ),
                "order {at}"
            );
        }
        assert_eq!(self.ledger.available(self.sku.no).await.unwrap(), self.model.free());
        let attempts = self.model.orders.iter().flat_map(|order| &order.attempts);
        let owed: i64 = attempts
            .filter(|attempt| attempt.state == AttemptState::Owed)
            .map(|attempt| attempt.received - attempt.refunded)
            .sum();
        let due = self.ledger.due_refunds(i64::MAX, 999).await.unwrap();
        let due = due.iter().filter(|due| due.key.order.sku == self.sku.no);
        assert_eq!(due.map(|due| due.money.amount).sum::<i64>(), owed);
        let is_late = |attempt: &&ModelAttempt| attempt.state == AttemptState::Late;
        let attempts = self.model.orders.iter().flat_map(|order| &order.attempts);
        let late = self.ledger.due_retakes(999).await.unwrap();
        assert_eq!(late.len(), attempts.filter(is_late).count());
        assert_eq!(self.ledger.anomalies(self.sku.no).await.unwrap(), []);
    }
}
