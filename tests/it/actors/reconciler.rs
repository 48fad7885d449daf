//! The reconciler, over an outbox, a broker and watermarks in memory.

use std::sync::Arc;
use std::time::Duration;

use floodgate::broker::{BrokerStatus, Route};
use floodgate::db::{BlindInsert, Ledger};
use floodgate::domain::{
    BucketNo, Epoch, Failure, OrderIntent, Phase, Refusal, RequestId, RequestStatus, Reservation,
    Sale, Sku, TraceId,
};
use floodgate::messages::envelope;
use floodgate::outbox::DeadEntry;
use floodgate::redis::scripts::intent;
use floodgate::runtime::clock::Clock;
use floodgate::stock::{BucketKey, LoaderToken, Stock};

use crate::support::letters::letter;
use crate::support::offers;
use crate::support::reconcilers::{
    Consumers, FakeWatermarks, Process, reconciler, reconciler_with, watermarks,
};
use crate::support::relays::{SKU, World};
use crate::support::rig::{UNLIMITED, in_system};
use crate::support::wait::until;

/// Requests 1 to 10, accepted and in no stage; two buckets, one for odd and one for even numbers.
async fn world_that_lost() -> (World, Arc<FakeWatermarks>) {
    let mut world = World::new(2);
    world.settings.outbox.envelope_max = 3;
    world.lose(1..=10).await;
    let watermarks = watermarks(&world);
    (world, watermarks)
}

/// Lets some passes end, then time pass, so often.
async fn rest(world: &World, process: &Process, times: u32, time: Duration) {
    for _ in 0..times {
        process.passes(2).await;
        world.clock.advance(time);
    }
    process.passes(2).await;
}

/// So long after the acceptance everything is old enough.
const AGED: Duration = Duration::from_secs(6);
const SECOND: Duration = Duration::from_secs(1);

/// So many seconds after its acceptance a lost request has been published again.
const FOUND_IN: u32 = 16;

/// Lets time pass until so many requests were published again, and no longer.
async fn until_kept(world: &World, process: &Process, num: usize) {
    for _ in 0..FOUND_IN {
        if world.queues.kept().len() == num {
            break;
        }
        rest(world, process, 1, SECOND).await;
    }
    assert_eq!(world.queues.kept().len(), num, "of the lost requests");
}

#[test]
fn what_is_lost_is_published_again_once() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        world.ledger.keep_dead_letters(vec![letter(&[4])], 1).await.unwrap();
        let process = reconciler(&world, &watermarks);
        rest(&world, &process, 4, SECOND).await;
        assert!(world.queues.kept().is_empty(), "too early");
        until_kept(&world, &process, 9).await;
        let kept = world.queues.kept();
        assert!(!kept.contains_key(&4), "a dead letter is an end");
        assert!(kept.values().all(|copies| *copies == 1), "{kept:?}");
        for message in world.queues.messages() {
            assert_eq!(message.route, Route::Orders(0));
            assert!(envelope::requests_in(&message.body).len() <= 3, "as envelopes are made");
        }
        assert_eq!(process.metric("floodgate_reconcile_republished_total"), 9);
        // The copies wait in their queue: however long that takes, one is enough.
        watermarks.set(0, Consumers::At(world.clock.wall_ms() - 3_000));
        rest(&world, &process, 10, AGED).await;
        assert!(world.queues.kept().values().all(|copies| *copies == 1));
        // They are lost, too.
        watermarks.set(0, Consumers::Idle);
        rest(&world, &process, 3, SECOND).await;
        let copied_again =
            || async { world.queues.kept().values().all(|copies| *copies == 2).then_some(()) };
        until("second copies", copied_again).await;
    });
}

#[test]
fn what_is_lost_again_and_again_is_published_more_and_more_seldom() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        let process = reconciler(&world, &watermarks);
        rest(&world, &process, 120, SECOND).await;
        let kept = world.queues.kept();
        assert!(kept.values().all(|copies| (3..=6).contains(copies)), "{kept:?}");
    });
}

#[test]
fn what_is_on_its_way_is_not_published_again() {
    in_system(async {
        for way in ["outbox", "hand", "queue", "unreadable watermark"] {
            let (world, watermarks) = world_that_lost().await;
            match way {
                "outbox" => world.accept(1..=10),
                "hand" => {
                    world.accept(1..=10);
                    world.store.claim_all("gone/0");
                }
                "queue" => watermarks.set(0, Consumers::At(world.clock.wall_ms() + 10)),
                _ => watermarks.set(0, Consumers::Unreadable),
            }
            let process = reconciler(&world, &watermarks);
            rest(&world, &process, 12, AGED).await;
            assert!(world.queues.kept().is_empty(), "{way}");
            match way {
                "outbox" | "hand" => world.store.clear(),
                _ => watermarks.set(0, Consumers::Idle),
            }
            until_kept(&world, &process, 10).await;
        }
    });
}

#[test]
fn a_consumer_that_stays_behind_is_told() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        let process = reconciler(&world, &watermarks);
        watermarks.set(0, Consumers::At(world.clock.wall_ms() - 1));
        rest(&world, &process, 3, AGED).await;
        assert_eq!(process.blocked("consumers_behind"), 0, "not for long");
        rest(&world, &process, 6, AGED).await;
        assert_eq!(process.blocked("consumers_behind"), 2);
        watermarks.set(0, Consumers::Idle);
        rest(&world, &process, 4, AGED).await;
        until_kept(&world, &process, 10).await;
        until("the gauge", || async { (process.blocked("consumers_behind") == 0).then_some(()) })
            .await;
    });
}

#[test]
fn traffic_a_refused_dead_letter_and_a_damaged_outbox_stop_nothing_elsewhere() {
    // The first bucket that is walked, and the last one.
    for damaged in [2, 1] {
        in_system(trouble_in(damaged));
    }
}

async fn trouble_in(damaged: u64) {
    let (world, watermarks) = world_that_lost().await;
    let healthy = 3 - damaged;
    let bucket = world.bucket_of(damaged);
    world.store.damage(bucket);
    world.store.bury(
        world.bucket_of(healthy),
        DeadEntry {
            id: Box::new([1]),
            bytes: vec![0; 8].into(),
            reason: "refused by the ledger".to_owned(),
            attempts: 9,
            dead_at_ms: 1,
        },
    );
    let process = reconciler(&world, &watermarks);
    for request in (20 + healthy..80).step_by(2) {
        // One more is sold every second, leaves the outbox, and lands a second later.
        watermarks.set(0, Consumers::At(world.clock.wall_ms() - 1_000));
        world.store.clear();
        let sold = OrderIntent { placed_at_ms: world.clock.wall_ms(), ..world.intent(request) };
        world.store.put(world.bucket_of(request), intent::pack(&sold).into());
        rest(&world, &process, 1, SECOND).await;
    }
    let mut kept: Vec<u64> = world.queues.kept().into_keys().collect();
    kept.sort_unstable();
    let lost: Vec<u64> = (1..=10).filter(|request| request % 2 == healthy % 2).collect();
    assert_eq!(kept, lost);
    assert_eq!(process.blocked("outbox"), 1);
    world.store.mend(bucket);
    watermarks.set(0, Consumers::Idle);
    until_kept(&world, &process, 10).await;
    until("the gauge", || async { (process.blocked("outbox") == 0).then_some(()) }).await;
}

#[test]
fn an_order_queue_without_a_consumer_stops_its_own_buckets_only() {
    in_system(async {
        let mut world = World::new(2);
        world.settings.amqp.queues = 2;
        world.lose(1..=10).await;
        let watermarks = watermarks(&world);
        let Route::Orders(queue) = Route::orders_of(world.bucket_of(1), 2) else { panic!() };
        watermarks.set(queue, Consumers::None);
        let process = reconciler(&world, &watermarks);
        until_kept(&world, &process, 5).await;
        assert!(world.queues.kept().keys().all(|request| request % 2 == 0));
        assert_eq!(process.blocked("no_consumer"), 1);
        watermarks.set(queue, Consumers::Idle);
        until_kept(&world, &process, 10).await;
        until("the gauge", || async { (process.blocked("no_consumer") == 0).then_some(()) }).await;
    });
}

#[test]
fn a_broker_that_is_away_is_told_and_gets_everything_later() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        world.queues.set_reach(BrokerStatus::Down);
        let process = reconciler(&world, &watermarks);
        rest(&world, &process, FOUND_IN, SECOND).await;
        until("a sign", || async { (process.blocked("broker") == 2).then_some(()) }).await;
        world.queues.set_reach(BrokerStatus::Up);
        until_kept(&world, &process, 10).await;
    });
}

#[test]
fn what_is_lost_to_a_missing_binding_arrives_with_its_first_copy() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        world.queues.divert();
        let process = reconciler(&world, &watermarks);
        until_kept(&world, &process, 10).await;
        assert_eq!(process.metric("floodgate_reconcile_republished_total"), 10);
    });
}

/// A SKU that stock and ledger have, with units for all.
async fn sku_of_both(world: &World) -> Arc<Sku> {
    let sku = offers::offer(world.ledger.as_ref(), "both", UNLIMITED, 100).await;
    world.catalog.put(&Sale {
        no: sku.no.0,
        id: "both".parse().unwrap(),
        title: "Sale".to_owned(),
        starts_at_ms: 0,
        ends_at_ms: i64::MAX,
        phase: Phase::Open,
        epoch: Epoch(1),
        skus: vec![sku.clone()],
    });
    let sku = Arc::new(sku);
    let loading = world.stock.load(sku.clone(), 0, LoaderToken(1)).await.unwrap();
    loading.publish(sku.initial, Phase::Open, Epoch(1)).await.unwrap();
    sku
}

async fn reserve(world: &World, sku: &Sku, request: u64) -> OrderIntent {
    let ask = Reservation {
        request: RequestId::new(request).unwrap(),
        sku: sku.no,
        bucket: BucketNo(0),
        epoch: Epoch(1),
        buyer: offers::buyer(request),
        quantity: 2,
        asked_at_ms: world.clock.wall_ms(),
        trace: TraceId(0),
    };
    let key = BucketKey { sku: sku.no, bucket: BucketNo(0) };
    world.stock.reserve(key, vec![ask]).await.unwrap();
    ask.intent(sku)
}

#[test]
fn what_has_ended_in_the_ledger_is_written_to_its_bucket_without_any_consumer() {
    in_system(async {
        let world = World::new(1);
        let watermarks = watermarks(&world);
        watermarks.set(0, Consumers::None);
        let sku = sku_of_both(&world).await;
        let (ordered, refused) = (reserve(&world, &sku, 1).await, reserve(&world, &sku, 2).await);
        assert_eq!(world.ledger.place(vec![ordered]).await.unwrap(), BlindInsert::All);
        let failure = Failure {
            request: refused.request,
            sku: sku.no,
            buyer: refused.buyer,
            quantity: 2,
            reason: Refusal::Ended,
            recorded_at_ms: 7,
        };
        world.ledger.record_failures(vec![failure]).await.unwrap();
        let process = reconciler(&world, &watermarks);
        process.passes(3).await;
        assert_eq!(world.stock.num_unsettled(sku.no).await, Ok(2), "too early");
        rest(&world, &process, 2, AGED).await;
        let settled = || async { (world.stock.num_unsettled(sku.no).await == Ok(0)).then_some(()) };
        until("results", settled).await;
        let key = BucketKey { sku: sku.no, bucket: BucketNo(0) };
        let standing = async |request| {
            world.stock.find(key, request).await.unwrap().map(|found| found.standing)
        };
        assert!(matches!(standing(ordered.request).await, Some(RequestStatus::Ordered { .. })));
        assert!(matches!(
            standing(refused.request).await,
            Some(RequestStatus::Failed(Refusal::Ended))
        ));
        assert_eq!(world.stock.left(sku.no), 98, "the unit that was refused came back once");
        assert_eq!(process.metric("floodgate_reconcile_matched_total"), 2);
        assert!(world.queues.kept().is_empty());
    });
}

#[test]
fn an_order_of_another_buyer_with_the_same_id_is_no_result() {
    in_system(async {
        let world = World::new(1);
        let watermarks = watermarks(&world);
        let sku = sku_of_both(&world).await;
        let own = reserve(&world, &sku, 1).await;
        let others = OrderIntent { buyer: offers::buyer(77), ..own };
        assert_eq!(world.ledger.place(vec![others]).await.unwrap(), BlindInsert::All);
        let process = reconciler(&world, &watermarks);
        // A consumer says what it comes to.
        until_kept(&world, &process, 1).await;
        assert_eq!(process.metric("floodgate_reconcile_matched_total"), 0);
    });
}

#[test]
fn two_at_once_publish_twice_at_most_and_write_results_once() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        let sku = sku_of_both(&world).await;
        let ordered = reserve(&world, &sku, 50).await;
        world.ledger.place(vec![ordered]).await.unwrap();
        let first = reconciler_with(&world, &watermarks, &Arc::default());
        let second = reconciler_with(&world, &watermarks, &Arc::default());
        for _ in 0..FOUND_IN {
            first.passes(2).await;
            second.passes(2).await;
            world.clock.advance(SECOND);
        }
        until_kept(&world, &first, 10).await;
        watermarks.set(0, Consumers::At(world.clock.wall_ms() - 3_000));
        rest(&world, &first, 5, AGED).await;
        rest(&world, &second, 5, AGED).await;
        let kept = world.queues.kept();
        assert!(kept.values().all(|copies| *copies <= 4), "{kept:?}");
        assert_eq!(world.stock.num_unsettled(sku.no).await, Ok(0));
        assert_eq!(world.stock.left(sku.no), 98);
    });
}

#[test]
fn one_works_at_a_time_and_the_next_begins_when_it_stops() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        let first = reconciler(&world, &watermarks);
        first.passes(1).await;
        let second = reconciler(&world, &watermarks);
        for _ in 0..10 {
            first.passes(2).await;
            second.passes(2).await;
            // Shorter than the lease.
            world.clock.advance(Duration::from_millis(10));
        }
        world.queues.set_reach(BrokerStatus::Down);
        first.quiet().await;
        world.queues.set_reach(BrokerStatus::Up);
        until_kept(&world, &second, 10).await;
        assert_eq!(first.metric("floodgate_reconcile_republished_total"), 0);
        assert_eq!(second.metric("floodgate_reconcile_republished_total"), 10);
        second.quiet().await;
        assert!(world.holders.lock().is_empty());
    });
}

#[test]
fn a_sale_that_takes_no_orders_any_more_is_reconciled_too() {
    in_system(async {
        let (world, watermarks) = world_that_lost().await;
        world.offer(SKU, 2, Phase::Closed);
        let process = reconciler(&world, &watermarks);
        until_kept(&world, &process, 10).await;
    });
}
