//! What real servers say when they refuse, and what it means.

use floodgate::redis::transport::{
    CallEffect, ConnectionPool, ConnectionPurpose, Error, ScriptSource,
};

use super::{Ask, add, ask, command, until_connected};
use crate::support::links::{Heard, links, options, run};
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::wait::until;

/// Asks on a link that is there already, and requires that nothing was begun.
async fn not_begun(links: &ConnectionPool, key: &str, request: Ask, code: &str) {
    let error = ask(links, ConnectionPurpose::Hot, key, request).await.unwrap_err();
    let Error::NotBegun { code: found, .. } = &error else { panic!("{error:?}") };
    assert_eq!(found, code, "{error}");
    assert_eq!(error.class(), CallEffect::NotDone);
}

async fn refused(links: &ConnectionPool, key: &str, request: Ask, text: &str) {
    let error = ask(links, ConnectionPurpose::Hot, key, request).await.unwrap_err();
    assert_eq!(error.class(), CallEffect::Refused, "{error:?}");
    assert!(error.to_string().contains(text), "{error}");
}

fn eval(text: &str, key: &str) -> Ask {
    command(&["EVAL", text, "1", key])
}

#[test]
fn a_full_server() {
    let redis = Redis::start_with(&["maxmemory-policy noeviction"]);
    run(async {
        let links = links(&redis.url());
        ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        not_begun(&links, "a", add("a", 1), "OOM").await;
        not_begun(&links, "a", command(&["SET", "a", "2"]), "OOM").await;
        // Without the first line, a script begins all the same; this one frees before it needs.
        let late = "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'x')";
        let freed = "redis.call('DEL', KEYS[1]) return 1";
        ask(&links, ConnectionPurpose::Hot, "a", eval(freed, "b")).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        ask(&links, ConnectionPurpose::Hot, "a", eval(late, "a")).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        let stuck = "return redis.call('SET', KEYS[1], 'x')";
        refused(&links, "a", eval(stuck, "a"), "OOM").await;
        redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        ask(&links, ConnectionPurpose::Hot, "a", add("c", 1)).await.unwrap();
    });
}

#[test]
fn a_server_that_cannot_write_its_file() {
    let redis = Redis::start_with(&["save 3600 1", "stop-writes-on-bgsave-error yes"]);
    run(async {
        let links = links(&redis.url());
        ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        // A folder of the file's name: not even root can write a file over it.
        std::fs::create_dir(redis.folder().join("dump.rdb")).unwrap();
        redis.cmd(&["BGSAVE"]);
        until("the failure", async || {
            (redis.info("rdb_last_bgsave_status") == "err").then_some(())
        })
        .await;
        not_begun(&links, "a", add("a", 1), "MISCONF").await;
        assert_eq!(redis.text(&["GET", "a"]), "1");
    });
}

#[test]
fn a_master_with_too_few_replicas() {
    let redis = Redis::start();
    run(async {
        let links = links(&redis.url());
        ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        not_begun(&links, "a", add("a", 1), "NOREPLICAS").await;
        redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
    });
}

#[test]
fn a_server_that_runs_a_script_without_end() {
    let redis = Redis::start_with(&["busy-reply-threshold 1"]);
    run(async {
        let links = links(&redis.url());
        ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        let endless = links.link(ConnectionPurpose::Results, "a").await.unwrap();
        let requests = [eval("while true do end", "a")];
        let running = endless.call(&requests);
        let stopping = async {
            until("the server to be busy", async || {
                let error = ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.err()?;
                assert_eq!(error.class(), CallEffect::NotDone, "{error:?}");
                assert!(error.to_string().contains("BUSY"), "{error}");
                Some(())
            })
            .await;
            redis.cmd(&["SCRIPT", "KILL"]);
        };
        let (ended, ()) = futures_util::future::join(running, stopping).await;
        let error = ended.unwrap()[0].clone().unwrap_err();
        assert_eq!(error.class(), CallEffect::Refused, "it may have written before: {error}");
    });
}

#[test]
fn a_server_that_is_still_reading_its_file() {
    let slow =
        ["appendonly yes", "key-load-delay 1000", "loading-process-events-interval-bytes 1024"];
    let redis = Redis::start_with(&slow);
    redis.cmd(&["DEBUG", "POPULATE", "100000", "key", "10"]);
    redis.cmd(&["BGREWRITEAOF"]);
    crate::support::wait::until_true("the file", || {
        redis.info("aof_rewrite_in_progress") == "0" && redis.info("aof_rewrite_scheduled") == "0"
    });
    redis.kill();
    redis.launch();
    run(async {
        let links = links(&redis.url());
        let error = until("the server to read", async || {
            let error = links.link(ConnectionPurpose::Hot, "a").await.err()?;
            assert_eq!(error.class(), CallEffect::NotDone);
            error.to_string().contains("LOADING").then_some(error)
        })
        .await;
        assert_eq!(error.class(), CallEffect::NotDone);
        redis.cmd(&["CONFIG", "SET", "key-load-delay", "0"]);
        until_connected(&links, "a").await;
    });
}

#[test]
fn a_master_that_became_a_replica() {
    let set = Replicated::start(1);
    let heard = Heard::of([set.master.port()]);
    run(async {
        let links = ConnectionPool::new(options(&set.master.url())).unwrap();
        ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        let copied = || set.replicas[0].cmd(&["EXISTS", "a"]) == redis::Value::Int(1);
        until("the copy", async || copied().then_some(())).await;
        set.replicas[0].replica_of_no_one();
        set.master.replica_of(&set.replicas[0]);
        not_begun(&links, "a", add("a", 1), "READONLY").await;
        let error = until("a new attempt", async || {
            let error = ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap_err();
            error.to_string().contains("it is a replica of").then_some(error)
        })
        .await;
        let other = format!("127.0.0.1:{}", set.replicas[0].port());
        assert!(error.to_string().contains(&other), "{error}");
        assert_eq!(set.replicas[0].text(&["GET", "a"]), "1");
    });
    assert_eq!(heard.count("redis connection given up"), 1, "{}", heard.all());
}

#[test]
fn a_replica_is_not_connected_to() {
    let set = Replicated::start(1);
    run(async {
        let links = links(&set.replicas[0].url());
        let error = links.link(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert_eq!(error.class(), CallEffect::NotDone);
        assert!(error.to_string().contains("it is a replica of 127.0.0.1"), "{error}");
    });
}

#[test]
fn a_user_who_may_not() {
    let redis = Redis::start();
    redis.cmd(&["ACL", "SETUSER", "gate", "on", ">secret", "~a*", "+@all", "-flushall"]);
    run(async {
        let links = links(&format!("redis://gate:secret@{}", redis.addr()));
        ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap();
        not_begun(&links, "a", command(&["FLUSHALL"]), "NOPERM").await;
        not_begun(&links, "a", command(&["GET", "b"]), "NOPERM").await;
        redis.cmd(&["ACL", "DELUSER", "gate"]);
        let error = until("the end", async || {
            links
                .link(ConnectionPurpose::Hot, "a")
                .await
                .err()
                .filter(|error| error.to_string().contains("PASS"))
        })
        .await;
        assert_eq!(error.class(), CallEffect::NotDone);
    });
}

#[test]
fn foreign_data_and_defects() {
    let redis = Redis::start();
    run(async {
        let links = links(&redis.url());
        redis.cmd(&["LPUSH", "list", "x"]);
        refused(&links, "a", add("list", 1), "WRONGTYPE").await;
        refused(&links, "a", command(&["GET", "list"]), "WRONGTYPE").await;
        refused(&links, "a", command(&["NONSENSE"]), "unknown command").await;
        refused(&links, "a", eval("return nil + 1", "a"), "arithmetic").await;
    });
}

#[test]
fn a_script_that_nobody_gave_is_not_sent() {
    let redis = Redis::start();
    run(async {
        let mut options = options(&redis.url());
        options.scripts = std::sync::Arc::new([]);
        let links = ConnectionPool::new(options).unwrap();
        let error = ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.unwrap_err();
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
        let links = ConnectionPool::new(options).unwrap();
        let error = links.link(ConnectionPurpose::Hot, "a").await.unwrap_err().to_string();
        assert!(error.contains("script broken: "), "{error}");
    });
}
