//! A master, two replicas, and three sentinels that watch them.

use super::redis::{Redis, Replicated};
use crate::support::wait;

/// The name under which the master is watched.
pub const NAME: &str = "shop";

/// A set that finds itself a new master.
pub struct Watched {
    /// The first master, then its replicas.
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
}

impl Watched {
    /// Starts everything and waits until every sentinel knows all of it; with further lines of
    /// `redis.conf` for the first master.
    pub fn start(lines: &[&str]) -> Self {
        let Replicated { master, replicas } = Replicated::of(Redis::start_with(lines), 2);
        let watch = [
            format!("sentinel monitor {NAME} 127.0.0.1 {} 2", master.port()),
            format!("sentinel down-after-milliseconds {NAME} 1000"),
            format!("sentinel failover-timeout {NAME} 3000"),
        ];
        let watch: Vec<_> = watch.iter().map(String::as_str).collect();
        let sentinel = || Redis::start_program("redis-sentinel", &watch);
        let sentinels: Vec<_> = (0..3).map(|_| sentinel()).collect();
        let mut servers = vec![master];
        servers.extend(replicas);
        let set = Self { servers, sentinels };
        wait::until_true("the sentinels to know each other", || {
            let knows = |sentinel: &Redis| {
                let asked = ["num-slaves", "num-other-sentinels"];
                asked.map(|field| told(sentinel, field)) == ["2", "2"]
            };
            set.sentinels.iter().all(knows)
        });
        set
    }

    /// `redis+sentinel://..`
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|one| one.addr().to_string()).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }

    /// The server that all sentinels that run call the master.
    pub fn master(&self) -> Option<&Redis> {
        let ask =
            |sentinel: &Redis| sentinel.try_cmd(&["PING"]).ok().map(|_| told(sentinel, "port"));
        let mut ports: Vec<_> = self.sentinels.iter().filter_map(ask).collect();
        ports.dedup();
        let [port] = ports.as_slice() else { return None };
        self.servers.iter().find(|server| server.port().to_string() == *port)
    }

    /// Waits until the sentinels have made another server the master.
    pub fn until_not_master(&self, old: &Redis) -> &Redis {
        let found = || self.master().filter(|master| master.port() != old.port());
        wait::until_true("another master", || {
            found().is_some_and(|master| master.info("role") == "master")
        });
        found().expect("there was one")
    }
}

/// What a sentinel knows of the master.
fn told(sentinel: &Redis, field: &str) -> String {
    let answer = sentinel.cmd(&["SENTINEL", "MASTER", NAME]);
    let pairs: Vec<String> = redis::from_redis_value(answer).unwrap();
    pairs.chunks(2).find(|pair| pair[0] == field).map(|pair| pair[1].clone()).unwrap_or_default()
}

#[test]
fn the_sentinels_choose_another_master() {
    let set = Watched::start(&[]);
    let old = set.master().expect("they agree");
    assert_eq!(old.port(), set.servers[0].port());
    old.kill();
    let new = set.until_not_master(old);
    new.cmd(&["SET", "key", "value"]);
}
