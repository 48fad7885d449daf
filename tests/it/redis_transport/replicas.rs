//! Writes that are confirmed by replicas.

use floodgate::redis::transport::{
    ConnectionOptions, ConnectionPool, ConnectionPurpose, Durability, Error,
};
use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::{add, call, command, is_not_done, until_connected};
use crate::support::fault_proxy::FaultProxy;
use crate::support::redis_connections::{CapturedLog, options, run};
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::wait::until;

fn replicated(url: &str, wait_ms: u64) -> ConnectionOptions {
    let durability = Durability::Replicated;
    ConnectionOptions { durability, replicas_wait_ms: wait_ms, ..options(url) }
}

/// The wait in milliseconds for a healthy replica, long enough for a busy machine.
const HEALTHY_MS: u64 = 20_000;
/// The wait in milliseconds for a frozen replica.
const FROZEN_MS: u64 = 50;

/// The number of WAIT commands that the server ran.
fn waits(redis: &Redis) -> u64 {
    let stats = redis.info("cmdstat_wait");
    let calls = stats.split(',').find_map(|part| part.strip_prefix("calls="));
    calls.unwrap().parse().unwrap()
}

#[test]
fn a_batch_is_answered_when_the_replica_has_it() {
    let set = Replicated::start(1);
    run(async {
        let pool = ConnectionPool::new(replicated(&set.master.url(), HEALTHY_MS)).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        for number in 1..=20 {
            let answers = connection.call_and_wait(vec![add("a", 1), add("b", 2)]).await.unwrap();
            assert_eq!(answers, [Ok(Value::Int(number)), Ok(Value::Int(number * 2))]);
            assert_eq!(set.replicas[0].text(&["GET", "a"]), number.to_string());
        }
        let answers =
            connection.call_and_wait(vec![add("a", 1), command(&["LPUSH", "a", "x"])]).await;
        let answers = answers.unwrap();
        assert!(answers[0].is_ok());
        assert!(matches!(answers[1], Err(Error::Refused { .. })), "{answers:?}");
        assert_eq!(answers.len(), 2);
    });
}

#[test]
fn a_frozen_replica_leaves_batches_unknown_until_it_goes_on() {
    let set = Replicated::start(1);
    let logs = CapturedLog::of([set.master.port()]);
    run(async {
        let options = replicated(&set.master.url(), FROZEN_MS);
        let pool = ConnectionPool::new(options).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        for _ in 0..5 {
            let error = connection.call_and_wait(vec![add("a", 1)]).await.unwrap_err();
            assert!(matches!(error, Error::Unknown { .. }), "{error}");
            assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        }
        assert_eq!(set.master.text(&["GET", "a"]), "5", "the writes were applied");
        assert!(connection.is_alive(), "the master still answers");
        assert_eq!(connection.call(vec![add("a", 1)]).await.unwrap(), [Ok(Value::Int(6))]);
        set.replicas[0].cont();
        until("the replica to confirm", async || {
            connection.call_and_wait(vec![add("a", 1)]).await.ok()
        })
        .await;
    });
    assert!(logs.count("redis replicas are late") >= 5, "{}", logs.all());
    assert_eq!(logs.count("redis connection given up"), 0, "{}", logs.all());
}

#[test]
fn many_batches_wait_together() {
    let set = Replicated::start(1);
    run(async {
        let pool = ConnectionPool::new(replicated(&set.master.url(), FROZEN_MS)).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        let requests: Vec<Vec<Cmd>> =
            (0..100).map(|number| vec![add(&number.to_string(), 1)]).collect();
        let calls = requests.iter().map(|requests| connection.call_and_wait(requests.clone()));
        let results = join_all(calls).await;
        let num_unknown =
            results.iter().filter(|result| matches!(result, Err(Error::Unknown { .. }))).count();
        assert_eq!(num_unknown, 100, "{results:?}");
        assert_eq!(set.master.text(&["DBSIZE"]), "100");
        let frozen = waits(&set.master);
        assert!(frozen < 10, "{frozen} consecutive waits");
        set.replicas[0].cont();

        let pool = ConnectionPool::new(replicated(&set.master.url(), HEALTHY_MS)).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        let calls = requests.iter().map(|requests| connection.call_and_wait(requests.clone()));
        for result in join_all(calls).await {
            assert_eq!(result.unwrap(), [Ok(Value::Int(2))]);
        }
    });
}

#[test]
fn the_master_is_killed_while_its_replica_is_awaited() {
    let set = Replicated::start(1);
    run(async {
        let pool = ConnectionPool::new(replicated(&set.master.url(), HEALTHY_MS)).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        let requests = vec![add("a", 1)];
        let waiting = connection.call_and_wait(requests.clone());
        let killing = async {
            until("the write to run", async || {
                (set.master.cmd(&["EXISTS", "a"]) == Value::Int(1)).then_some(())
            })
            .await;
            set.master.kill();
        };
        let (result, ()) = futures_util::future::join(waiting, killing).await;
        assert!(matches!(result, Err(Error::Unknown { .. })), "{result:?}");
        let error = connection.call_and_wait(requests).await.unwrap_err();
        assert!(is_not_done(&error), "{error}");
    });
}

#[test]
fn waiting_on_one_connection_does_not_delay_the_other() {
    let set = Replicated::start(1);
    run(async {
        let pool = ConnectionPool::new(replicated(&set.master.url(), HEALTHY_MS)).unwrap();
        let hot = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        let requests = vec![add("a", 1)];
        let waiting = hot.call_and_wait(requests);
        let unfreezing = async {
            until("the write to run", async || {
                let read =
                    call(&pool, ConnectionPurpose::Results, "a", command(&["EXISTS", "a"])).await;
                (read.unwrap() == Value::Int(1)).then_some(())
            })
            .await;
            set.replicas[0].cont();
        };
        let (result, ()) = futures_util::future::join(waiting, unfreezing).await;
        assert_eq!(result.unwrap(), [Ok(Value::Int(1))], "the replica confirmed in time");
    });
}

#[test]
fn a_reply_that_is_cut_off_leaves_every_batch_of_the_group_unknown() {
    let set = Replicated::start(1);
    let proxy = FaultProxy::start(set.master.addr());
    run(async {
        let url = format!("redis://{}", proxy.addr());
        let pool = ConnectionPool::new(replicated(&url, HEALTHY_MS)).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        proxy.cut_reply("WAIT");
        let calls = ["a", "b"].map(|key| connection.call_and_wait(vec![add(key, 1)]));
        let results = join_all(calls).await;
        for result in results {
            let error = result.unwrap_err();
            assert!(!matches!(error, Error::Refused { .. }), "{error}");
        }
        assert_eq!(set.master.text(&["GET", "a"]), "1");
        until_connected(&pool, "a").await;
    });
}

#[test]
fn a_forgotten_script_is_waited_for_too() {
    let set = Replicated::start(1);
    run(async {
        let pool = ConnectionPool::new(replicated(&set.master.url(), HEALTHY_MS)).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        set.master.cmd(&["SCRIPT", "FLUSH"]);
        let requests = vec![command(&["INCR", "b"]), add("a", 1)];
        let answers = connection.call_and_wait(requests).await.unwrap();
        assert_eq!(answers, [Ok(Value::Int(1)), Ok(Value::Int(1))]);
        assert_eq!(set.replicas[0].text(&["GET", "a"]), "1");
    });
}

#[test]
fn without_replicas_to_wait_for_a_batch_is_answered_at_once() {
    let redis = Redis::start();
    run(async {
        let pool = ConnectionPool::new(options(&redis.url())).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        assert_eq!(connection.call_and_wait(vec![add("a", 1)]).await.unwrap(), [Ok(Value::Int(1))]);
        assert!(redis.try_cmd(&["INFO", "commandstats"]).is_ok());
    });
}
