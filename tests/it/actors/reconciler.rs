//! The reconciler, over an in-memory outbox and broker and in-memory watermarks.

use std::sync::Arc;
use std::time::Duration;

use floodgate::broker::{BrokerStatus, Route};
use floodgate::db::{DeadLetterStore, OrderWriter};
use floodgate::domain::{
    BucketKey, BucketNo, Currency, Epoch, Failure, LoaderToken, OrderIntent, Phase, RecordState,
    Refusal, Sale, Sku,
};
use floodgate::runtime::clock::Clock;
use floodgate::stock::Stock;

use crate::support::dead_letters::new_dead_letter;
use crate::support::harness::{UNLIMITED, in_system};
use crate::support::intents::pack;
use crate::support::offers;
use crate::support::reconcilers::{
    Consumers, FakeWatermarks, Process, reconciler, reconciler_with, watermarks,
};
use crate::support::relays::{SKU, Simulation};
use crate::support::wait::until;

/// Requests 1 to 10 are accepted and lost: no outbox, queue or ledger has them. Odd numbers are in
/// one bucket, even numbers in the other.
pub(super) async fn simulation_with_lost_requests() -> (Simulation, Arc<FakeWatermarks>) {
    let simulation = Simulation::new(2);
    simulation.lose(1..=10).await;
    let watermarks = watermarks(&simulation);
    (simulation, watermarks)
}

/// Runs two passes and advances the clock by `time`, `times` times; then runs two more passes.
pub(super) async fn run_passes(
    simulation: &Simulation,
    process: &Process,
    times: u32,
    time: Duration,
) {
    for _ in 0..times {
        process.passes(2).await;
        simulation.clock.advance(time);
    }
    process.passes(2).await;
}

/// Age at which every accepted request may be reconciled.
const RECONCILE_AGE: Duration = Duration::from_secs(6);
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Seconds after its acceptance within which a lost request is submitted.
pub(super) const SUBMIT_MAX_S: u32 = 16;

/// The requests that are orders, ascending: once for each order.
pub(super) async fn placed(simulation: &Simulation) -> Vec<u64> {
    let orders = offers::orders(simulation.ledger.as_ref(), SKU).await;
    let mut requests: Vec<u64> = orders.iter().map(|order| order.request.get()).collect();
    requests.sort_unstable();
    requests
}

/// Runs passes, one per second, until `num` requests are orders.
///
/// # Panics
/// After [`SUBMIT_MAX_S`].
pub(super) async fn until_placed(simulation: &Simulation, process: &Process, num: usize) {
    for _ in 0..SUBMIT_MAX_S {
        if placed(simulation).await.len() == num {
            break;
        }
        run_passes(simulation, process, 1, SECOND).await;
    }
    assert_eq!(placed(simulation).await.len(), num, "orders");
}

#[test]
fn lost_requests_are_placed_while_the_broker_is_down() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        simulation.queues.set_reach(BrokerStatus::Down);
        simulation.ledger.store_dead_letters(vec![new_dead_letter(&[4])], 1).await.unwrap();
        let process = reconciler(&simulation, &watermarks);
        run_passes(&simulation, &process, 4, SECOND).await;
        assert!(placed(&simulation).await.is_empty(), "too early");
        until_placed(&simulation, &process, 9).await;
        run_passes(&simulation, &process, 10, RECONCILE_AGE).await;
        assert_eq!(placed(&simulation).await, [1, 2, 3, 5, 6, 7, 8, 9, 10], "4 is a dead letter");
        assert_eq!(simulation.stock.num_unsettled(SKU).await, Ok(1));
        assert_eq!(process.metric("floodgate_reconcile_submitted_total"), 9);
    });
}

#[test]
fn requests_on_their_way_are_not_submitted() {
    in_system(async {
        for stage in ["outbox", "claimed", "queue", "unreadable watermark"] {
            let (simulation, watermarks) = simulation_with_lost_requests().await;
            match stage {
                "outbox" => simulation.accept(1..=10),
                "claimed" => {
                    simulation.accept(1..=10);
                    simulation.store.claim_all("gone/0");
                }
                "queue" => watermarks.set(0, Consumers::At(simulation.clock.wall_ms() + 10)),
                _ => watermarks.set(0, Consumers::Unreadable),
            }
            let process = reconciler(&simulation, &watermarks);
            run_passes(&simulation, &process, 12, RECONCILE_AGE).await;
            assert!(placed(&simulation).await.is_empty(), "{stage}");
            match stage {
                "outbox" | "claimed" => simulation.store.clear(),
                _ => watermarks.set(0, Consumers::Idle),
            }
            until_placed(&simulation, &process, 10).await;
        }
    });
}

#[test]
fn a_consumer_that_stays_behind_is_reported() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        let process = reconciler(&simulation, &watermarks);
        watermarks.set(0, Consumers::At(simulation.clock.wall_ms() - 1));
        run_passes(&simulation, &process, 3, RECONCILE_AGE).await;
        assert_eq!(process.blocked("consumers_behind"), 0, "not blocked for long enough");
        run_passes(&simulation, &process, 6, RECONCILE_AGE).await;
        assert_eq!(process.blocked("consumers_behind"), 2);
        watermarks.set(0, Consumers::Idle);
        run_passes(&simulation, &process, 4, RECONCILE_AGE).await;
        until_placed(&simulation, &process, 10).await;
        until("the gauge", || async { (process.blocked("consumers_behind") == 0).then_some(()) })
            .await;
    });
}

#[test]
fn traffic_and_a_damaged_outbox_stop_nothing_elsewhere() {
    // The first bucket of the walk and the last one.
    for damaged in [2, 1] {
        in_system(with_damaged_bucket(damaged));
    }
}

async fn with_damaged_bucket(damaged: u64) {
    let (simulation, watermarks) = simulation_with_lost_requests().await;
    let healthy = 3 - damaged;
    let bucket = simulation.bucket_of(damaged);
    simulation.store.damage(bucket);
    let process = reconciler(&simulation, &watermarks);
    for request in (20 + healthy..80).step_by(2) {
        // Each second one more request is sold, leaves the outbox, and is committed a second later.
        watermarks.set(0, Consumers::At(simulation.clock.wall_ms() - 1_000));
        simulation.store.clear();
        let sold =
            OrderIntent { placed_at_ms: simulation.clock.wall_ms(), ..simulation.intent(request) };
        simulation.store.put(simulation.bucket_of(request), pack(&sold).into());
        run_passes(&simulation, &process, 1, SECOND).await;
    }
    let lost: Vec<u64> = (1..=10).filter(|request| request % 2 == healthy % 2).collect();
    assert_eq!(placed(&simulation).await, lost);
    assert_eq!(process.blocked("outbox"), 1);
    simulation.store.mend(bucket);
    watermarks.set(0, Consumers::Idle);
    until_placed(&simulation, &process, 10).await;
    until("the gauge", || async { (process.blocked("outbox") == 0).then_some(()) }).await;
}

#[test]
fn an_order_queue_without_a_consumer_stops_its_own_buckets_only() {
    in_system(async {
        let mut simulation = Simulation::new(2);
        simulation.settings.amqp.queues = 2;
        simulation.lose(1..=10).await;
        let watermarks = watermarks(&simulation);
        let Route::Orders(queue) = Route::orders_of(simulation.bucket_of(1), 2) else { panic!() };
        watermarks.set(queue, Consumers::None);
        let process = reconciler(&simulation, &watermarks);
        until_placed(&simulation, &process, 5).await;
        assert!(placed(&simulation).await.iter().all(|request| request % 2 == 0));
        assert_eq!(process.blocked("no_consumer"), 1);
        watermarks.set(queue, Consumers::Idle);
        until_placed(&simulation, &process, 10).await;
        until("the gauge", || async { (process.blocked("no_consumer") == 0).then_some(()) }).await;
    });
}

/// Another SKU in both stock and ledger, in one bucket, with enough units for every request.
pub(super) async fn sku_of_both(simulation: &Simulation) -> Arc<Sku> {
    let sku = offers::offer(simulation.ledger.as_ref(), "both", UNLIMITED, 100).await;
    let sku = Arc::new(Sku { buckets: 1, ..sku });
    simulation.catalog.put(&Sale {
        no: sku.no.0,
        id: "both".parse().unwrap(),
        title: "Sale".to_owned(),
        starts_at_ms: 0,
        ends_at_ms: i64::MAX,
        closed_at_ms: None,
        phase: Phase::Open,
        epoch: Epoch(1),
        currency: Currency::default(),
        ticket_required: false,
        retention: floodgate::domain::Retention::default(),
        skus: vec![Arc::clone(&sku)],
    });
    let loading = simulation.stock.load(sku.clone(), LoaderToken(1)).await.unwrap();
    loading.publish(sku.initial, Phase::Open, Epoch(1)).await.unwrap();
    sku
}

pub(super) async fn reserve(simulation: &Simulation, sku: &Sku, request: u64) -> OrderIntent {
    let (request, buyer) = (offers::request(request), offers::buyer(request));
    let intent = sku.intent(request, buyer, Epoch(1), 2, simulation.clock.wall_ms());
    let key = BucketKey { sku: sku.no, bucket: BucketNo(0) };
    simulation.stock.reserve(key, vec![intent]).await.unwrap();
    intent
}

#[test]
fn results_in_the_ledger_are_written_to_their_bucket_without_any_consumer() {
    in_system(async {
        let simulation = Simulation::new(1);
        let watermarks = watermarks(&simulation);
        watermarks.set(0, Consumers::None);
        let sku = sku_of_both(&simulation).await;
        let (ordered, refused) =
            (reserve(&simulation, &sku, 1).await, reserve(&simulation, &sku, 2).await);
        assert!(simulation.ledger.place(vec![ordered]).await.unwrap().is_some());
        let failure = Failure {
            request: refused.request,
            sku: sku.no,
            buyer: refused.buyer,
            quantity: 2,
            reason: Refusal::Ended,
            recorded_at_ms: 7,
        };
        simulation.ledger.record_failures(vec![failure]).await.unwrap();
        let process = reconciler(&simulation, &watermarks);
        process.passes(3).await;
        assert_eq!(simulation.stock.num_unsettled(sku.no).await, Ok(2), "too early");
        run_passes(&simulation, &process, 2, RECONCILE_AGE).await;
        let settled =
            || async { (simulation.stock.num_unsettled(sku.no).await == Ok(0)).then_some(()) };
        until("results", settled).await;
        let key = BucketKey { sku: sku.no, bucket: BucketNo(0) };
        let status = async |request| {
            simulation.stock.record(key, request, None).await.unwrap().map(|found| found.state)
        };
        assert!(matches!(status(ordered.request).await, Some(RecordState::Ordered { .. })));
        assert!(matches!(status(refused.request).await, Some(RecordState::Failed(Refusal::Ended))));
        assert_eq!(simulation.stock.left(sku.no), 98, "the refused units were returned once");
        assert_eq!(process.metric("floodgate_reconcile_matched_total"), 2);
        assert_eq!(process.metric("floodgate_reconcile_submitted_total"), 0);
    });
}

#[test]
fn two_at_once_place_each_request_once() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        let sku = sku_of_both(&simulation).await;
        let ordered = reserve(&simulation, &sku, 50).await;
        simulation.ledger.place(vec![ordered]).await.unwrap();
        let first = reconciler_with(&simulation, &watermarks, &Arc::default());
        let second = reconciler_with(&simulation, &watermarks, &Arc::default());
        for _ in 0..SUBMIT_MAX_S {
            first.passes(2).await;
            second.passes(2).await;
            simulation.clock.advance(SECOND);
        }
        until_placed(&simulation, &first, 10).await;
        run_passes(&simulation, &first, 5, RECONCILE_AGE).await;
        run_passes(&simulation, &second, 5, RECONCILE_AGE).await;
        assert_eq!(placed(&simulation).await, (1..=10).collect::<Vec<_>>());
        assert_eq!(simulation.stock.num_unsettled(SKU).await, Ok(0));
        assert_eq!(simulation.stock.num_unsettled(sku.no).await, Ok(0));
        assert_eq!(simulation.stock.left(sku.no), 98);
    });
}

#[test]
fn one_works_at_a_time_and_the_next_begins_when_it_stops() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        let first = reconciler(&simulation, &watermarks);
        first.passes(1).await;
        let second = reconciler(&simulation, &watermarks);
        for _ in 0..10 {
            first.passes(2).await;
            second.passes(2).await;
            // Less than the TTL of the lease.
            simulation.clock.advance(Duration::from_millis(10));
        }
        first.quiet().await;
        until_placed(&simulation, &second, 10).await;
        assert_eq!(first.metric("floodgate_reconcile_submitted_total"), 0);
        // Counted at the end of the pass.
        second.passes(1).await;
        assert_eq!(second.metric("floodgate_reconcile_submitted_total"), 10);
        second.quiet().await;
        assert!(simulation.holders.lock().is_empty());
    });
}

#[test]
fn a_sale_that_takes_no_orders_any_more_is_reconciled_too() {
    in_system(async {
        let (simulation, watermarks) = simulation_with_lost_requests().await;
        simulation.offer(SKU, 2, Phase::Closed);
        let process = reconciler(&simulation, &watermarks);
        until_placed(&simulation, &process, 10).await;
    });
}
