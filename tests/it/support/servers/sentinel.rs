//! A master, two replicas, and three sentinels that monitor them.

use testkit::redis::Role;

use super::redis::{Redis, Replicated};
use crate::support::wait;

/// The name of the monitored master.
pub const NAME: &str = "shop";

/// A replicated set with automatic failover.
pub struct SentinelSet {
    /// The first master, then its replicas.
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
}

impl SentinelSet {
    /// Starts all servers and waits until every sentinel has discovered all others. `lines` are
    /// further lines of `redis.conf` for the first master.
    pub fn start(lines: &[&str]) -> Self {
        let Replicated { master, replicas } = Replicated::of(Redis::start_with(lines), 2);
        let monitor = [
            format!("sentinel monitor {NAME} 127.0.0.1 {} 2", master.port()),
            format!("sentinel down-after-milliseconds {NAME} 1000"),
            format!("sentinel failover-timeout {NAME} 3000"),
        ];
        let monitor: Vec<_> = monitor.iter().map(String::as_str).collect();
        let sentinel = || Redis::start_as(Role::Sentinel, &monitor);
        let sentinels: Vec<_> = (0..3).map(|_| sentinel()).collect();
        let mut servers = vec![master];
        servers.extend(replicas);
        let set = Self { servers, sentinels };
        wait::until_true("the sentinels to discover each other", || {
            let is_complete = |sentinel: &Redis| {
                let fields = ["num-slaves", "num-other-sentinels"];
                fields.map(|field| master_field(sentinel, field)) == ["2", "2"]
            };
            set.sentinels.iter().all(is_complete)
        });
        set
    }

    /// The `redis+sentinel://` URL of the set.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The server that all running sentinels report as master; `None` if they disagree.
    pub fn master(&self) -> Option<&Redis> {
        let master_port = |sentinel: &Redis| {
            sentinel.try_cmd(&["PING"]).ok().map(|_| master_field(sentinel, "port"))
        };
        let mut ports: Vec<_> = self.sentinels.iter().filter_map(master_port).collect();
        ports.dedup();
        let [port] = ports.as_slice() else { return None };
        self.servers.iter().find(|server| server.port().to_string() == *port)
    }

    /// Waits until the sentinels have promoted another server.
    pub fn until_demoted(&self, old: &Redis) -> &Redis {
        let found = || self.master().filter(|master| master.port() != old.port());
        wait::until_true("another master", || {
            found().is_some_and(|master| master.info("role") == "master")
        });
        found().expect("the master of the last poll")
    }
}

/// A field of a sentinel's `SENTINEL MASTER` answer; empty if there is none.
fn master_field(sentinel: &Redis, field: &str) -> String {
    let answer = sentinel.cmd(&["SENTINEL", "MASTER", NAME]);
    let pairs: Vec<String> = redis::from_redis_value(answer).unwrap();
    pairs.chunks(2).find(|pair| pair[0] == field).map(|pair| pair[1].clone()).unwrap_or_default()
}

#[test]
fn the_sentinels_choose_another_master() {
    let set = SentinelSet::start(&[]);
    let old = set.master().expect("sentinels that agree");
    assert_eq!(old.port(), set.servers[0].port());
    old.kill();
    let new = set.until_demoted(old);
    new.cmd(&["SET", "key", "value"]);
}
