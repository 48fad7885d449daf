//! Writes that count as done when replicas have them.

use floodgate::redis::transport::{
    CallEffect, ConnectionOptions, ConnectionPool, ConnectionPurpose, Durability, Error,
};
use futures_util::future::join_all;
use redis::Value;

use super::{Ask, add, ask, command, until_connected};
use crate::support::fault_proxy::FaultProxy;
use crate::support::links::{Heard, options, run};
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::wait::until;

fn replicated(url: &str, wait_ms: u64) -> ConnectionOptions {
    let durability = Durability::Replicated { replicas: 1, wait_ms };
    ConnectionOptions { durability, ..options(url) }
}

/// Longer than a replica that is well takes, whatever the machine does meanwhile.
const WELL: u64 = 20_000;
/// A replica that is frozen is given this long.
const FROZEN: u64 = 50;

/// How often the server was asked to wait.
fn waits(redis: &Redis) -> u64 {
    let stats = redis.info("cmdstat_wait");
    let calls = stats.split(',').find_map(|part| part.strip_prefix("calls="));
    calls.unwrap().parse().unwrap()
}

#[test]
fn a_batch_is_answered_when_the_replica_has_it() {
    let set = Replicated::start(1);
    run(async {
        let links = ConnectionPool::new(replicated(&set.master.url(), WELL)).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        for number in 1..=20 {
            let answers = link.call_and_wait(&[add("a", 1), add("b", 2)]).await.unwrap();
            assert_eq!(answers, [Ok(Value::Int(number)), Ok(Value::Int(number * 2))]);
            assert_eq!(set.replicas[0].text(&["GET", "a"]), number.to_string());
        }
        let answers = link.call_and_wait(&[add("a", 1), command(&["LPUSH", "a", "x"])]).await;
        let answers = answers.unwrap();
        assert!(answers[0].is_ok());
        assert_eq!(answers[1].as_ref().unwrap_err().class(), CallEffect::Refused);
        assert_eq!(answers.len(), 2);
    });
}

#[test]
fn a_frozen_replica_leaves_batches_unknown_until_it_goes_on() {
    let set = Replicated::start(1);
    let heard = Heard::of([set.master.port()]);
    run(async {
        let options = replicated(&set.master.url(), FROZEN);
        let links = ConnectionPool::new(options).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        for _ in 0..5 {
            let error = link.call_and_wait(&[add("a", 1)]).await.unwrap_err();
            assert_eq!(error.class(), CallEffect::Unknown);
            assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        }
        assert_eq!(set.master.text(&["GET", "a"]), "5", "done all the same");
        assert!(link.is_alive(), "the master is well");
        assert_eq!(link.call(&[add("a", 1)]).await.unwrap(), [Ok(Value::Int(6))]);
        set.replicas[0].cont();
        until("the replica", async || link.call_and_wait(&[add("a", 1)]).await.ok()).await;
    });
    assert!(heard.count("redis replicas are late") >= 5, "{}", heard.all());
    assert_eq!(heard.count("redis connection given up"), 0, "{}", heard.all());
}

#[test]
fn many_batches_wait_together() {
    let set = Replicated::start(1);
    run(async {
        let links = ConnectionPool::new(replicated(&set.master.url(), FROZEN)).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        let requests: Vec<[Ask; 1]> =
            (0..100).map(|number| [add(&number.to_string(), 1)]).collect();
        let calls = requests.iter().map(|requests| link.call_and_wait(requests));
        let ends = join_all(calls).await;
        let classes: Vec<_> = ends.iter().map(|end| end.as_ref().map_err(Error::class)).collect();
        assert!(classes.iter().all(|class| *class == Err(CallEffect::Unknown)), "{classes:?}");
        assert_eq!(set.master.text(&["DBSIZE"]), "100");
        let frozen = waits(&set.master);
        assert!(frozen < 10, "{frozen} waits one behind the other");
        set.replicas[0].cont();

        let links = ConnectionPool::new(replicated(&set.master.url(), WELL)).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        let calls = requests.iter().map(|requests| link.call_and_wait(requests));
        for end in join_all(calls).await {
            assert_eq!(end.unwrap(), [Ok(Value::Int(2))]);
        }
    });
}

#[test]
fn the_master_dies_while_its_replica_is_waited_for() {
    let set = Replicated::start(1);
    run(async {
        let links = ConnectionPool::new(replicated(&set.master.url(), WELL)).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        let requests = [add("a", 1)];
        let waiting = link.call_and_wait(&requests);
        let killing = async {
            until("the write", async || {
                (set.master.cmd(&["EXISTS", "a"]) == Value::Int(1)).then_some(())
            })
            .await;
            set.master.kill();
        };
        let (end, ()) = futures_util::future::join(waiting, killing).await;
        assert_eq!(end.unwrap_err().class(), CallEffect::Unknown);
        let error = link.call_and_wait(&requests).await.unwrap_err();
        assert_eq!(error.class(), CallEffect::NotDone, "{error}");
    });
}

#[test]
fn waiting_on_one_lane_does_not_hold_up_the_other() {
    let set = Replicated::start(1);
    run(async {
        let links = ConnectionPool::new(replicated(&set.master.url(), WELL)).unwrap();
        let hot = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        set.replicas[0].stop();
        let requests = [add("a", 1)];
        let waiting = hot.call_and_wait(&requests);
        let passing = async {
            until("the write", async || {
                let read =
                    ask(&links, ConnectionPurpose::Results, "a", command(&["EXISTS", "a"])).await;
                (read.unwrap() == Value::Int(1)).then_some(())
            })
            .await;
            set.replicas[0].cont();
        };
        let (end, ()) = futures_util::future::join(waiting, passing).await;
        assert_eq!(end.unwrap(), [Ok(Value::Int(1))], "the replica came in time");
    });
}

#[test]
fn a_reply_that_is_cut_off_leaves_every_batch_of_the_group_unknown() {
    let set = Replicated::start(1);
    let proxy = FaultProxy::start(set.master.addr());
    run(async {
        let url = format!("redis://{}", proxy.addr());
        let links = ConnectionPool::new(replicated(&url, WELL)).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        proxy.cut_reply("WAIT");
        let (one, two) = ([add("a", 1)], [add("b", 1)]);
        let ends = join_all([link.call_and_wait(&one), link.call_and_wait(&two)]).await;
        for end in ends {
            assert_ne!(end.unwrap_err().class(), CallEffect::Refused);
        }
        assert_eq!(set.master.text(&["GET", "a"]), "1");
        until_connected(&links, "a").await;
    });
}

#[test]
fn a_forgotten_script_is_waited_for_too() {
    let set = Replicated::start(1);
    run(async {
        let links = ConnectionPool::new(replicated(&set.master.url(), WELL)).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        set.master.cmd(&["SCRIPT", "FLUSH"]);
        let requests = [command(&["INCR", "b"]), add("a", 1)];
        let answers = link.call_and_wait(&requests).await.unwrap();
        assert_eq!(answers, [Ok(Value::Int(1)), Ok(Value::Int(1))]);
        assert_eq!(set.replicas[0].text(&["GET", "a"]), "1");
    });
}

#[test]
fn without_replicas_to_wait_for_a_batch_is_answered_at_once() {
    let redis = Redis::start();
    run(async {
        let links = ConnectionPool::new(options(&redis.url())).unwrap();
        let link = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        assert_eq!(link.call_and_wait(&[add("a", 1)]).await.unwrap(), [Ok(Value::Int(1))]);
        assert!(redis.try_cmd(&["INFO", "commandstats"]).is_ok());
    });
}
