//! Tokens, secrets, fencing and closing.

use floodgate::db::{Error, ErrorClass};
use floodgate::domain::{DeadLetterCounts, Epoch, Failure, Phase, Refusal};

use super::Backend;
use crate::support::dead_letters::new_dead_letter;
use crate::support::offers::{ONE, buyer, intent, offer, orders, request, sale_draft, sku_draft};

pub async fn a_token_is_never_given_twice(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(ledger.next_token("process").await.unwrap());
    }
    assert_eq!(ledger.next_token("other").await.unwrap(), seen[0], "each name has its own counter");
    ledger.close().await;

    let ledger = backend.open().await;
    seen.push(ledger.next_token("process").await.unwrap());
    assert!(seen.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seen:?}");
}

pub async fn a_secret_is_made_once(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let secret = ledger.secret("request-ids").await.unwrap();
    assert_eq!(secret.len(), 32);
    assert_ne!(secret, [0; 32]);
    assert_ne!(secret, ledger.secret("tickets").await.unwrap());
    assert_eq!(secret, ledger.secret("request-ids").await.unwrap());
    ledger.close().await;
    assert_eq!(secret, backend.open().await.secret("request-ids").await.unwrap());
}

pub async fn a_writer_that_was_replaced_writes_nothing(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ONE, 5).await;
    ledger.place(vec![intent(&sku, 1, 1, 1)]).await.unwrap();
    let sales = ledger.sales().await.unwrap();

    backend.take_over().await;

    for _ in 0..2 {
        assert_fenced(ledger.place(vec![intent(&sku, 2, 2, 1)]).await);
        let failure = Failure {
            request: request(3),
            sku: sku.no,
            buyer: buyer(3),
            quantity: 1,
            reason: Refusal::SoldOut,
            recorded_at_ms: 0,
        };
        assert_fenced(ledger.record_failures(vec![failure]).await);
        let draft = sale_draft("next", vec![sku_draft("sku", ONE, 1)]);
        assert_fenced(ledger.create_sale(draft, 1).await);
        assert_fenced(
            ledger.set_sale_phase("sale".parse().unwrap(), Epoch(0), Phase::Open, 1, None).await,
        );
        assert_fenced(ledger.store_dead_letters(vec![new_dead_letter(&[9])], 1).await);
        assert_fenced(ledger.next_token("process").await);
        assert_fenced(ledger.secret("tickets").await);
    }
    assert_eq!(ledger.sales().await.unwrap(), sales);
    assert_eq!(orders(&*ledger, sku.no).await.len(), 1);
    assert_eq!(ledger.failure(request(3)).await.unwrap(), None);
    assert_eq!(ledger.count_dead_letters().await.unwrap(), DeadLetterCounts::default());
}

fn assert_fenced<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Down);
}

pub async fn a_closed_ledger_refuses_calls(backend: &dyn Backend) {
    let ledger = backend.open().await;
    let sku = offer(&*ledger, "sale", ONE, 5).await;
    ledger.close().await;
    ledger.close().await;
    let error = ledger.place(vec![intent(&sku, 1, 1, 1)]).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Down);
    assert!(ledger.ping().await.is_err());
    assert_eq!(backend.open().await.available(sku.no).await.unwrap(), 5);
}
