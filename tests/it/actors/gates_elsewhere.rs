//! The gate handle of a process whose gates run in another one.

use std::sync::Arc;

use floodgate::actors::GateHandle;
use floodgate::config::Tier;
use floodgate::domain::{Counting, Phase, Refusal, RequestStatus, Sale};
use floodgate::messages::BuyAnswer;
use floodgate::services::catalog::Catalog;
use floodgate::stock::{Error, MemoryStock, Stock};

use super::gates_failing::{Failing, OFFER};
use crate::support::harness::{START_MS, in_system, is_placed, settings};

/// The gate handle of a process without gates, with the sale in its catalog in `phase`.
fn without_gates(sale: &Sale, phase: Phase, stock: Arc<dyn Stock>) -> (GateHandle, Arc<Catalog>) {
    let catalog = Arc::new(Catalog::default());
    catalog.put(&Sale { phase, ..sale.clone() });
    let mut settings = settings(Tier::Memory);
    settings.http.answer_deadline_ms = 60_000;
    let gates = GateHandle::new(catalog.clone(), Arc::default(), stock, &settings);
    (gates, catalog)
}

#[test]
fn a_process_without_gates_denies_nothing() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let sale = fixture.catalog.sale("sale").unwrap().sale.clone();
        assert!(is_placed(&fixture.buy_as(7, 7, 1).await));
        let reservation = fixture.ask(7, 7, 1);
        for phase in [Phase::Draft, Phase::Paused, Phase::Closed] {
            let is_draft = phase == Phase::Draft;
            // The buckets are loaded by another process and can be read.
            let (gates, catalog) = without_gates(&sale, phase, fixture.stock.clone());
            let catalog_sale = catalog.sale("sale").unwrap();
            let sku = catalog_sale.sku("sku").unwrap();
            assert_eq!(
                gates.refuse(&catalog_sale, &reservation, START_MS).await,
                Ok(None),
                "{phase:?}"
            );
            assert_eq!(gates.buy(reservation).await, BuyAnswer::Busy);
            let request =
                gates.record(sku, reservation.request, reservation.buyer).await.unwrap().unwrap();
            assert!(matches!(request.status(), RequestStatus::Ordered { .. }), "{request:?}");

            // No bucket can be read; a draft has none.
            let empty = Arc::new(MemoryStock::new(Counting::InStock));
            let (gates, _) = without_gates(&sale, phase, empty);
            let refusal = if is_draft {
                Ok(Some(Refusal::NotStarted))
            } else {
                Err(Error::NotLoaded(sku.no))
            };
            assert_eq!(
                gates.refuse(&catalog_sale, &reservation, START_MS).await,
                refusal,
                "{phase:?}"
            );
            let unknown = gates.record(sku, reservation.request, reservation.buyer).await;
            assert_eq!(unknown, if is_draft { Ok(None) } else { Err(Error::NotLoaded(sku.no)) });
        }
    });
}
