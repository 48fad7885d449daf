//! Publishing: confirms, windows, refusals and closing.

use bytes::Bytes;
use floodgate::broker::{BrokerStatus, Error, Headers, Message, PublishOutcome, Route};
use futures_util::future::join_all;

use super::{Backend, QUEUES, expected_ids, ids, message, messages};

pub async fn confirmed_messages_are_delivered_in_order_with_their_headers(backend: &dyn Backend) {
    let process = backend.open();
    assert_eq!(process.publisher.status(), BrokerStatus::Up);
    let headers = Headers {
        message_id: "7-1".into(),
        content_type: Some("application/x".into()),
        version: Some(1),
        installation: Some("f100d6a7".into()),
        epoch: Some(9),
        traceparent: Some("00-0000000000000007-01".into()),
        topic: None,
        signature: vec![("webhook-id".into(), "evt_1".into())],
        attempts: 2,
        sent_at_ms: Some(1_790_000_000_000),
        reason: Some("why".into()),
        origin: Some("where".into()),
        by_broker: false,
    };
    let route = Route::Orders(1);
    let full = Message { route, headers: headers.clone(), body: Bytes::from_static(b"body") };
    process.publish_confirmed(vec![full, message(route, 1), message(route, 2)]).await;
    let deliveries = process.drain(Route::Orders(1), 3).await;
    assert_eq!(deliveries[0].headers, headers);
    assert_eq!(deliveries[0].body, "body");
    assert_eq!(ids(&deliveries[1..]), expected_ids(1..3));
    for (delivery, tag) in deliveries.iter().zip(1..) {
        assert_eq!((delivery.tag, delivery.num_previous), (tag, 0));
        assert_eq!(delivery.routing_key, "1");
    }
    assert_eq!(process.publisher.status(), BrokerStatus::Up);
}

pub async fn every_window_keeps_the_order(backend: &dyn Backend) {
    let process = backend.open();
    let mut from = 0;
    for (window, count) in [(1, 20), (7, 100), (512, 1_500), (0, 3)] {
        let mut outgoing = process.open_channel(window);
        let outcomes = outgoing.publish(messages(Route::Orders(0), from..from + count)).await;
        assert_eq!(outcomes, vec![PublishOutcome::Confirmed; count], "window {window}");
        let deliveries = process.drain(Route::Orders(0), count).await;
        assert_eq!(ids(&deliveries), expected_ids(from..from + count), "window {window}");
        from += count;
    }
    assert_eq!(process.open_channel(8).publish(Vec::new()).await, []);
}

pub async fn many_publish_at_once(backend: &dyn Backend) {
    let process = backend.open();
    let publishing = (0..8_usize).map(|worker| {
        let mut outgoing = process.open_channel(16);
        async move {
            for round in 0..5_usize {
                let from = (worker * 5 + round) * 20;
                let queue = u16::try_from(worker).unwrap() % QUEUES;
                let batch = messages(Route::Orders(queue), from..from + 20);
                assert_eq!(outgoing.publish(batch).await, vec![PublishOutcome::Confirmed; 20]);
            }
        }
    });
    join_all(publishing).await;
    let mut seen = Vec::new();
    for (queue, count) in [(0, 300), (1, 300), (2, 200)] {
        seen.extend(ids(&process.drain(Route::Orders(queue), count).await));
    }
    seen.sort_unstable();
    let mut all = expected_ids(0..800);
    all.sort_unstable();
    assert_eq!(seen, all);
}

pub async fn large_and_empty_bodies_arrive(backend: &dyn Backend) {
    let process = backend.open();
    let sizes = [0, 1, 131_064, 131_065, 1_000_000];
    let body = |size: usize| Bytes::from(vec![b'x'; size]);
    let sized = sizes.map(|size| Message { body: body(size), ..message(Route::Orders(0), size) });
    process.publish_confirmed(sized.to_vec()).await;
    let deliveries = process.drain(Route::Orders(0), sizes.len()).await;
    let seen: Vec<_> = deliveries.iter().map(|delivery| delivery.body.clone()).collect();
    assert_eq!(seen, sizes.map(body));
}

pub async fn messages_without_a_queue_are_refused(backend: &dyn Backend) {
    let process = backend.open();
    let wrong = [Route::Orders(QUEUES), Route::Orders(QUEUES + 1), Route::Orders(u16::MAX)];
    let mut batch: Vec<_> = wrong.iter().map(|route| message(*route, 0)).collect();
    batch.push(message(Route::Orders(0), 1));
    let outcomes = process.open_channel(8).publish(batch).await;
    for outcome in &outcomes[..3] {
        assert!(matches!(outcome, PublishOutcome::Refused { .. }), "{outcomes:?}");
    }
    assert_eq!(outcomes[3], PublishOutcome::Confirmed);
    assert_eq!(ids(&process.drain(Route::Orders(0), 1).await), ["m1"]);
    let error = process.subscriber.subscribe(Route::Orders(QUEUES), 1).await.err().unwrap();
    assert!(matches!(error, Error::Topology { .. }), "{error}");
}

pub async fn a_closed_process_sends_nothing(backend: &dyn Backend) {
    let process = backend.open();
    let mut outgoing = process.open_channel(8);
    assert_eq!(
        outgoing.publish(messages(Route::Orders(0), 0..1)).await,
        [PublishOutcome::Confirmed]
    );
    process.subscriber.close().await;
    process.subscriber.close().await;
    let outcomes = outgoing.publish(messages(Route::Orders(0), 1..3)).await;
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, PublishOutcome::NotSent { .. })),
        "{outcomes:?}"
    );
    assert!(matches!(process.subscriber.depths().await, Err(Error::Unavailable { .. })));
    let other = backend.open();
    assert_eq!(ids(&other.drain(Route::Orders(0), 1).await), ["m0"]);
}
