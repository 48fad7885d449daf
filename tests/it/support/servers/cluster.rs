//! A Redis Cluster of three masters.

use redis::Value;

use super::Port;
use super::redis::Redis;
use crate::support::wait;

/// First and last slot of each master.
const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

pub struct Cluster {
    pub nodes: Vec<Redis>,
    /// Ports of the cluster bus.
    buses: Vec<Port>,
}

impl Cluster {
    /// Starts three nodes with further lines of `redis.conf` and waits until [`Self::is_whole`].
    pub fn start(lines: &[&str]) -> Self {
        let buses: Vec<_> = SLOTS.iter().map(|_| Port::claim().unwrap()).collect();
        let node = |bus: &Port| {
            let port = format!("cluster-port {}", bus.number());
            let own = ["cluster-enabled yes", "cluster-node-timeout 2000", &port];
            let all: Vec<_> = own.iter().chain(lines).copied().collect();
            Redis::start_with(&all)
        };
        let nodes = buses.iter().map(node).collect();
        let cluster = Self { nodes, buses };
        cluster.join();
        cluster
    }

    fn join(&self) {
        for (index, (node, (first, last))) in self.nodes.iter().zip(SLOTS).enumerate() {
            let [first, last, epoch] =
                [first.into(), last.into(), index + 1].map(|n| n.to_string());
            node.cmd(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            node.cmd(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for (node, bus) in self.nodes.iter().zip(&self.buses).skip(1) {
            let [port, bus] = [node.port(), bus.number()].map(|n| n.to_string());
            self.nodes[0].cmd(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        wait::until_true("the cluster to assign every slot", || self.is_whole());
    }

    /// Whether every node reports the state `ok` and three nodes.
    pub fn is_whole(&self) -> bool {
        let is_complete = |node: &Redis| {
            let info = node.text(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3\r")
        };
        self.nodes.iter().all(is_complete)
    }

    /// The `redis+cluster://` URL with these seed nodes.
    pub fn url(&self, nodes: &[usize]) -> String {
        let hosts: Vec<_> = nodes.iter().map(|&node| self.nodes[node].addr().to_string()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub fn slot(&self, key: &str) -> String {
        self.nodes[0].text(&["CLUSTER", "KEYSLOT", key])
    }

    /// `count` keys `{n:1}:bucket` whose slots initially belong to the node.
    pub fn keys_of(&self, node: usize, count: usize) -> Vec<String> {
        let (first, last) = SLOTS[node];
        let keys = (0..).map(|number| format!("{{{number}:1}}:bucket"));
        let is_on_node = |key: &String| (first..=last).contains(&self.slot(key).parse().unwrap());
        keys.filter(is_on_node).take(count).collect()
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].text(&["CLUSTER", "MYID"])
    }

    /// Starts the migration of a slot: `from` answers ASK for keys that it no longer has.
    pub fn begin_move(&self, slot: &str, from: usize, to: usize) {
        self.nodes[to].cmd(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &self.id(from)]);
        self.nodes[from].cmd(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &self.id(to)]);
    }

    /// Migrates the keys of a slot.
    pub fn move_keys(&self, slot: &str, from: usize, to: usize) {
        let port = self.nodes[to].port().to_string();
        let keys = self.nodes[from].cmd(&["CLUSTER", "GETKEYSINSLOT", slot, "1000"]);
        let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
        for key in keys {
            self.nodes[from].cmd(&["MIGRATE", "127.0.0.1", &port, &key, "0", "10000"]);
        }
    }

    /// Completes the migration: `from` answers MOVED.
    pub fn end_move(&self, slot: &str, from: usize, to: usize) {
        let id = self.id(to);
        for node in [to, from] {
            assert_eq!(
                self.nodes[node].cmd(&["CLUSTER", "SETSLOT", slot, "NODE", &id]),
                Value::Okay
            );
        }
    }
}

#[test]
fn each_node_has_its_slots() {
    let cluster = Cluster::start(&[]);
    for node in 0..3 {
        for key in cluster.keys_of(node, 3) {
            cluster.nodes[node].cmd(&["SET", &key, "here"]);
            let error = cluster.nodes[(node + 1) % 3].try_cmd(&["GET", &key]).unwrap_err();
            assert_eq!(error.code(), Some("MOVED"));
        }
    }
    let key = &cluster.keys_of(0, 1)[0];
    let slot = cluster.slot(key);
    cluster.begin_move(&slot, 0, 1);
    cluster.move_keys(&slot, 0, 1);
    assert_eq!(cluster.nodes[0].try_cmd(&["GET", key]).unwrap_err().code(), Some("ASK"));
    cluster.end_move(&slot, 0, 1);
    assert_eq!(cluster.nodes[1].text(&["GET", key]), "here");
}
