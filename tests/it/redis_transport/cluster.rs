//! Connections to a cluster of three masters, with moving slots and crashing nodes.

use floodgate::redis::transport::{ConnectionPool, ConnectionPurpose, Error};
use redis::Value;

use super::{add, call, command, is_not_done, until_connected};
use crate::support::redis_connections::{
    CapturedLog, connection_pool, options, run, short_timeout_options,
};
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

fn code(error: &Error) -> &str {
    match error {
        Error::NotBegun { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_key_is_asked_for_where_it_is() {
    let cluster = Cluster::start(&[]);
    run(async {
        // One of the seed nodes does not exist.
        let url = cluster.url(&[1]) + ",127.0.0.1:1";
        let pool = connection_pool(&url);
        for node in 0..3 {
            for key in cluster.keys_of(node, 5) {
                let connection = pool.connection(ConnectionPurpose::Hot, &key).await.unwrap();
                assert_eq!(connection.identity().node.port, cluster.nodes[node].port());
                assert_eq!(connection.call(vec![add(&key, 7)]).await.unwrap(), [Ok(Value::Int(7))]);
                assert_eq!(cluster.nodes[node].text(&["GET", &key]), "7");
            }
        }
        let masters = pool.masters().await.unwrap();
        assert_eq!(masters.len(), 3);
        for node in &masters {
            pool.connection_to(ConnectionPurpose::Results, node).await.unwrap();
        }
        for node in &cluster.nodes {
            until("two connections", async || (node.clients() == 2).then_some(())).await;
        }
    });
}

#[test]
fn keys_of_two_slots_in_one_command_are_a_defect() {
    let cluster = Cluster::start(&[]);
    run(async {
        let pool = connection_pool(&cluster.url(&[0]));
        let keys = [cluster.keys_of(0, 1), cluster.keys_of(1, 1)].concat();
        let both = command(&["MSET", &keys[0], "1", &keys[1], "1"]);
        let error = call(&pool, ConnectionPurpose::Hot, &keys[0], both).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("CROSSSLOT"), "{error}");
    });
}

#[test]
fn a_slot_that_moves_is_refused_and_then_found() {
    let cluster = Cluster::start(&[]);
    let logs = CapturedLog::of(cluster.nodes.iter().map(|redis| redis.port()));
    run(async {
        let pool = ConnectionPool::new(options(&cluster.url(&[0, 1, 2]))).unwrap();
        let key = cluster.keys_of(0, 1).remove(0);
        let slot = cluster.slot(&key);
        let other = format!("{key}:other");
        let on_both = command(&["MGET", &key, &key.replace(":bucket", ":none")]);
        let connection = pool.connection(ConnectionPurpose::Hot, &key).await.unwrap();
        connection.call(vec![add(&key, 1), add(&other, 1)]).await.unwrap();

        cluster.begin_move(&slot, 0, 1);
        let answers = connection.call(vec![add(&key, 1), on_both.clone()]).await.unwrap();
        assert_eq!(answers[0], Ok(Value::Int(2)), "keys that have not moved are still served");
        assert_eq!(code(answers[1].as_ref().unwrap_err()), "TRYAGAIN");
        cluster.move_keys(&slot, 0, 1);
        let answers = connection.call(vec![add(&key, 1)]).await.unwrap();
        assert_eq!(code(answers[0].as_ref().unwrap_err()), "ASK");
        cluster.end_move(&slot, 0, 1);
        let answers = connection.call(vec![add(&key, 1)]).await.unwrap();
        assert_eq!(code(answers[0].as_ref().unwrap_err()), "MOVED");
        assert!(connection.is_alive(), "the node still has other slots");

        until("the new node to be found", async || {
            match call(&pool, ConnectionPurpose::Hot, &key, add(&key, 1)).await {
                Ok(answer) => {
                    assert_eq!(answer, Value::Int(3), "each call ran once or not at all");
                    Some(())
                }
                Err(error) => {
                    assert!(is_not_done(&error), "{error}");
                    None
                }
            }
        })
        .await;
        let connection = pool.connection(ConnectionPurpose::Hot, &key).await.unwrap();
        assert_eq!(connection.identity().node.port, cluster.nodes[1].port());
    });
    assert_eq!(logs.count("redis connection given up"), 0, "{}", logs.all());
}

#[test]
fn a_killed_node_is_reconnected_and_the_others_go_on() {
    let cluster = Cluster::start(&["cluster-require-full-coverage no"]);
    run(async {
        let pool = ConnectionPool::new(short_timeout_options(&cluster.url(&[0, 1, 2]))).unwrap();
        let keys: Vec<_> = (0..3).map(|node| cluster.keys_of(node, 1).remove(0)).collect();
        for key in &keys {
            until_connected(&pool, key).await;
        }
        let old = pool
            .connection(ConnectionPurpose::Hot, &keys[0])
            .await
            .unwrap()
            .identity()
            .run_id
            .clone();
        cluster.nodes[0].kill();
        until("the connection to end", async || {
            pool.connection(ConnectionPurpose::Hot, &keys[0]).await.is_err().then_some(())
        })
        .await;
        for key in &keys[1..] {
            until("the other nodes to answer", async || {
                call(&pool, ConnectionPurpose::Hot, key, add(key, 1)).await.ok()
            })
            .await;
        }
        cluster.nodes[0].restart();
        let restarted = until("the node to come back", async || {
            let connection = pool.connection(ConnectionPurpose::Hot, &keys[0]).await.ok()?;
            let answers = connection.call(vec![add(&keys[0], 1)]).await.ok()?;
            answers[0].is_ok().then_some(connection)
        })
        .await;
        assert_ne!(restarted.identity().run_id, old);
    });
}

#[test]
fn a_cluster_that_is_not_whole_is_down() {
    let cluster = Cluster::start(&[]);
    run(async {
        let pool = ConnectionPool::new(short_timeout_options(&cluster.url(&[1]))).unwrap();
        let key = cluster.keys_of(1, 1).remove(0);
        until_connected(&pool, &key).await;
        cluster.nodes[0].kill();
        until("the other nodes to report the failure", async || {
            match call(&pool, ConnectionPurpose::Hot, &key, add(&key, 1)).await {
                Err(error @ Error::NotBegun { .. }) => {
                    (code(&error) == "CLUSTERDOWN").then_some(())
                }
                _ => None,
            }
        })
        .await;
        cluster.nodes[0].restart();
        until("the cluster to cover all slots", async || {
            call(&pool, ConnectionPurpose::Hot, &key, add(&key, 1)).await.ok()
        })
        .await;
    });
}

#[test]
fn a_single_server_is_no_cluster() {
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&format!("redis+cluster://{}", redis.addr()));
        let error = pool.connection(ConnectionPurpose::Hot, "a").await.unwrap_err();
        assert!(is_not_done(&error), "{error}");
        assert!(error.to_string().contains("cluster support disabled"), "{error}");
    });
}
