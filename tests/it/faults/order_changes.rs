//! The transactions of an order's life on MariaDB, with the connection cut at every point: before
//! each statement, within it, and before its answer. Whatever the cut left, the repeat ends as the
//! same call without a cut, and each unit and each amount returns once.

use std::sync::Arc;
use std::time::Duration;

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{
    Error, ErrorClass, OrderChanges, OrderReader, OrderWriter, Refunds, Retakes, SaleStore,
};
use floodgate::domain::{
    AttemptKey, Money, OrderKey, OrderState, PaymentEvent, PaymentReport, PaymentState,
    PaymentTerms, RefundResult, RetakeEnd, Sku,
};
use floodgate::runtime::clock::ManualClock;

use crate::support::fault_proxy::{FaultProxy, Way};
use crate::support::harness::START_MS;
use crate::support::offers::{
    ANY, assert_ledger_holds, intent, open_offer, order_events, orders, run,
};
use crate::support::random::number_from_env;
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::until;

/// Distance of two cuts in the stream to the server, which has the statements, and in the stream of
/// answers, in bytes. With `FLOODGATE_CHAOS_ROUNDS` both are cut at [`CHAOS_STEP`].
const STATEMENTS_STEP: usize = 251;
const ANSWERS_STEP: usize = 97;
const CHAOS_STEP: usize = 48;
const STOCK: u32 = 1_000_000;
const WINDOW: Duration = Duration::from_secs(900);

/// A change of an order, and the states of order and payment after it.
#[derive(Debug, Clone, Copy)]
enum Change {
    Place,
    OpenPayment,
    Pay,
    PayAfterTheEnd,
    Refund,
    OweLateMoney,
    RefundLateMoney,
    Cancel,
    End,
}

impl Change {
    const ALL: [Self; 9] = [
        Self::Place,
        Self::OpenPayment,
        Self::Pay,
        Self::PayAfterTheEnd,
        Self::Refund,
        Self::OweLateMoney,
        Self::RefundLateMoney,
        Self::Cancel,
        Self::End,
    ];

    fn leads_to(self) -> (OrderState, Option<PaymentState>) {
        match self {
            Self::Place => (OrderState::PendingPayment, None),
            Self::OpenPayment => (OrderState::Paying, Some(PaymentState::Started)),
            Self::Pay => (OrderState::Paid, Some(PaymentState::Applied)),
            Self::PayAfterTheEnd => (OrderState::TimedOut, Some(PaymentState::Retaking)),
            Self::Refund => (OrderState::Refunded, Some(PaymentState::Refunded)),
            Self::OweLateMoney => (OrderState::TimedOut, Some(PaymentState::RefundDue)),
            Self::RefundLateMoney => (OrderState::TimedOut, Some(PaymentState::Refunded)),
            Self::Cancel => (OrderState::Cancelled, None),
            Self::End => (OrderState::TimedOut, None),
        }
    }

    /// The changes before it.
    fn before(self) -> &'static [Self] {
        match self {
            Self::Place => &[],
            Self::OpenPayment | Self::Cancel | Self::End => &[Self::Place],
            Self::Pay => &[Self::Place, Self::OpenPayment],
            Self::Refund => &[Self::Place, Self::OpenPayment, Self::Pay],
            Self::PayAfterTheEnd => &[Self::Place, Self::OpenPayment, Self::End],
            Self::OweLateMoney => {
                &[Self::Place, Self::OpenPayment, Self::End, Self::PayAfterTheEnd]
            }
            Self::RefundLateMoney => &[
                Self::Place,
                Self::OpenPayment,
                Self::End,
                Self::PayAfterTheEnd,
                Self::OweLateMoney,
            ],
        }
    }
}

struct Fixture {
    ledger: MysqlLedger,
    clock: Arc<ManualClock>,
    proxy: FaultProxy,
    sku: Sku,
    _server: MariaDb,
}

impl Fixture {
    async fn open() -> Self {
        let server = MariaDb::start();
        let proxy = FaultProxy::start(server.addr());
        let clock = Arc::new(ManualClock::new(START_MS));
        let options = MysqlOptions {
            writers: 1,
            readers: 1,
            clock: Arc::clone(&clock) as _,
            ..MysqlOptions::new(MariaDb::url_by(proxy.addr()))
        };
        let ledger = MysqlLedger::open(&options).unwrap();
        let sku = open_offer(&ledger, "sale", ANY, STOCK).await;
        Self { ledger, clock, proxy, sku, _server: server }
    }

    fn key(&self, number: u64) -> OrderKey {
        let intent = intent(&self.sku, number, number, 1);
        OrderKey { sku: intent.sku, buyer: intent.buyer, request: intent.request }
    }

    /// One call of the change; a repeat of it may be the same call.
    async fn call(&self, change: Change, number: u64) -> Result<(), Error> {
        let (order, ledger) = (self.key(number), &self.ledger);
        let attempt = AttemptKey { order, no: 1 };
        let money = Money { amount: self.sku.price, currency: "CNY".parse().unwrap() };
        let event = |kind: &str, report| PaymentEvent {
            provider: "demo".to_owned(),
            event_id: format!("{kind}-{number}"),
            payment_id: format!("pay-{number}"),
            attempt: Some(attempt),
            report,
        };
        match change {
            // A repeat finds its order: the batch has a conflict.
            Change::Place => {
                ledger.place(vec![intent(&self.sku, number, number, 1)]).await.map(drop)
            }
            Change::OpenPayment => {
                let terms = PaymentTerms {
                    provider: "demo".to_owned(),
                    paying_window_ms: 1_000,
                    extension_max_ms: 1_000,
                };
                ledger.open_payment(order, terms).await.map(drop)
            }
            Change::Pay | Change::PayAfterTheEnd => {
                let event = event("paid", PaymentReport::Succeeded(money));
                ledger.record_payment(event).await.map(drop)
            }
            Change::Refund => {
                let report = PaymentReport::Refunded { received: money, total: money.amount };
                ledger.record_payment(event("refunded", report)).await.map(drop)
            }
            Change::OweLateMoney => {
                let refused = RetakeEnd::Refused("sold-out".into());
                ledger.end_retake(attempt, refused).await.map(drop)
            }
            Change::RefundLateMoney => {
                ledger.refund_result(attempt, RefundResult::Done).await.map(drop)
            }
            Change::Cancel => ledger.cancel(order).await.map(drop),
            Change::End => ledger.end_due(vec![order], 0).await.map(drop),
        }
    }

    /// Calls until the ledger confirms it, as every caller does.
    async fn until_confirmed(&self, change: Change, number: u64) {
        if matches!(change, Change::End) {
            self.clock.advance(WINDOW);
        }
        until("a confirmed change", async || match self.call(change, number).await {
            Ok(()) => Some(()),
            Err(error) => {
                assert_ne!(error.class(), ErrorClass::Bug, "{change:?}: {error:?}");
                None
            }
        })
        .await;
    }

    /// Cuts the connection after `bytes` of this change. Returns whether there was a cut.
    async fn cut(&self, change: Change, number: u64, way: Way, bytes: usize) -> bool {
        for earlier in change.before() {
            self.until_confirmed(*earlier, number).await;
        }
        let (available, cuts) = (self.available().await, self.proxy.cuts());
        self.proxy.cut_after(way, bytes);
        self.until_confirmed(change, number).await;
        self.proxy.heal();
        let is_cut = self.proxy.cuts() > cuts;

        let order = self.ledger.orders_of(self.key(number).buyer, None, 9).await.unwrap();
        let [order] = order[..] else { panic!("{change:?} {bytes}: one order, not {order:?}") };
        let payments = self.ledger.payments_of(vec![order.key()]).await.unwrap();
        let payment = payments.first().map(|payment| payment.state);
        assert_eq!((order.state, payment), change.leads_to(), "{change:?} {way:?} {bytes}");
        let num_changes = change.before().len() + 1;
        // Late money changes no order.
        let num_events = match change {
            Change::PayAfterTheEnd | Change::OweLateMoney => num_changes - 1,
            Change::RefundLateMoney => num_changes - 2,
            _ => num_changes,
        };
        assert_eq!(usize::from(order.version) + 1, num_events, "{change:?} {way:?} {bytes}");
        let units_back = match change {
            Change::Place => -1,
            Change::Cancel | Change::End | Change::Refund => 1,
            _ => 0,
        };
        assert_eq!(self.available().await - available, units_back, "{change:?} {way:?} {bytes}");
        is_cut
    }

    async fn available(&self) -> i64 {
        self.ledger.available(self.sku.no).await.unwrap().into()
    }
}

#[test]
fn a_connection_cut_at_any_point_of_a_change_leaves_it_done_once() {
    run(async {
        let fixture = Fixture::open().await;
        let mut number = 0;
        let rounds: Option<u64> = number_from_env("FLOODGATE_CHAOS_ROUNDS");
        for change in Change::ALL {
            for (way, step) in [(Way::ToServer, STATEMENTS_STEP), (Way::ToClient, ANSWERS_STEP)] {
                let step = if rounds.is_some() { CHAOS_STEP } else { step };
                let mut num_cuts = 0;
                for bytes in (0..).step_by(step) {
                    number += 1;
                    if !fixture.cut(change, number, way, bytes).await {
                        break;
                    }
                    num_cuts += 1;
                }
                println!("{change:?} {way:?}: {num_cuts} cuts");
                assert!(num_cuts > 2, "{change:?} {way:?}: {num_cuts} cuts");
            }
        }
        assert_eq!(orders(&fixture.ledger, fixture.sku.no).await.len() as u64, number);
        assert_ledger_holds(&fixture.ledger).await;
        // Each change is one event, in the order of its versions.
        while fixture.ledger.number_events(1_000).await.unwrap() > 0 {}
        let (mut after, mut versions) = (0, std::collections::BTreeMap::new());
        loop {
            let events = order_events(&fixture.ledger, after, 1_000).await;
            let Some(last) = events.last() else { break };
            after = last.feed_no;
            for event in events {
                let next = versions.entry(event.order.request).or_insert(0);
                assert_eq!(event.order.version, *next);
                *next += 1;
            }
        }
        assert_eq!(versions.len() as u64, number);
    });
}
