//! Units that ledger and buckets count differently.

use std::time::Duration;

use floodgate::actors::periodic::Task;
use floodgate::config::Tier;
use floodgate::stock::Stock;

use super::unit_returns::Fixture;
use crate::support::harness::in_system;
use crate::support::wait::until;

/// Each cancelled order is in the ledger and not yet in its bucket when the units are compared.
#[test]
fn buckets_that_changed_between_two_comparisons_are_not_loaded() {
    in_system(async {
        let fixture = Fixture::open(Tier::Gate).await;
        let (sku, num_loads) = (fixture.sku().no, fixture.stock.loads().len());
        let returner = fixture.returner();
        let num_loads_after_sync = async || {
            until("settled orders", async || {
                (fixture.stock.num_unsettled(sku).await.unwrap() == 0).then_some(())
            })
            .await;
            fixture.harness.clock.advance(Duration::from_secs(10));
            drop(fixture.harness.sync().await);
            fixture.stock.loads().len() - num_loads
        };
        for buyer in 1..=3 {
            returner.run(&()).await.unwrap();
            fixture.sell(buyer..=buyer).await;
            fixture.cancel(buyer).await;
            assert_eq!(num_loads_after_sync().await, 0, "buyer {buyer}");
        }
        until("a load", async || (num_loads_after_sync().await > 0).then_some(())).await;
    });
}
