//! Requests that were queued for longer than their SKU allows: gates and the reconciler end them.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::Tier;
use floodgate::db::OrderWriter;
use floodgate::domain::{Epoch, RecordState, Refusal, Sale};
use floodgate::runtime::clock::Clock;
use floodgate::runtime::clock_guard::CALM;
use floodgate::stock::Stock;

use super::cancelling::{Queue, draft};
use crate::support::faulty_ledger::Fault;
use crate::support::harness::{in_system, is_placed};
use crate::support::reconcilers::{Consumers, Process, reconciler, watermarks};
use crate::support::relays::{SKU, Simulation};
use crate::support::wait::until;

const TIMEOUT: Duration = Duration::from_secs(60);
const TIMED_OUT: Option<RecordState> = Some(RecordState::Failed(Refusal::QueueTimeout));
const QUEUED: Option<RecordState> = Some(RecordState::Queued { epoch: Epoch(1) });

/// A tier whose requests may be queued for a minute.
async fn timing_out(tier: Tier) -> Queue {
    let mut draft = draft();
    draft.skus[0].queue_timeout_s = 60;
    Queue::open(tier, draft).await
}

/// Waits for some more passes of the gates.
async fn pass(queue: &Queue) {
    let steps = || {
        let reports = queue.harness.actors.supervisor.report();
        reports.iter().filter(|it| it.kind == "stock_gate").map(|it| it.steps).min()
    };
    let before = steps();
    until("passes of the gates", async || (steps() > before.map(|n| n + 8)).then_some(())).await;
}

/// Waits for the order of request 1.
async fn until_ordered(queue: &Queue) {
    until("an order", async || {
        matches!(queue.state(1).await, Some(RecordState::Ordered { .. })).then_some(())
    })
    .await;
}

#[test]
fn a_request_that_was_queued_for_too_long_ends_by_itself() {
    for tier in [Tier::Memory, Tier::Gate] {
        in_system(async {
            let queue = timing_out(tier).await;
            let before = queue.left().await;
            queue.queue(&[1, 2]).await;
            queue.ledger.set(Fault::Down);
            queue.harness.clock.advance(TIMEOUT + Duration::from_secs(1));
            pass(&queue).await;
            assert_eq!(queue.state(1).await, QUEUED, "{tier:?}: the ledger is away");
            assert_eq!(queue.left().await, before - 2);
            queue.ledger.set(Fault::None);
            until("timed-out requests", async || {
                let both = (queue.state(1).await, queue.state(2).await);
                (both == (TIMED_OUT, TIMED_OUT)).then_some(())
            })
            .await;
            assert_eq!(queue.left().await, before, "{tier:?}");
            queue.harness.actors.breaker.close();
            assert!(is_placed(&queue.harness.buy_as(101, 1, 1).await), "{tier:?}: again");
            assert_eq!((queue.drained().await, queue.left().await), (1, before - 1), "{tier:?}");
        });
    }
}

#[test]
fn a_request_that_may_wait_becomes_an_order() {
    in_system(async {
        for seconds in [0, 60] {
            let mut draft = draft();
            draft.skus[0].queue_timeout_s = seconds;
            let queue = Queue::open(Tier::Memory, draft).await;
            queue.queue(&[1]).await;
            queue.ledger.set(Fault::Down);
            queue.harness.clock.advance(TIMEOUT.checked_sub(Duration::from_secs(2)).unwrap());
            pass(&queue).await;
            queue.ledger.set(Fault::None);
            // `drained` moves the clock: before, the request has its order.
            until_ordered(&queue).await;
            assert_eq!(queue.drained().await, 1, "{seconds} s");
        }
    });
}

/// The ledger has its order, and the bucket did not take that result.
#[test]
fn an_order_that_its_bucket_calls_queued_is_settled_after_the_timeout() {
    in_system(async {
        let queue = timing_out(Tier::Memory).await;
        queue.queue(&[1]).await;
        queue.ledger.place(vec![queue.intent(1, 1)]).await.unwrap();
        assert_eq!(queue.state(1).await, QUEUED);
        queue.harness.clock.advance(TIMEOUT + Duration::from_secs(1));
        until_ordered(&queue).await;
    });
}

/// The wall clock of the process jumps, and that of the ledger does not.
#[test]
fn no_request_times_out_by_a_clock_that_jumped() {
    in_system(async {
        let queue = timing_out(Tier::Memory).await;
        queue.queue(&[1]).await;
        let clock = &queue.harness.clock;
        clock.set_wall_ms(clock.wall_ms() + 3_600_000);
        until_ordered(&queue).await;
    });
}

/// The clocks of process and ledger step together, and keep their pace from then on.
#[test]
fn a_step_of_the_clock_is_no_time_in_the_queue() {
    in_system(async {
        let mut draft = draft();
        draft.skus[0].queue_timeout_s = 600;
        let queue = Queue::open(Tier::Memory, draft).await;
        let (clock, requests) = (&queue.harness.clock, &queue.harness.actors.requests);
        let waiting = vec![queue.intent(1, 1)];
        let not_ended = async || {
            let mut queued = waiting.clone();
            requests.end_expired(&queue.sku(), &mut queued).await.unwrap();
            queued
        };
        clock.set_wall_ms(clock.wall_ms() + 3_600_000);
        assert_eq!(not_ended().await, waiting, "the clock is not trusted");
        clock.advance(CALM);
        assert_eq!(not_ended().await, waiting, "it waited for five minutes");
        clock.advance(Duration::from_secs(301));
        assert_eq!(not_ended().await, []);
    });
}

/// Accepted requests in tier `pipeline` that the consumers do not reach, of a SKU that lets
/// requests wait for a minute.
async fn waiting(consumers: Consumers) -> (Simulation, Process) {
    let simulation = Simulation::new(2);
    simulation.ledger.follow(simulation.clock.clone());
    let (sale, sku) = simulation.catalog.of_sku(SKU).unwrap();
    let mut sku = (*sku).clone();
    sku.queue_timeout_s = 60;
    simulation.catalog.put(&Sale { skus: vec![Arc::new(sku)], ..(*sale).clone() });
    simulation.lose(1..=10).await;
    let watermarks = watermarks(&simulation);
    watermarks.set(0, consumers);
    let process = reconciler(&simulation, &watermarks);
    (simulation, process)
}

async fn state(simulation: &Simulation, request: u64) -> Option<RecordState> {
    let (key, id) = (simulation.bucket_of(request), simulation.intent(request).request);
    simulation.stock.record(key, id, None).await.unwrap().map(|found| found.state)
}

#[test]
fn the_reconciler_ends_what_waits_for_too_long_wherever_it_is() {
    for consumers in [Consumers::None, Consumers::Unreadable, Consumers::At(1)] {
        in_system(async {
            let (simulation, process) = waiting(consumers).await;
            simulation.clock.advance(TIMEOUT.checked_sub(Duration::from_secs(1)).unwrap());
            simulation.reserve(11..=12).await;
            process.passes(4).await;
            for request in 1..=12 {
                assert_eq!(state(&simulation, request).await, QUEUED, "{consumers:?}");
            }
            simulation.clock.advance(Duration::from_secs(10));
            until("timed-out requests", async || {
                simulation.clock.advance(Duration::from_secs(1));
                process.passes(2).await;
                (state(&simulation, 10).await == TIMED_OUT).then_some(())
            })
            .await;
            process.passes(4).await;
            for request in 1..=12 {
                let expected = if request > 10 { QUEUED } else { TIMED_OUT };
                assert_eq!(state(&simulation, request).await, expected, "{request}");
            }
            let ended = process.metric("floodgate_requests_ended_total{reason=\"queue-timeout\"}");
            assert_eq!(ended, 10, "{consumers:?}");
        });
    }
}

#[test]
fn the_reconciler_ends_nothing_by_a_clock_that_jumped() {
    in_system(async {
        let (simulation, process) = waiting(Consumers::None).await;
        let (clock, jumped_ms) = (&simulation.clock, 3_600_000);
        clock.set_wall_ms(clock.wall_ms() + jumped_ms);
        process.passes(6).await;
        assert_eq!(state(&simulation, 1).await, QUEUED);
        clock.set_wall_ms(clock.wall_ms() - jumped_ms);
        clock.advance(TIMEOUT * 2);
        until("timed-out requests", async || {
            (state(&simulation, 1).await == TIMED_OUT).then_some(())
        })
        .await;
    });
}
