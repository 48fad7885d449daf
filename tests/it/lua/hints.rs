//! The scripts that record results name the requests in a channel; those that add units to an empty
//! bucket name the SKU.

use std::time::Duration;

use floodgate::domain::Refusal;
use floodgate::redis::scripts::reserve_settle::SettleOutcome;
use redis::{Client, Value};

use super::harness::{Fixture, LOADER, ScriptClient, opening, refused, sku};
use crate::support::offers::ONE;
use crate::support::offers::order_of;
use crate::support::servers::redis::Redis;

#[test]
fn each_new_result_is_named_once_and_a_user_who_may_not_publish_records_it_as_well() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 200), 100);
    let batch = [1, 2, 3, 4].map(|number| fixture.reservation(number, number, 1));
    fixture.reserve(&mut client, 0, &batch);
    let mut listener = Client::open(redis.url()).unwrap().get_connection().unwrap();
    let mut listener = listener.as_pubsub();
    listener.subscribe("test:results").unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut received = || {
        let text: String = listener.get_message().unwrap().get_payload().unwrap();
        let mut numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    };
    let [first, second, third, fourth] = batch;
    let orders = [order_of(&first), order_of(&second)];
    fixture.settle(&mut client, 0, &orders);
    let mut expected = [first.request.get(), second.request.get()];
    expected.sort_unstable();
    assert_eq!(received(), expected);
    // A repeat names nothing: the next message is that of the refusal.
    assert_eq!(fixture.settle(&mut client, 0, &orders), [SettleOutcome::Repeat; 2]);
    fixture.release(&mut client, 0, &[refused(&third, Refusal::SoldOut)]);
    assert_eq!(received(), [third.request.get()]);

    assert_eq!(client.cmd(&["ACL", "SETUSER", "default", "-publish"]), Value::Okay);
    let order = order_of(&fourth);
    assert_eq!(fixture.settle(&mut client, 0, &[order]), [SettleOutcome::Now]);
    assert_eq!(fixture.settle(&mut client, 0, &[order]), [SettleOutcome::Repeat]);
}

#[test]
fn an_opened_bucket_with_units_names_its_sku_once() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let mut listener = Client::open(redis.url()).unwrap().get_connection().unwrap();
    let mut listener = listener.as_pubsub();
    listener.subscribe("test:results").unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for (no, stock) in [(1, 0), (2, 3), (3, 0), (4, 1)] {
        let fixture = Fixture::new(&redis, sku(no, ONE, 20));
        fixture.load_begin(&mut client, 0, LOADER).unwrap();
        let open = opening(LOADER, stock).call(&fixture.buckets[0]);
        assert_eq!(fixture.run(&mut client, &open), Ok(true));
        assert_eq!(fixture.run(&mut client, &open), Ok(false), "a repeated opening");
    }
    for expected in ["restocked:2", "restocked:4"] {
        let text: String = listener.get_message().unwrap().get_payload().unwrap();
        assert_eq!(text, expected);
    }
}
