//! Errors of real servers, and the effect that each implies for the call.

use floodgate::redis::transport::{ConnectionPool, ConnectionPurpose, Error, ScriptSource};
use redis::Cmd;

use super::{add, call, command, is_not_done, until_connected};
use crate::support::redis_connections::{CapturedLog, connection_pool, options, run};
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::wait::until;

/// Requires that the server rejects the request with `code` before it begins.
async fn assert_not_begun(pool: &ConnectionPool, key: &str, request: Cmd, code: &str) {
    let error = call(pool, ConnectionPurpose::Hot, key, request).await.unwrap_err();
    let Error::NotBegun { code: found, .. } = &error else { panic!("{error:?}") };
    assert_eq!(found, code, "{error}");
    assert!(is_not_done(&error), "{error}");
}

async fn assert_refused(pool: &ConnectionPool, key: &str, request: Cmd, text: &str) {
    let error = call(pool, ConnectionPurpose::Hot, key, request).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains(text), "{error}");
}

fn eval(text: &str, key: &str) -> Cmd {
    command(&["EVAL", text, "1", key])
}

#[test]
fn a_full_server() {
    let redis = Redis::start_with(&["maxmemory-policy noeviction"]);
    run(async {
        let pool = connection_pool(&redis.url());
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        assert_not_begun(&pool, "a", add("a", 1), "OOM").await;
        assert_not_begun(&pool, "a", command(&["SET", "a", "2"]), "OOM").await;
        // A script without a shebang line begins even at full memory; `late` frees memory first.
        let late = "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'x')";
        let freeing = "redis.call('DEL', KEYS[1]) return 1";
        call(&pool, ConnectionPurpose::Hot, "a", eval(freeing, "b")).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        call(&pool, ConnectionPurpose::Hot, "a", eval(late, "a")).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        let stuck = "return redis.call('SET', KEYS[1], 'x')";
        assert_refused(&pool, "a", eval(stuck, "a"), "OOM").await;
        redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        call(&pool, ConnectionPurpose::Hot, "a", add("c", 1)).await.unwrap();
    });
}

#[test]
fn a_server_that_cannot_write_its_file() {
    let redis = Redis::start_with(&["save 3600 1", "stop-writes-on-bgsave-error yes"]);
    run(async {
        let pool = connection_pool(&redis.url());
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        // A directory at the path of the file makes the save fail, even for root.
        std::fs::create_dir(redis.folder().join("dump.rdb")).unwrap();
        redis.cmd(&["BGSAVE"]);
        until("the save to fail", async || {
            (redis.info("rdb_last_bgsave_status") == "err").then_some(())
        })
        .await;
        assert_not_begun(&pool, "a", add("a", 1), "MISCONF").await;
        assert_eq!(redis.text(&["GET", "a"]), "1");
    });
}

#[test]
fn a_master_with_too_few_replicas() {
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&redis.url());
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        assert_not_begun(&pool, "a", add("a", 1), "NOREPLICAS").await;
        redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
    });
}

#[test]
fn a_server_that_runs_a_script_without_end() {
    let redis = Redis::start_with(&["busy-reply-threshold 1"]);
    run(async {
        let pool = connection_pool(&redis.url());
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        let endless = pool.connection(ConnectionPurpose::Results, "a").await.unwrap();
        let requests = vec![eval("while true do end", "a")];
        let running = endless.call(requests);
        let stopping = async {
            until("the server to be busy", async || {
                let error = call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.err()?;
                assert!(is_not_done(&error), "{error:?}");
                assert!(error.to_string().contains("BUSY"), "{error}");
                Some(())
            })
            .await;
            redis.cmd(&["SCRIPT", "KILL"]);
        };
        let (ended, ()) = futures_util::future::join(running, stopping).await;
        let error = ended.unwrap()[0].clone().unwrap_err();
        assert!(
            matches!(error, Error::Refused { .. }),
            "the script may have written before: {error}"
        );
    });
}

#[test]
fn a_server_that_is_still_reading_its_file() {
    let slow =
        ["appendonly yes", "key-load-delay 1000", "loading-process-events-interval-bytes 1024"];
    let redis = Redis::start_with(&slow);
    redis.cmd(&["DEBUG", "POPULATE", "100000", "key", "10"]);
    redis.cmd(&["BGREWRITEAOF"]);
    crate::support::wait::until_true("the file to be rewritten", || {
        redis.info("aof_rewrite_in_progress") == "0" && redis.info("aof_rewrite_scheduled") == "0"
    });
    redis.kill();
    redis.launch();
    run(async {
        let pool = connection_pool(&redis.url());
        let error = until("the server to load its file", async || {
            let error = pool.connection(ConnectionPurpose::Hot, "a").await.err()?;
            assert!(is_not_done(&error), "{error}");
            error.to_string().contains("LOADING").then_some(error)
        })
        .await;
        assert!(is_not_done(&error), "{error}");
        redis.cmd(&["CONFIG", "SET", "key-load-delay", "0"]);
        until_connected(&pool, "a").await;
    });
}

#[test]
fn a_master_that_became_a_replica() {
    let set = Replicated::start(1);
    let logs = CapturedLog::of([set.master.port()]);
    run(async {
        let pool = ConnectionPool::new(options(&set.master.url())).unwrap();
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        let copied = || set.replicas[0].cmd(&["EXISTS", "a"]) == redis::Value::Int(1);
        until("the replica to have the key", async || copied().then_some(())).await;
        set.replicas[0].replica_of_no_one();
        set.master.replica_of(&set.replicas[0]);
        assert_not_begun(&pool, "a", add("a", 1), "READONLY").await;
        let error = until("a new attempt", async || {
            let error = call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap_err();
            error.to_string().contains("it is a replica of").then_some(error)
        })
        .await;
        let other = format!("127.0.0.1:{}", set.replicas[0].port());
        assert!(error.to_string().contains(&other), "{error}");
        assert_eq!(set.replicas[0].text(&["GET", "a"]), "1");
    });
    assert_eq!(logs.count("redis connection given up"), 1, "{}", logs.all());
}

#[test]
fn a_replica_is_not_connected_to() {
    let set = Replicated::start(1);
    run(async {
        let pool = connection_pool(&set.replicas[0].url());
        let error = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert!(is_not_done(&error), "{error}");
        assert!(error.to_string().contains("it is a replica of 127.0.0.1"), "{error}");
    });
}

#[test]
fn a_user_who_may_not() {
    let redis = Redis::start();
    redis.cmd(&["ACL", "SETUSER", "gate", "on", ">secret", "~a*", "+@all", "-flushall"]);
    run(async {
        let pool = connection_pool(&format!("redis://gate:secret@{}", redis.addr()));
        call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        assert_not_begun(&pool, "a", command(&["FLUSHALL"]), "NOPERM").await;
        assert_not_begun(&pool, "a", command(&["GET", "b"]), "NOPERM").await;
        redis.cmd(&["ACL", "DELUSER", "gate"]);
        let error = until("the connection to end", async || {
            pool.connection(ConnectionPurpose::Hot, "a")
                .await
                .err()
                .filter(|error| error.to_string().contains("PASS"))
        })
        .await;
        assert!(is_not_done(&error), "{error}");
    });
}

#[test]
fn foreign_data_and_defects() {
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&redis.url());
        redis.cmd(&["LPUSH", "list", "x"]);
        assert_refused(&pool, "a", add("list", 1), "WRONGTYPE").await;
        assert_refused(&pool, "a", command(&["GET", "list"]), "WRONGTYPE").await;
        assert_refused(&pool, "a", command(&["NONSENSE"]), "unknown command").await;
        assert_refused(&pool, "a", eval("return nil + 1", "a"), "arithmetic").await;
    });
}

#[test]
fn a_script_without_source_has_no_digest() {
    let redis = Redis::start();
    run(async {
        let mut options = options(&redis.url());
        options.scripts = std::sync::Arc::new([]);
        let pool = ConnectionPool::new(options).unwrap();
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        let error = connection.digest("add").unwrap_err();
        assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
    });
}

#[test]
fn a_script_that_does_not_compile_is_named() {
    let redis = Redis::start();
    run(async {
        let mut options = options(&redis.url());
        let text = "#!lua\nreturn (".to_owned();
        options.scripts = [ScriptSource { name: "broken", text }].into();
        let pool = ConnectionPool::new(options).unwrap();
        let error = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap_err().to_string();
        assert!(error.contains("script broken: "), "{error}");
    });
}
