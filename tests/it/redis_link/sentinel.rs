//! A master that sentinels replace.

use floodgate::redis::transport::{CallEffect, ConnectionPool, ConnectionPurpose, Error};
use redis::Value;

use super::{add, ask, until_connected};
use crate::support::links::{Heard, impatient, links, run};
use crate::support::servers::redis::Redis;
use crate::support::servers::sentinel::Watched;
use crate::support::wait::until;

#[test]
fn a_master_that_is_killed_is_replaced_by_what_the_sentinels_chose() {
    let set = Watched::start(&[]);
    let heard = Heard::of(set.servers.iter().map(Redis::port));
    run(async {
        let links = ConnectionPool::new(impatient(&set.url())).unwrap();
        let old = until_connected(&links, "a").await;
        assert_eq!(old.identity().node.port, set.servers[0].port());
        // Two of three are enough.
        set.sentinels[0].kill();
        set.servers[0].kill();
        until("the new master", async || {
            let asked = ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await;
            assert!(!matches!(asked, Err(Error::Refused { .. })), "{asked:?}");
            asked.ok()
        })
        .await;
        let new = links.link(ConnectionPurpose::Hot, "a").await.unwrap();
        assert_ne!(new.identity().node, old.identity().node);
        assert_ne!(new.identity().run_id, old.identity().run_id);
        let server = set.servers.iter().find(|one| one.port() == new.identity().node.port).unwrap();
        assert_eq!(server.info("role"), "master");
    });
    assert_eq!(heard.count("redis masters moved"), 1, "{}", heard.all());
}

#[test]
fn a_master_that_is_demoted_is_left_although_it_answers() {
    let set = Watched::start(&[]);
    run(async {
        let links = links(&set.url());
        let old = until_connected(&links, "a").await;
        until("the fail-over to begin", async || {
            set.sentinels[0].try_cmd(&["SENTINEL", "FAILOVER", "shop"]).ok()
        })
        .await;
        // Whatever the old one is asked from here on is done or certainly not done.
        let new = until("the new master", async || {
            match ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await {
                Ok(_) => {}
                Err(error) => assert_ne!(error.class(), CallEffect::Refused, "{error}"),
            }
            let link = links.link(ConnectionPurpose::Hot, "a").await.ok()?;
            (link.identity().node != old.identity().node).then_some(link)
        })
        .await;
        assert!(!old.is_alive());
        new.call(&[add("a", 1)]).await.unwrap();
        let server = set.until_not_master(&set.servers[0]);
        assert_eq!(server.port(), new.identity().node.port);
    });
}

#[test]
fn a_master_that_was_replaced_without_its_knowledge_is_left_although_it_writes() {
    // The sentinels cannot tell it that it is one no longer, as if they were cut off from it.
    let deaf = ["rename-command SLAVEOF \"\"", "rename-command REPLICAOF \"\""];
    let set = Watched::start(&deaf);
    run(async {
        let links = links(&set.url());
        let old = until_connected(&links, "a").await;
        until("the fail-over to begin", async || {
            set.sentinels[0].try_cmd(&["SENTINEL", "FAILOVER", "shop"]).ok()
        })
        .await;
        let new = until("the new master", async || {
            ask(&links, ConnectionPurpose::Hot, "a", add("a", 1)).await.ok()?;
            let link = links.link(ConnectionPurpose::Hot, "a").await.ok()?;
            (link.identity().node != old.identity().node).then_some(link)
        })
        .await;
        let server = set.until_not_master(&set.servers[0]);
        assert_eq!(server.port(), new.identity().node.port);
        assert_eq!(set.servers[0].info("role"), "master", "it does not know");
        let error = old.call(&[add("a", 1)]).await.unwrap_err().to_string();
        assert!(error.contains("it is no longer a master"), "{error}");
    });
}

#[test]
fn sentinels_are_believed_by_their_news_and_only_needed_to_find_the_master() {
    let set = Watched::start(&[]);
    run(async {
        let other = links(&set.url().replace("/shop", "/other"));
        let error = other.link(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert_eq!(error.class(), CallEffect::NotDone);
        assert!(error.to_string().contains("No such master with that name"), "{error}");

        let connected = links(&set.url());
        let link = connected.link(ConnectionPurpose::Hot, "a").await.unwrap();
        assert_eq!(connected.masters().await.unwrap(), [link.identity().node.clone()]);

        // A password that only the sentinels have: the master takes any.
        for sentinel in &set.sentinels {
            sentinel.cmd(&["ACL", "SETUSER", "default", "resetpass", ">secret"]);
        }
        let error = links(&set.url()).link(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert!(error.to_string().contains("NOAUTH"), "{error}");
        let known = links(&set.url().replace("://", "://:secret@"));
        until("the way in", async || known.link(ConnectionPurpose::Hot, "a").await.ok()).await;

        for sentinel in &set.sentinels {
            sentinel.kill();
        }
        assert_eq!(link.call(&[add("a", 1)]).await.unwrap(), [Ok(Value::Int(1))]);
        set.servers[0].cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
        until("the end", async || (!link.is_alive()).then_some(())).await;
        until_connected(&connected, "a").await;
        let error =
            links(&set.url()).link(ConnectionPurpose::Hot, "a").await.unwrap_err().to_string();
        assert!(error.contains("no sentinel tells where master shop is"), "{error}");
    });
}
