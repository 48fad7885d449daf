//! The crash point of the operators' verbs, by name.

use std::sync::Arc;

use floodgate::config::Tier;
use floodgate::db::Ledger;
use floodgate::domain::Phase;

use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{Offer, Rig, START_MS, UNLIMITED, in_system, is_placed, settings};

/// Crash point `turned_not_told`.
#[test]
fn turned_not_told_is_told_by_the_next_start() {
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(LyingLedger::new(Lie::Honest));
        let settings = settings(Tier::Memory);
        let offer = Offer { policy: UNLIMITED, stock: 5, buckets: 2 };
        let dying = Rig::open(&settings, ledger.clone(), offer).await;
        dying.desk.turn(&"sale".parse().unwrap(), Phase::Paused).await.unwrap();
        // The ledger opens the sale again, and nobody tells the buckets.
        let sale = "sale".parse().unwrap();
        ledger.turn_sale(sale, Phase::Open, START_MS).await.unwrap().unwrap();
        assert!(!is_placed(&dying.buy_as(1, 1, 1).await));

        let next = Rig::start(&settings, ledger);
        next.desk.restore().await.unwrap();
        assert!(is_placed(&next.buy_as(1, 1, 1).await));
        next.assert_holds().await;
    });
}
