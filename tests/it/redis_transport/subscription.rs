//! Subscriptions: messages, and what ends a subscription.

use floodgate::redis::transport::{ChannelSubscription, ConnectionPurpose};
use redis::Value;

use super::{call, command};
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::redis_connections::{connection_pool, run};
use crate::support::servers::redis::Redis;
use crate::support::wait::{DEADLINE, until};

/// The next message; panics at the deadline.
async fn next(subscription: &mut ChannelSubscription) -> Option<Vec<u8>> {
    tokio::time::timeout(DEADLINE, subscription.next()).await.unwrap()
}

#[test]
fn every_subscriber_gets_the_messages_of_its_channel_until_its_connection_ends() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    run(async {
        let direct = connection_pool(&redis.url());
        let proxied = connection_pool(&format!("redis://{}", proxy.addr()));
        let mut one = direct.subscribe("shop:results").await.unwrap();
        let mut two = proxied.subscribe("shop:results").await.unwrap();
        let publish = async |channel: &str, message: &str| {
            let publish = command(&["PUBLISH", channel, message]);
            call(&direct, ConnectionPurpose::Results, channel, publish).await.unwrap()
        };
        assert_eq!(publish("shop:results", "first").await, Value::Int(2));
        assert_eq!(publish("shop:other", "nothing").await, Value::Int(0));
        assert_eq!(publish("shop:results", "second").await, Value::Int(2));
        for subscription in [&mut one, &mut two] {
            assert_eq!(next(subscription).await.as_deref(), Some(b"first".as_slice()));
            assert_eq!(next(subscription).await.as_deref(), Some(b"second".as_slice()));
        }
        proxy.set(Mode::Reset);
        assert_eq!(next(&mut two).await, None, "the connection is lost");
        assert!(proxied.subscribe("shop:results").await.is_err());
        proxy.heal();
        let mut again = proxied.subscribe("shop:results").await.unwrap();
        assert_eq!(publish("shop:results", "third").await, Value::Int(2));
        assert_eq!(next(&mut again).await.as_deref(), Some(b"third".as_slice()));
        drop(again);
        drop(one);
    });
}

#[test]
fn a_subscription_that_is_read_too_slowly_ends_before_a_message_is_lost() {
    const PUBLISHED: u32 = 3_000;
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&redis.url());
        let mut subscription = pool.subscribe("shop:results").await.unwrap();
        let script =
            format!("for i = 1, {PUBLISHED} do redis.call('PUBLISH', 'shop:results', i) end");
        // Each round leaves 2,000 more messages unread.
        for round in 0..20 {
            let publish = command(&["EVAL", &script, "0"]);
            call(&pool, ConnectionPurpose::Results, "shop:results", publish).await.unwrap();
            for number in round * 1_000..(round + 1) * 1_000 {
                let Some(message) = next(&mut subscription).await else { return };
                let expected = (number % PUBLISHED + 1).to_string();
                assert_eq!(message, expected.as_bytes(), "no message is lost before the end");
            }
        }
        panic!("40,000 messages are unread, and the subscription has not ended");
    });
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_time() {
    let redis = Redis::start();
    run(async {
        let mut options = crate::support::redis_connections::options(&redis.url());
        options.connect_timeout = std::time::Duration::from_millis(200);
        let pool = floodgate::redis::transport::ConnectionPool::new(options).unwrap();
        // On a slow machine the first connections may be late.
        let first = until("a subscription", async || pool.subscribe("shop:results").await.ok());
        drop(first.await);
        redis.stop();
        let error = pool.subscribe("shop:results").await.err().unwrap().to_string();
        redis.cont();
        assert!(error.contains("shop:results") || error.contains("not ready"), "{error}");
    });
}
