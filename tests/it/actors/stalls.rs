//! Periodic actors whose work hangs while their timers tick.

use std::sync::Arc;
use std::time::Duration;

use floodgate::actors::supervisor::{ChildReport, ChildState};
use floodgate::config::Tier;
use floodgate::db::Ledger;
use floodgate::domain::Phase;
use floodgate::lease::{Lease, LeaseGrant};
use floodgate::runtime::clock::{Clock, ManualClock};
use floodgate::tier::Backends;

use super::gates_failing::{Failing, OFFER};
use crate::support::faulty_ledger::Fault;
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::relays::{FakeLease, Mishaps};
use crate::support::rig::{Rig, START_MS, in_system, is_placed, settings};
use crate::support::wait::until;

impl Failing {
    fn report_of(&self, kind: &str) -> ChildReport {
        let reports = self.rig.actors.supervisor().report();
        reports.into_iter().find(|report| report.kind == kind).unwrap()
    }

    /// Moves the clock until actors of this kind have stalled so often.
    async fn stalled(&self, kind: &str, stalls: u64) {
        until("a stall", async || {
            self.rig.clock.advance(Duration::from_secs(1));
            (self.report_of(kind).stalls == stalls).then_some(())
        })
        .await;
    }
}

#[test]
fn a_keeper_whose_poll_hangs_is_replaced_and_its_poll_is_given_up() {
    in_system(async {
        let it = Failing::open(Tier::Memory, OFFER).await;
        it.stock.set(StockFault::Hangs);
        it.rig.actors.start_keeper(it.rig.desk.clone());
        for stalls in 1..=2 {
            // What a stalled keeper had under way, its lease included, is gone with it.
            until("one poll that hangs", async || (it.stock.num_waiting() == 1).then_some(()))
                .await;
            it.stalled("sale_loader", stalls).await;
        }
        it.stock.set(StockFault::None);
        let before = it.report_of("sale_loader").steps;
        until("polls of the next one", async || {
            let keeper = it.report_of("sale_loader");
            (keeper.state == ChildState::Up && keeper.steps > before + 2).then_some(())
        })
        .await;
        assert!(is_placed(&it.rig.buy(1).await));
    });
}

#[test]
fn a_look_that_hangs_keeps_no_sale_unknown() {
    in_system(async {
        let it = Failing::open(Tier::Memory, OFFER).await;
        it.stock.set(StockFault::Hangs);
        it.rig.actors.start_keeper(it.rig.desk.clone());
        until("a look that hangs", async || (it.stock.num_waiting() == 1).then_some(())).await;
        // Created by another process.
        let later = OFFER.draft("later", START_MS);
        it.rig.backends.ledger.create_sale(later, START_MS).await.unwrap().unwrap();
        until("the new sale", async || it.rig.catalog.sale("later").map(drop)).await;
        it.stock.set(StockFault::None);
    });
}

/// A keeper that loads, hangs, and may not be replaced: its process ends soon, and until then
/// nothing of it may renew the lease.
#[test]
fn the_lease_of_a_keeper_whose_load_hangs_passes_on() {
    const TTL: Duration = Duration::from_millis(60);
    in_system(async {
        let mut settings = settings(Tier::Memory);
        settings.supervisor.restarts_max = 0;
        settings.maintenance.lease_ttl_ms = 60;
        let clock = Arc::new(ManualClock::new(START_MS));
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let mut backends = Backends::embedded(Tier::Memory, ledger.clone(), &(clock.clone() as _));
        let stock = Arc::new(FaultyStock::new(backends.stock));
        let lease = Arc::new(FakeLease {
            holders: Arc::default(),
            clock: clock.clone(),
            mishaps: Mishaps::default(),
        });
        (backends.stock, backends.lease) = (stock.clone(), lease.clone());
        backends.is_shared = true;
        let rig = Rig::on(&settings, backends, clock.clone());
        rig.create(OFFER, START_MS - 1000).await;
        // Opened by another process.
        let sale = rig.catalog.sale("sale").unwrap().sale.clone();
        ledger.turn_sale(sale.id, sale.epoch, Phase::Open, START_MS).await.unwrap().unwrap();
        stock.set(StockFault::LoadWaits(rig.ask(1, 1, 1).sku));
        rig.actors.start_keeper(rig.desk.clone());
        until("a load that hangs", async || (stock.num_waiting() == 1).then_some(())).await;
        let taken = lease.hold("loader", "other", TTL).await.unwrap();
        assert!(matches!(taken, LeaseGrant::Taken { .. }), "{taken:?}");

        until("the end of the keeper", async || {
            clock.advance(Duration::from_secs(1));
            let reports = rig.actors.supervisor().report();
            let keeper = reports.into_iter().find(|report| report.kind == "sale_loader").unwrap();
            (keeper.state == ChildState::Down).then_some(())
        })
        .await;
        until("its load to be given up", async || (stock.num_waiting() == 0).then_some(())).await;
        clock.advance(TTL);
        let held = lease.hold("loader", "other", TTL).await.unwrap();
        assert!(held.is_held(clock.now()), "{held:?}");
    });
}

#[test]
fn a_teller_whose_reading_hangs_is_replaced() {
    in_system(async {
        let it = Failing::open(Tier::Ledger, OFFER).await;
        it.ledger.set(Fault::Frozen);
        it.stalled("stock_refresher", 1).await;
        it.ledger.set(Fault::None);
        until("the next one", async || {
            (it.report_of("stock_refresher").state == ChildState::Up).then_some(())
        })
        .await;
        assert!(is_placed(&it.rig.buy(1).await));
    });
}
