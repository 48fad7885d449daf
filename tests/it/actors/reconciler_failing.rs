//! The reconciler over a stock or a ledger that fails for some buckets or some results: the others
//! get theirs; and with a wall clock that is set back.

use std::sync::Arc;

use floodgate::db::OrderWriter;
use floodgate::domain::{BucketKey, BucketNo, RequestId};
use floodgate::runtime::clock::Clock;
use floodgate::stock::Stock;

use super::reconciler::{
    SECOND, placed, reserve, run_passes, simulation_with_lost_requests, sku_of_both, until_placed,
};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::harness::in_system;
use crate::support::reconcilers::{Process, reconciler, reconciler_on, watermarks};
use crate::support::relays::Simulation;

/// The stock of a simulation, with this fault.
fn with_fault(simulation: &Simulation, fault: StockFault) -> Arc<FaultyStock> {
    let stock = Arc::new(FaultyStock::new(simulation.stock.clone()));
    stock.set(fault);
    stock
}

/// Lost requests of two buckets are all placed in spite of this fault.
fn assert_placed_with(fault: StockFault) {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        let stock = with_fault(&simulation, fault);
        let process = reconciler_on(&simulation, &watermarks, stock);
        until_placed(&simulation, &process, 10).await;
    });
}

/// One damaged bucket is enough that the requests of its SKU cannot be counted.
#[test]
fn lost_requests_of_a_sku_that_cannot_be_counted_are_placed() {
    assert_placed_with(StockFault::CountFails);
}

#[test]
fn a_bucket_that_uses_up_every_pass_leaves_the_next_pass_to_the_others() {
    assert_placed_with(StockFault::PagesAreLarge);
}

/// Places four requests that stay queued in one bucket; returns the bucket and the second request.
async fn place_four(simulation: &Simulation) -> (BucketKey, RequestId) {
    let sku = sku_of_both(simulation).await;
    let mut intents = Vec::new();
    for request in 1..=4 {
        intents.push(reserve(simulation, &sku, request).await);
    }
    let second = intents[1].request;
    assert!(simulation.ledger.place(intents).await.unwrap().is_some());
    (BucketKey { sku: sku.no, bucket: BucketNo(0) }, second)
}

/// The requests that are still queued in a bucket after some passes.
async fn queued_after(
    simulation: &Simulation,
    process: &Process,
    key: BucketKey,
) -> Vec<RequestId> {
    run_passes(simulation, process, 3, SECOND * 6).await;
    let queued = simulation.stock.unsettled(key).await.unwrap();
    queued.iter().map(|intent| intent.request).collect()
}

#[test]
fn a_result_that_cannot_be_written_keeps_no_other_result_of_its_bucket_unwritten() {
    in_system(async {
        let simulation = Simulation::new(1);
        let watermarks = watermarks(&simulation);
        let (key, damaged) = place_four(&simulation).await;
        let stock = with_fault(&simulation, StockFault::Damaged(damaged));
        let process = reconciler_on(&simulation, &watermarks, stock);
        assert_eq!(queued_after(&simulation, &process, key).await, [damaged]);
        assert_eq!(process.blocked("results"), 1);
    });
}

#[test]
fn an_unreadable_row_of_the_ledger_keeps_no_other_result_of_its_bucket_unwritten() {
    in_system(async {
        let simulation = Simulation::new(1);
        let watermarks = watermarks(&simulation);
        let (key, unreadable) = place_four(&simulation).await;
        simulation.ledger.damage(unreadable);
        let process = reconciler(&simulation, &watermarks);
        assert_eq!(queued_after(&simulation, &process, key).await, [unreadable]);
        assert_eq!(process.blocked("ledger"), 1);
    });
}

#[test]
fn a_wall_clock_that_steps_back_delays_no_walk() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        let process = reconciler(&simulation, &watermarks);
        // These requests stay young: the clock does not reach their time again.
        process.passes(1).await;
        simulation.clock.set_wall_ms(simulation.clock.wall_ms() - 3_600_000);
        simulation.reserve([11]).await;
        until_placed(&simulation, &process, 1).await;
        assert_eq!(placed(&simulation).await, [11]);
    });
}
