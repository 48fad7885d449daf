//! Connections to a single server.

use floodgate::redis::transport::{
    ConnectionOptions, ConnectionPool, ConnectionPurpose, Durability, Error,
};
use redis::Value;

use super::{add, call, command, identity, is_not_done, until_connected};
use crate::support::fault_proxy::{FaultProxy, Mode, Way};
use crate::support::redis_connections::{
    CapturedLog, connection_pool, options, run, short_timeout_options,
};
use crate::support::servers::redis::{AOF_ALWAYS, AOF_EVERYSEC, Redis};
use crate::support::wait::until;

fn url(proxy: &FaultProxy) -> String {
    format!("redis://{}", proxy.addr())
}

#[test]
fn a_pipeline_has_an_answer_for_each_request() {
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&redis.url());
        let requests =
            vec![command(&["SET", "text", "x"]), add("a", 2), add("text", 1), add("a", 3)];
        let answers = pool.call(ConnectionPurpose::Hot, "a", requests).await.unwrap();
        assert_eq!(answers[0], Ok(Value::Okay));
        assert_eq!((&answers[1], &answers[3]), (&Ok(Value::Int(2)), &Ok(Value::Int(5))));
        let error = answers[2].as_ref().unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("not an integer"), "{error}");
    });
}

#[test]
fn a_connection_knows_its_server() {
    let redis = Redis::start_with(AOF_EVERYSEC);
    run(async {
        let found = identity(&connection_pool(&redis.url())).await;
        assert_eq!(found.run_id, redis.run_id());
        assert_eq!(found.node.port, redis.port());
    });
}

#[test]
fn the_password_and_the_database_of_the_url_are_used() {
    let redis = Redis::start_with(&["requirepass password"]);
    run(async {
        let url = format!("redis://:p%61ssword@{}/3", redis.addr());
        call(&connection_pool(&url), ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        assert_eq!(redis.info("db3").split(',').next(), Some("keys=1"));

        let wrong = connection_pool(&format!("redis://:wrong@{}", redis.addr()));
        let error = wrong.connection(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert!(is_not_done(&error), "{error}");
        assert!(error.to_string().contains("WRONGPASS"), "{error}");
        let none = connection_pool(&format!("redis://{}", redis.addr()));
        let error = none.connection(ConnectionPurpose::Hot, "a").await.unwrap_err().to_string();
        assert!(error.contains("NOAUTH"), "{error}");
    });
}

#[test]
fn a_server_without_a_file_is_no_place_for_what_must_last() {
    let redis = Redis::start();
    run(async {
        let options = ConnectionOptions { durability: Durability::Aof, ..options(&redis.url()) };
        let pool = ConnectionPool::new(options).unwrap();
        let error = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap_err().to_string();
        assert!(error.contains("set appendonly yes"), "{error}");
        redis.cmd(&["CONFIG", "SET", "appendonly", "yes"]);
        until_connected(&pool, "a").await;
    });
}

#[test]
fn a_killed_server_is_found_again_as_another_one() {
    let redis = Redis::start();
    let logs = CapturedLog::of([redis.port()]);
    run(async {
        let pool = ConnectionPool::new(options(&redis.url())).unwrap();
        let old = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        redis.kill();
        until("the connection to end", async || (!old.is_alive()).then_some(())).await;
        until("a failed reconnection", async || {
            let error = call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap_err();
            assert!(is_not_done(&error), "{error}");
            (logs.count("redis not connected") > 0).then_some(())
        })
        .await;
        redis.restart();
        let new = until_connected(&pool, "a").await;
        assert_eq!(new.identity().run_id, redis.run_id());
        assert_ne!(new.identity().run_id, old.identity().run_id);
        let error = old.call(vec![add("a", 1)]).await.unwrap_err();
        assert!(is_not_done(&error), "a closed connection stays closed: {error}");
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
    });
    assert_eq!(logs.count("redis connection given up"), 1, "{}", logs.all());
    assert_eq!(logs.count("redis connected"), 1, "{}", logs.all());
    assert_eq!(logs.count("redis reconnected"), 1, "{}", logs.all());
}

#[test]
fn answered_writes_survive_a_kill_if_the_file_is_written_first() {
    let redis = Redis::start_with(AOF_ALWAYS);
    run(async {
        let aof = ConnectionOptions { durability: Durability::Aof, ..options(&redis.url()) };
        let pool = ConnectionPool::new(aof).unwrap();
        let mut answered = 0;
        for round in 1..=5 {
            let connection = until_connected(&pool, "a").await;
            let adding = async {
                // Repeat until the server is killed.
                while let Ok(answers) = connection.call(vec![add("a", 1)]).await {
                    let Ok(Value::Int(number)) = answers[0] else { panic!("{answers:?}") };
                    answered = number;
                }
            };
            let killing = async {
                until("some writes", async || {
                    let number: i64 = redis.text(&["STRLEN", "a"]).parse().unwrap();
                    (number > 1 || round > 1).then_some(())
                })
                .await;
                redis.kill();
            };
            futures_util::future::join(adding, killing).await;
            redis.restart();
            let found: i64 = redis.text(&["GET", "a"]).parse().unwrap();
            assert!((answered..=answered + 1).contains(&found), "{found} after {answered}");
        }
    });
}

#[test]
fn a_frozen_server_leaves_calls_unknown_and_may_do_them_late() {
    let redis = Redis::start();
    let logs = CapturedLog::of([redis.port()]);
    run(async {
        let pool = ConnectionPool::new(short_timeout_options(&redis.url())).unwrap();
        let connection = until_connected(&pool, "a").await;
        redis.stop();
        let error = connection.call(vec![add("a", 1)]).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
        assert!(connection.is_alive(), "one time-out does not close the connection");
        while connection.is_alive() {
            connection.call(vec![command(&["PING"])]).await.unwrap_err();
        }
        redis.cont();
        until_connected(&pool, "a").await;
        until("the late write to run", async || (redis.text(&["GET", "a"]) == "1").then_some(()))
            .await;
    });
    assert!(
        logs.count("redis did not answer in time") >= 3
            && logs.count("redis connection given up") >= 1,
        "{}",
        logs.all()
    );
}

#[test]
fn a_black_hole_is_noticed_and_left_when_it_heals() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    run(async {
        let mut options = short_timeout_options(&url(&proxy));
        options.connect_timeout = options.command_timeout;
        let pool = ConnectionPool::new(options).unwrap();
        for mode in [Mode::Lose(None), Mode::Hold(None)] {
            let connection = until_connected(&pool, "a").await;
            proxy.set(mode);
            let error = connection.call(vec![add("a", 1)]).await.unwrap_err();
            assert!(matches!(error, Error::Unknown { .. }), "{error}");
            until("the connection to end", async || {
                let result = call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await;
                let error = result.unwrap_err();
                (!connection.is_alive() && is_not_done(&error)).then_some(())
            })
            .await;
            proxy.heal();
        }
        until_connected(&pool, "a").await;
    });
}

#[test]
fn a_reply_that_is_cut_off_leaves_the_call_unknown_and_done() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    run(async {
        let pool = connection_pool(&url(&proxy));
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        proxy.cut_reply("INCRBY");
        let error = connection.call(vec![command(&["INCRBY", "a", "7"])]).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
        assert!(!connection.is_alive());
        assert_eq!(redis.text(&["GET", "a"]), "7");

        let connection = until_connected(&pool, "a").await;
        proxy.cut_request("INCRBY");
        let error = connection.call(vec![command(&["INCRBY", "a", "7"])]).await.unwrap_err();
        assert!(
            matches!(error, Error::Unknown { .. }),
            "the client cannot distinguish a lost request from a lost reply: {error}"
        );
        assert_eq!(redis.text(&["GET", "a"]), "7");

        let connection = until_connected(&pool, "a").await;
        proxy.cut_after(Way::ToClient, 3);
        let error = connection.call(vec![command(&["INCRBY", "a", "1000"])]).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "a truncated reply is no reply: {error}");
        assert_eq!(redis.text(&["GET", "a"]), "1007");
    });
}

#[test]
fn scripts_that_the_server_forgot_are_loaded_again() {
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&redis.url());
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        redis.cmd(&["SCRIPT", "FLUSH"]);
        let requests = vec![add("a", 1), command(&["INCR", "b"]), add("a", 10)];
        let answers = connection.call(requests).await.unwrap();
        let numbers = [1, 1, 11].map(|number| Ok(Value::Int(number)));
        assert_eq!(answers, numbers);
    });
}

#[test]
fn an_abandoned_call_harms_no_other() {
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&redis.url());
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        for number in 1..=50_i64 {
            // Polled once: possibly sent, but not awaited.
            let requests = vec![add("dropped", 1)];
            let dropped = connection.call(requests);
            futures_util::future::select(Box::pin(dropped), std::future::ready(())).await;
            let answers = connection.call(vec![add("a", 1)]).await.unwrap();
            assert_eq!(answers, [Ok(Value::Int(number))]);
        }
    });
}

#[test]
fn no_connection_is_left_behind() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    run(async {
        let pool = connection_pool(&url(&proxy));
        for _ in 0..20 {
            let hot = until_connected(&pool, "a").await;
            let other = until("the results connection", async || {
                pool.connection(ConnectionPurpose::Results, "a").await.ok()
            })
            .await;
            proxy.set(Mode::Reset);
            until("both connections to end", async || {
                (!hot.is_alive() && !other.is_alive()).then_some(())
            })
            .await;
            proxy.heal();
        }
        until_connected(&pool, "a").await;
        until("the results connection", async || {
            pool.connection(ConnectionPurpose::Results, "a").await.ok()
        })
        .await;
        until("two connections", async || (redis.clients() == 2).then_some(())).await;
        drop(pool);
        until("no connections", async || (redis.clients() == 0).then_some(())).await;
    });
}

#[test]
fn many_callers_share_one_connection_per_role() {
    let redis = Redis::start();
    let logs = CapturedLog::of([redis.port()]);
    run(async {
        let pool = ConnectionPool::new(options(&redis.url())).unwrap();
        let calls = (0..200).map(|number| {
            let (pool, purpose) =
                (pool.clone(), [ConnectionPurpose::Hot, ConnectionPurpose::Results][number % 2]);
            async move { call(&pool, purpose, "a", add("a", 1)).await }
        });
        let answers = futures_util::future::join_all(calls).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(redis.text(&["GET", "a"]), "200");
        until("two connections", async || (redis.clients() == 2).then_some(())).await;
    });
    assert_eq!(logs.count("redis connected"), 2, "{}", logs.all());
}

#[test]
fn in_an_outage_callers_are_refused_at_once() {
    let redis = Redis::start();
    redis.kill();
    let logs = CapturedLog::of([redis.port()]);
    run(async {
        let hour = std::time::Duration::from_secs(3_600);
        let slow =
            ConnectionOptions { reconnect_min: hour, reconnect_max: hour, ..options(&redis.url()) };
        let pool = ConnectionPool::new(slow).unwrap();
        for _ in 0..1_000 {
            let error = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap_err();
            assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
        }
    });
    assert_eq!(logs.count("redis not connected"), 1, "one attempt for all callers: {}", logs.all());
}

#[test]
fn connections_outlive_the_runtime_that_asked_for_them() {
    let redis = Redis::start();
    let pool = connection_pool(&redis.url());
    let connection = run(pool.connection(ConnectionPurpose::Hot, "a")).unwrap();
    let answers = run(connection.call(vec![add("a", 1)])).unwrap();
    assert_eq!(answers, [Ok(Value::Int(1))]);
}

#[test]
fn a_server_that_was_demoted_and_promoted_again_is_another_one() {
    let (redis, other, third) = (Redis::start(), Redis::start(), Redis::start());
    run(async {
        let pool = connection_pool(&redis.url());
        let hot = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        let results = pool.connection(ConnectionPurpose::Results, "a").await.unwrap();
        // A new replica does not change the identity of the master.
        other.replica_of(&redis);
        other.replica_of_no_one();
        pool.verify().await.unwrap();
        assert!(hot.is_alive() && results.is_alive());

        redis.replica_of(&other);
        let demoted = pool.verify().await.unwrap_err();
        assert!(is_not_done(&demoted), "{demoted}");
        assert!(demoted.to_string().contains("no longer a master"), "{demoted}");
        assert!(!hot.is_alive() && !results.is_alive());
        redis.replica_of_no_one();
        let new = until_connected(&pool, "a").await;
        assert_eq!(new.identity().run_id, hot.identity().run_id);
        assert_ne!(new.identity().server, hot.identity().server);

        // Demoted and promoted between two checks, with a third server: a second promotion from the
        // same server keeps `master_replid2`. That case is harmless, because that server has never
        // replicated this one and so has none of its buckets.
        redis.replica_of(&third);
        redis.replica_of_no_one();
        let promoted = pool.verify().await.unwrap_err().to_string();
        assert!(promoted.contains("promoted since"), "{promoted}");
        assert!(!new.is_alive());
    });
}

#[test]
fn a_server_that_may_delete_when_it_is_full_is_refused() {
    let redis = Redis::start_with(&["maxmemory-policy volatile-lru"]);
    run(async {
        let pool = connection_pool(&redis.url());
        let error = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert!(is_not_done(&error), "{error}");
        let message = error.to_string();
        assert!(message.contains("maxmemory-policy is volatile-lru"), "{message}");
        assert!(message.contains("set maxmemory-policy noeviction in redis.conf"), "{message}");
        redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        until_connected(&pool, "a").await;
    });
}
