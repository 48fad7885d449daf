//! The gate handle of a process whose gates run in another one.

use std::sync::Arc;

use floodgate::actors::GateHandle;
use floodgate::actors::stock_gate::GateDirectory;
use floodgate::config::Tier;
use floodgate::domain::{Counting, Epoch, Phase, RecordState, Refusal, Sale};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::ManualClock;
use floodgate::services::catalog::Catalog;
use floodgate::stock::{Error, MemoryStock, Stock};

use super::gates_failing::{Failing, OFFER};
use crate::support::harness::{START_MS, in_system, is_placed, settings};

/// The gate handle of a process without gates, with the sale in its catalog in `phase`.
fn without_gates(sale: &Sale, phase: Phase, stock: Arc<dyn Stock>) -> (GateHandle, Arc<Catalog>) {
    let catalog = Arc::new(Catalog::default());
    let epoch = if phase == Phase::Draft { Epoch(0) } else { sale.epoch };
    catalog.put(&Sale { phase, epoch, ..sale.clone() });
    (handle(&catalog, Arc::default(), stock), catalog)
}

fn handle(
    catalog: &Arc<Catalog>,
    directory: Arc<GateDirectory>,
    stock: Arc<dyn Stock>,
) -> GateHandle {
    let mut settings = settings(Tier::Memory);
    settings.http.answer_deadline_ms = 60_000;
    let clock = Arc::new(ManualClock::new(START_MS));
    GateHandle::new(catalog.clone(), directory, stock, clock, &settings)
}

fn is_replayed(answer: &BuyAnswer) -> bool {
    matches!(
        answer,
        BuyAnswer::Queued { replayed: true }
            | BuyAnswer::Ordered { replayed: true, .. }
            | BuyAnswer::Refused { replayed: true, .. }
    )
}

#[test]
fn a_process_without_gates_denies_nothing() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let sale = fixture.catalog.sale("sale").unwrap();
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
            let repeated = gates.buy(reservation).await;
            assert!(is_placed(&repeated) && is_replayed(&repeated), "{repeated:?}");
            assert_eq!(gates.buy(fixture.ask(8, 8, 1)).await, BuyAnswer::Busy);
            let request =
                gates.record(sku, reservation.request, reservation.buyer).await.unwrap().unwrap();
            assert!(matches!(request.state, RecordState::Ordered { .. }), "{request:?}");

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

/// Also in a process without gates.
#[test]
fn before_the_start_buckets_that_are_not_loaded_have_accepted_nothing() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        let sale = fixture.catalog.sale("sale").unwrap();
        let reservation = fixture.ask(7, 7, 1);
        let (request, buyer) = (reservation.request, reservation.buyer);
        let phases = [
            (Phase::Open, Refusal::NotStarted),
            (Phase::Paused, Refusal::NotStarted),
            (Phase::Closed, Refusal::Ended),
        ];
        for (phase, refusal) in phases {
            for (has_gates, is_early) in
                [(true, true), (false, true), (true, false), (false, false)]
            {
                let starts_at_ms = START_MS + i64::from(is_early);
                let catalog = Arc::new(Catalog::default());
                catalog.put(&Sale { phase, starts_at_ms, ..(*sale).clone() });
                let sale = catalog.sale("sale").unwrap();
                let sku = sale.sku("sku").unwrap();
                let directory = Arc::new(GateDirectory::default());
                if has_gates {
                    directory.open(sku.no, Vec::new);
                }
                let stock = Arc::new(MemoryStock::new(Counting::InStock));
                let gates = handle(&catalog, directory, stock);
                let found =
                    (gates.record(sku, request, buyer).await, gates.owned(sku, buyer).await);
                let refused = gates.refuse(&sale, &reservation, START_MS).await;
                let case = format!("{phase:?}, gates: {has_gates}, early: {is_early}");
                if is_early {
                    assert_eq!(found, (Ok(None), Ok(0)), "{case}");
                    assert_eq!(refused, Ok(Some(refusal)), "{case}");
                } else {
                    let error = || Error::NotLoaded(sku.no);
                    assert_eq!(found, (Err(error()), Err(error())), "{case}");
                }
            }
        }
    });
}
