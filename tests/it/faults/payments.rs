//! Payments and cancellations whose provider's answers are lost: a repeat continues, with one
//! payment per attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::config::{PaymentSettings, Settings};
use floodgate::db::Ledger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{
    AttemptKey, OrderIntent, OrderKey, OrderState, PaymentReport, PaymentState, Policy,
};
use floodgate::payment::demo::{DemoAction, DemoPress};
use floodgate::payment::{
    DemoProvider, FindAnswer, PaymentProvider, PaymentStart, Payments, Refund, RefundAnswer,
    StartAnswer, StopAnswer, WebhookReader, WebhookVerifier,
};
use floodgate::runtime::clock::{SharedClock, SystemClock};
use floodgate::services::order_life::{OrderError, OrderService};
use tempfile::TempDir;

use crate::support::offers::{assert_ledger_holds, buyer, intent, open_offer, request, run};

/// The demo provider, whose answers may be lost.
pub(super) struct LossyProvider {
    pub inner: Arc<DemoProvider>,
    loses_answers: AtomicBool,
    refuses: AtomicBool,
}

#[async_trait]
impl PaymentProvider for LossyProvider {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn start(&self, start: PaymentStart) -> StartAnswer {
        if self.refuses.load(Ordering::SeqCst) {
            return StartAnswer::Refused("No card of this kind.".to_owned());
        }
        let answer = self.inner.start(start).await;
        if self.loses_answers.load(Ordering::SeqCst) { StartAnswer::Unknown } else { answer }
    }

    async fn find(&self, attempt: AttemptKey) -> FindAnswer {
        let answer = self.inner.find(attempt).await;
        if self.loses_answers.load(Ordering::SeqCst) { FindAnswer::Unknown } else { answer }
    }

    async fn stop(&self, payment_id: &str) -> StopAnswer {
        let answer = self.inner.stop(payment_id).await;
        if self.loses_answers.load(Ordering::SeqCst) { StopAnswer::Unknown } else { answer }
    }

    async fn refund(&self, refund: Refund) -> RefundAnswer {
        let answer = self.inner.refund(refund).await;
        if self.loses_answers.load(Ordering::SeqCst) { RefundAnswer::Unknown } else { answer }
    }
}

/// An unpaid order, and a provider.
pub(super) struct Shop {
    pub ledger: Arc<dyn Ledger>,
    pub provider: Arc<LossyProvider>,
    pub settings: PaymentSettings,
    pub num_signals: Arc<AtomicUsize>,
    folder: TempDir,
}

impl Shop {
    async fn open() -> Self {
        Self::open_with(SystemClock::shared(), 900).await
    }

    /// A shop with this clock, whose orders have this window; 0: none.
    pub async fn open_with(clock: SharedClock, payment_window_s: i32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = OpenOptions::new(folder.path().join("ledger.db"));
        let options = OpenOptions { clock: clock.clone(), ..options };
        let ledger: Arc<dyn Ledger> = Arc::new(SqliteLedger::open(&options).unwrap());
        let sku = open_offer(&*ledger, "sale", Policy::OnePerBuyer { max_quantity: 1 }, 10).await;
        let order = OrderIntent { payment_window_s, ..intent(&sku, 1, 1, 1) };
        let placed = ledger.place(vec![order]).await.unwrap();
        assert!(placed.is_some(), "{placed:?}");
        let settings = Settings::with_ledger("sqlite://unused.db").payment;
        let signer = Arc::new(WebhookVerifier::new(&settings, &[7; 32]));
        let inner = Arc::new(DemoProvider::new(signer, clock));
        let (loses_answers, refuses) = (AtomicBool::new(false), AtomicBool::new(false));
        let provider = Arc::new(LossyProvider { inner, loses_answers, refuses });
        Self { ledger, provider, settings, num_signals: Arc::default(), folder }
    }

    /// A service as a new process has it.
    pub fn service(&self) -> OrderService {
        let verifier = Arc::new(WebhookVerifier::new(&self.settings, &[7; 32]));
        let payments = Payments {
            provider: self.provider.clone(),
            provider_of_tasks: self.provider.clone(),
            webhooks: Arc::new(WebhookReader::new(verifier, DemoProvider::NAME)),
            demo: None,
        };
        let num_signals = self.num_signals.clone();
        let changed = Arc::new(move || {
            num_signals.fetch_add(1, Ordering::SeqCst);
        });
        OrderService::new(self.ledger.clone(), Some(payments), &self.settings, changed)
    }

    /// Changes the ledger file by hand.
    pub fn damage(&self, sql: &str) {
        let file = self.folder.path().join("ledger.db");
        let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        conn.batch_execute(&format!("PRAGMA busy_timeout = 5000; {sql}")).unwrap();
    }

    pub async fn key(&self) -> OrderKey {
        let sku = self.ledger.sales().await.unwrap()[0].skus[0].no;
        OrderKey { sku, buyer: buyer(1), request: request(1) }
    }

    pub async fn state(&self) -> OrderState {
        self.ledger.orders_of(buyer(1), None, 1).await.unwrap()[0].state
    }

    pub async fn payment_states(&self) -> Vec<PaymentState> {
        let payments = self.ledger.payments_of(vec![self.key().await]).await.unwrap();
        payments.into_iter().map(|payment| payment.state).collect()
    }

    pub fn loses_answers(&self, loses: bool) {
        self.provider.loses_answers.store(loses, Ordering::SeqCst);
    }
}

/// Crash point `payment_opened_not_started`.
#[test]
fn a_payment_whose_start_was_not_answered_is_started_again_as_the_same() {
    run(async {
        let shop = Shop::open().await;
        let key = shop.key().await;
        shop.loses_answers(true);
        let unknown = shop.service().pay(key).await;
        assert!(matches!(unknown, Err(OrderError::ProviderAway)), "{unknown:?}");
        assert_eq!(shop.state().await, OrderState::Paying);
        shop.loses_answers(false);
        let (first, second) = (shop.service(), shop.service());
        let (first, second) = tokio::join!(first.pay(key), second.pay(key));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first, second);
        let found = shop.provider.find(AttemptKey { order: key, no: 1 }).await;
        assert_eq!(found, FindAnswer::Found { started: first.started, report: None });
        assert_eq!(shop.payment_states().await, [PaymentState::Started], "one attempt");
        assert!(shop.num_signals.load(Ordering::SeqCst) >= 1, "the bucket learns it");
    });
}

#[test]
fn an_order_whose_payment_was_not_answered_is_cancelled_with_its_payment_stopped() {
    run(async {
        let shop = Shop::open().await;
        let key = shop.key().await;
        shop.loses_answers(true);
        assert!(shop.service().pay(key).await.is_err());
        shop.loses_answers(false);
        let cancelled = shop.service().cancel(key).await.unwrap();
        assert_eq!(cancelled.state, OrderState::Cancelled);
        let found = shop.provider.find(AttemptKey { order: key, no: 1 }).await;
        let FindAnswer::Found { started, report } = found else { panic!("{found:?}") };
        assert_eq!(report, Some(PaymentReport::Closed));
        let press = shop.provider.inner.press(&started.payment_id, DemoAction::Pay);
        assert_eq!(press, DemoPress::NotPossible);
        assert_ledger_holds(&*shop.ledger).await;
    });
}

/// Crash point `payment_stopped_not_recorded`.
#[test]
fn a_cancellation_whose_stop_was_not_answered_continues() {
    run(async {
        let shop = Shop::open().await;
        let key = shop.key().await;
        shop.service().pay(key).await.unwrap();
        shop.loses_answers(true);
        let unknown = shop.service().cancel(key).await;
        assert!(matches!(unknown, Err(OrderError::ProviderAway)), "{unknown:?}");
        assert_eq!(shop.state().await, OrderState::Paying, "its units are kept");
        shop.loses_answers(false);
        for _ in 0..2 {
            let cancelled = shop.service().cancel(key).await.unwrap();
            assert_eq!(cancelled.state, OrderState::Cancelled);
        }
        assert_eq!(shop.payment_states().await, [PaymentState::Closed]);
        assert_ledger_holds(&*shop.ledger).await;
    });
}

#[test]
fn money_that_arrives_while_a_cancellation_waits_pays_the_order() {
    run(async {
        let shop = Shop::open().await;
        let key = shop.key().await;
        let payment = shop.service().pay(key).await.unwrap().started;
        assert_eq!(
            shop.provider.inner.press(&payment.payment_id, DemoAction::Pay),
            DemoPress::Done
        );
        let refused = shop.service().cancel(key).await;
        assert!(matches!(refused, Err(OrderError::Decided(_))), "{refused:?}");
        assert_eq!(shop.state().await, OrderState::Paid);
        assert_eq!(shop.payment_states().await, [PaymentState::Applied]);
        assert_ledger_holds(&*shop.ledger).await;
    });
}

#[test]
fn a_refused_payment_gives_the_order_back_to_its_buyer() {
    run(async {
        let shop = Shop::open().await;
        let key = shop.key().await;
        shop.provider.refuses.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            let refused = shop.service().pay(key).await;
            assert!(matches!(&refused, Err(OrderError::Refused(why)) if why.contains("card")));
            assert_eq!(shop.state().await, OrderState::PendingPayment);
        }
        shop.provider.refuses.store(false, Ordering::SeqCst);
        shop.service().pay(key).await.unwrap();
        let closed = PaymentState::Closed;
        assert_eq!(shop.payment_states().await, [closed, closed, PaymentState::Started]);
        assert_ledger_holds(&*shop.ledger).await;
    });
}
