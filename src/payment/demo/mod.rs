//! A payment provider inside this process, for demonstrations and tests.
//!
//! Its page lets a visitor decide what becomes of a payment; its webhooks are signed and sent to
//! this server over HTTP, and repeated, as those of a real provider. Its payments are in memory: at
//! most [`PAYMENTS_MAX`], the oldest is forgotten first, and none outlives the process.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::event::{EventBody, EventData};
use super::{
    FindAnswer, PaymentProvider, PaymentStart, Refund, RefundAnswer, StartAnswer, StopAnswer,
    WebhookVerifier,
};
use crate::domain::named::named_enum;
use crate::domain::{AttemptKey, Money, PaymentReport};
use crate::runtime::clock::SharedClock;

mod page;
mod payments;
mod sender;

pub use payments::{DemoPayment, PAYMENTS_MAX};

use payments::DemoPayments;

/// The path of the page of a payment, before its id.
pub const PAGE: &str = "/demo-pay/";

/// Button presses whose webhooks are not sent yet; beyond it a press is refused.
const PRESSES_MAX: usize = 1_024;

named_enum! {
    /// A button of the page.
    DemoAction {
        /// The buyer pays.
        Pay => "pay",
        /// The payment fails.
        Fail => "fail",
        /// Money arrives although the payment failed, was stopped or has expired.
        PayLate => "pay_late",
        /// The buyer pays this payment, and an earlier one of the same order.
        PayTwice => "pay_twice",
        /// Another amount than the price arrives.
        WrongAmount => "wrong_amount",
        /// The provider pays the money back.
        Refund => "refund",
        /// A first card fails and a second one pays; the webhooks arrive in reverse.
        OutOfOrder => "out_of_order",
    }
}

/// What became of a button press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoPress {
    Done,
    /// The payment is not in a state for it.
    NotPossible,
    /// Too many webhooks wait to be sent.
    Busy,
    UnknownPayment,
}

/// The demo provider. See the module.
pub struct DemoProvider {
    payments: Mutex<DemoPayments>,
    /// The webhooks of each button press.
    events: mpsc::Sender<Vec<EventBody>>,
    /// Taken by [`Self::send_webhooks`].
    unsent: Mutex<Option<mpsc::Receiver<Vec<EventBody>>>>,
    signer: Arc<WebhookVerifier>,
    clock: SharedClock,
}

impl DemoProvider {
    pub const NAME: &'static str = "demo";

    pub fn new(signer: Arc<WebhookVerifier>, clock: SharedClock) -> Self {
        let (events, unsent) = mpsc::channel(PRESSES_MAX);
        Self { payments: Mutex::default(), events, unsent: Mutex::new(Some(unsent)), signer, clock }
    }

    /// The page of a payment, as HTML, in this style sheet.
    pub fn page(&self, payment_id: &str, style: &str) -> Option<String> {
        let now_ms = self.clock.wall_ms();
        let payments = self.payments.lock();
        let payment = payments.get(payment_id)?;
        Some(page::html(payment, style, now_ms, |action| payments.allows(payment, action, now_ms)))
    }

    /// Presses a button of the page.
    pub fn press(&self, payment_id: &str, action: DemoAction) -> DemoPress {
        let now_ms = self.clock.wall_ms();
        let mut payments = self.payments.lock();
        let Some(payment) = payments.get(payment_id) else { return DemoPress::UnknownPayment };
        if !payments.allows(payment, action, now_ms) {
            return DemoPress::NotPossible;
        }
        let Ok(place) = self.events.try_reserve() else { return DemoPress::Busy };
        let reports = payments.press(payment_id, action);
        place.send(reports.iter().map(body_of).collect());
        DemoPress::Done
    }
}

fn body_of((payment, report): &(DemoPayment, PaymentReport)) -> EventBody {
    let start = payment.start;
    let (name, money, refunded_total) = match report {
        PaymentReport::Succeeded(money) => ("paid", *money, 0),
        PaymentReport::Closed => ("failed", Money { amount: 0, ..start.price }, 0),
        PaymentReport::Refunded { received, total } => ("refunded", *received, *total),
    };
    EventBody {
        id: Some(format!("evt_{:016x}", fastrand::u64(..))),
        r#type: name.to_owned(),
        data: EventData {
            payment_id: payment.id.clone(),
            attempt: Some(start.attempt.to_string()),
            amount: money.amount,
            currency: money.currency.to_string(),
            refunded_total,
        },
    }
}

#[async_trait]
impl PaymentProvider for DemoProvider {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    async fn start(&self, start: PaymentStart) -> StartAnswer {
        StartAnswer::Started(self.payments.lock().start(start))
    }

    async fn find(&self, attempt: AttemptKey) -> FindAnswer {
        let now_ms = self.clock.wall_ms();
        let payments = self.payments.lock();
        payments.of_attempt(attempt).map_or(FindAnswer::NotFound, |payment| FindAnswer::Found {
            started: payment.started(),
            report: payment.report(now_ms),
        })
    }

    /// Unknown for a payment of an earlier run or of another process.
    async fn stop(&self, payment_id: &str) -> StopAnswer {
        let now_ms = self.clock.wall_ms();
        let mut payments = self.payments.lock();
        payments.get_mut(payment_id).map_or(StopAnswer::Unknown, |payment| payment.stop(now_ms))
    }

    async fn refund(&self, refund: Refund) -> RefundAnswer {
        let mut payments = self.payments.lock();
        let found = payments.get_mut(&refund.payment_id);
        found.map_or(RefundAnswer::Unknown, |payment| payment.refund(refund.amount))
    }
}
