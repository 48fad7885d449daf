//! Periodic actors whose current operation hangs while their timers still fire.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::Tier;
use floodgate::db::SaleStore;
use floodgate::domain::Phase;
use floodgate::lease::{Lease, LeaseGrant};
use floodgate::runtime::clock::{Clock, ManualClock};
use floodgate::runtime::progress::{ChildReport, ChildState};
use floodgate::tier::Backends;

use super::gates_failing::{Failing, OFFER};
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::harness::{Harness, START_MS, in_system, is_placed, settings};
use crate::support::relays::{FakeLease, InjectedFaults};
use crate::support::wait::until;

impl Failing {
    fn report_of(&self, kind: &str) -> ChildReport {
        let reports = self.harness.actors.supervisor.report();
        reports.into_iter().find(|report| report.kind == kind).unwrap()
    }

    /// Advances the clock until the supervisor has counted `stalls` stalls of this kind of actor.
    async fn stalled(&self, kind: &str, stalls: u64) {
        until("a stall", async || {
            self.harness.clock.advance(Duration::from_secs(1));
            (self.report_of(kind).stalls == stalls).then_some(())
        })
        .await;
    }
}

#[test]
fn a_collector_whose_poll_hangs_is_replaced_and_its_poll_abandoned() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        fixture.stock.set(StockFault::Hangs);
        fixture.actors.start_sale_loader(fixture.sales.clone());
        for stalls in 1..=2 {
            // The supervisor drops a stalled loader's operation in progress, lease included.
            until("one hanging poll", async || (fixture.stock.num_waiting() == 1).then_some(()))
                .await;
            fixture.stalled("sale_loader", stalls).await;
        }
        fixture.stock.set(StockFault::None);
        let before = fixture.report_of("sale_loader").steps;
        until("polls of the replacement", async || {
            let loader = fixture.report_of("sale_loader");
            (loader.state == ChildState::Up && loader.steps > before + 2).then_some(())
        })
        .await;
        assert!(is_placed(&fixture.buy(1).await));
    });
}

#[test]
fn a_poll_that_hangs_keeps_no_sale_unknown() {
    in_system(async {
        let fixture = Failing::open(Tier::Memory, OFFER).await;
        fixture.stock.set(StockFault::Hangs);
        fixture.actors.start_sale_loader(fixture.sales.clone());
        until("a hanging poll", async || (fixture.stock.num_waiting() == 1).then_some(())).await;
        // Created by another process.
        let later = OFFER.draft("later", START_MS);
        fixture.backends.ledger.create_sale(later, START_MS).await.unwrap().unwrap();
        until("the new sale in the catalog", async || fixture.catalog.sale("later").map(drop))
            .await;
        fixture.stock.set(StockFault::None);
    });
}

/// The loader hangs in a load and its restart budget is 0. Until its process exits, no remaining
/// task of the loader may renew the lease.
#[test]
fn the_lease_of_a_loader_that_hangs_passes_on() {
    const TTL: Duration = Duration::from_millis(60);
    in_system(async {
        let mut settings = settings(Tier::Memory);
        settings.supervisor.restarts_max = 0;
        settings.maintenance.lease_ttl_ms = 60;
        let clock = Arc::new(ManualClock::new(START_MS));
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let mut backends = Backends::embedded(Tier::Memory, ledger.clone(), &(clock.clone() as _));
        let stock = Arc::new(FaultyStock::new(backends.stock));
        let lease = Arc::new(FakeLease {
            holders: Arc::default(),
            clock: clock.clone(),
            faults: InjectedFaults::default(),
        });
        (backends.stock, backends.lease) = (stock.clone(), lease.clone());
        backends.is_shared = true;
        let harness = Harness::on(&settings, backends, clock.clone());
        harness.create(OFFER, START_MS - 1000).await;
        // Opened by another process.
        let sale = harness.catalog.sale("sale").unwrap();
        ledger
            .set_sale_phase(sale.id.clone(), sale.epoch, Phase::Open, START_MS, None)
            .await
            .unwrap()
            .unwrap();
        stock.set(StockFault::LoadWaits(harness.ask(1, 1, 1).sku));
        harness.actors.start_sale_loader(harness.sales.clone());
        until("a hanging load", async || (stock.num_waiting() == 1).then_some(())).await;
        let taken = lease.hold("loader", "other", TTL).await.unwrap();
        assert!(matches!(taken, LeaseGrant::Taken { .. }), "{taken:?}");

        until("the loader to be down", async || {
            clock.advance(Duration::from_secs(1));
            let reports = harness.actors.supervisor.report();
            let loader = reports.into_iter().find(|report| report.kind == "sale_loader").unwrap();
            (loader.state == ChildState::Down).then_some(())
        })
        .await;
        until("the hanging load to be dropped", async || (stock.num_waiting() == 0).then_some(()))
            .await;
        clock.advance(TTL);
        let held = lease.hold("loader", "other", TTL).await.unwrap();
        assert!(held.is_held(clock.now()), "{held:?}");
    });
}

#[test]
fn a_stock_refresher_whose_read_hangs_is_replaced() {
    in_system(async {
        let fixture = Failing::open(Tier::Ledger, OFFER).await;
        fixture.ledger.set(Fault::Frozen);
        fixture.stalled("stock_refresher", 1).await;
        fixture.ledger.set(Fault::None);
        until("the replacement", async || {
            (fixture.report_of("stock_refresher").state == ChildState::Up).then_some(())
        })
        .await;
        assert!(is_placed(&fixture.buy(1).await));
    });
}
