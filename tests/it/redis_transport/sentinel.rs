//! Connections to a master that sentinels replace.

use floodgate::redis::transport::{ConnectionPool, ConnectionPurpose, Error};
use redis::Value;

use super::{add, call, is_not_done, until_connected};
use crate::support::redis_connections::{CapturedLog, connection_pool, run, short_timeout_options};
use crate::support::servers::sentinel::SentinelSet;
use crate::support::wait::until;

#[test]
fn a_master_that_is_killed_is_replaced_by_what_the_sentinels_chose() {
    let set = SentinelSet::start(&[]);
    let logs = CapturedLog::of(set.servers.iter().map(|redis| redis.port()));
    run(async {
        let pool = ConnectionPool::new(short_timeout_options(&set.url())).unwrap();
        let old = until_connected(&pool, "a").await;
        assert_eq!(old.identity().node.port, set.servers[0].port());
        // Two of three sentinels are a quorum.
        set.sentinels[0].kill();
        set.servers[0].kill();
        until("the new master", async || {
            let result = call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await;
            assert!(!matches!(result, Err(Error::Refused { .. })), "{result:?}");
            result.ok()
        })
        .await;
        let new = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        assert_ne!(new.identity().node, old.identity().node);
        assert_ne!(new.identity().run_id, old.identity().run_id);
        let server = set.servers.iter().find(|one| one.port() == new.identity().node.port).unwrap();
        assert_eq!(server.info("role"), "master");
    });
    assert_eq!(logs.count("redis masters moved"), 1, "{}", logs.all());
}

#[test]
fn a_master_that_is_demoted_is_left_although_it_answers() {
    let set = SentinelSet::start(&[]);
    run(async {
        let pool = connection_pool(&set.url());
        let old = until_connected(&pool, "a").await;
        until("the fail-over to begin", async || {
            set.sentinels[0].try_cmd(&["SENTINEL", "FAILOVER", "shop"]).ok()
        })
        .await;
        // From here on every call either runs or certainly does not run.
        let new = until("the new master", async || {
            match call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await {
                Ok(_) => {}
                Err(error) => assert!(!matches!(error, Error::Refused { .. }), "{error}"),
            }
            let connection = pool.connection(ConnectionPurpose::Hot, "a").await.ok()?;
            (connection.identity().node != old.identity().node).then_some(connection)
        })
        .await;
        assert!(!old.is_alive());
        new.call(vec![add("a", 1)]).await.unwrap();
        let server = set.until_demoted(&set.servers[0]);
        assert_eq!(server.port(), new.identity().node.port);
    });
}

#[test]
fn a_master_that_was_replaced_without_its_knowledge_is_left_although_it_writes() {
    // The sentinels cannot demote the old master, as if they were partitioned from it.
    let not_demotable = ["rename-command SLAVEOF \"\"", "rename-command REPLICAOF \"\""];
    let set = SentinelSet::start(&not_demotable);
    run(async {
        let pool = connection_pool(&set.url());
        let old = until_connected(&pool, "a").await;
        until("the fail-over to begin", async || {
            set.sentinels[0].try_cmd(&["SENTINEL", "FAILOVER", "shop"]).ok()
        })
        .await;
        let new = until("the new master", async || {
            call(&pool, ConnectionPurpose::Hot, "a", add("a", 1)).await.ok()?;
            let connection = pool.connection(ConnectionPurpose::Hot, "a").await.ok()?;
            (connection.identity().node != old.identity().node).then_some(connection)
        })
        .await;
        let server = set.until_demoted(&set.servers[0]);
        assert_eq!(server.port(), new.identity().node.port);
        assert_eq!(set.servers[0].info("role"), "master", "the old master was not demoted");
        let error = old.call(vec![add("a", 1)]).await.unwrap_err().to_string();
        assert!(error.contains("it is no longer a master"), "{error}");
    });
}

#[test]
fn sentinels_are_needed_only_to_find_the_master() {
    let set = SentinelSet::start(&[]);
    run(async {
        let other = connection_pool(&set.url().replace("/shop", "/other"));
        let error = other.connection(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert!(is_not_done(&error), "{error}");
        assert!(error.to_string().contains("No such master with that name"), "{error}");

        let pool = connection_pool(&set.url());
        let connection = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap();
        assert_eq!(pool.masters().await.unwrap(), [connection.identity().node.clone()]);

        // Only the sentinels require this password: the master accepts any.
        for sentinel in &set.sentinels {
            sentinel.cmd(&["ACL", "SETUSER", "default", "resetpass", ">secret"]);
        }
        let error =
            connection_pool(&set.url()).connection(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert!(error.to_string().contains("NOAUTH"), "{error}");
        let with_password = connection_pool(&set.url().replace("://", "://:secret@"));
        until("a connection with the password", async || {
            with_password.connection(ConnectionPurpose::Hot, "a").await.ok()
        })
        .await;

        for sentinel in &set.sentinels {
            sentinel.kill();
        }
        assert_eq!(connection.call(vec![add("a", 1)]).await.unwrap(), [Ok(Value::Int(1))]);
        set.servers[0].cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
        until("the connection to end", async || (!connection.is_alive()).then_some(())).await;
        until_connected(&pool, "a").await;
        let error = connection_pool(&set.url())
            .connection(ConnectionPurpose::Hot, "a")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("no sentinel tells where master shop is"), "{error}");
    });
}
