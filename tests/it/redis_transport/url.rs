//! The syntax of `redis.url`.

use floodgate::redis::transport::{RedisTopology, RedisUrl, ServerAddress};

/// Every error ends with this.
const SYNTAX: &str = "write redis://[[user]:password@]host[:port][/db], \
     redis+cluster://[[user]:password@]host[:port],host[:port],.. or \
     redis+sentinel://[[user]:password@]host[:port],host[:port],../master-name; \
     rediss://, rediss+cluster:// or rediss+sentinel:// for TLS";

fn parse(url: &str) -> RedisUrl {
    url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn node(host: &str, port: u16) -> ServerAddress {
    ServerAddress { host: host.to_owned(), port }
}

#[test]
fn a_single_server_is_parsed() {
    let plain = parse("redis://shop");
    assert_eq!(plain.topology, RedisTopology::Single(node("shop", 6379)));
    assert_eq!((plain.credentials, plain.db, plain.tls), (None, 0, false));
    assert_eq!(parse("redis://shop/"), parse("redis://shop:6379/0"));

    let full = parse("redis://gate:p%40ss%2Fword@10.0.0.1:7000/3");
    assert_eq!(full.topology, RedisTopology::Single(node("10.0.0.1", 7000)));
    let credentials = full.credentials.unwrap();
    assert_eq!((credentials.user.as_deref(), full.db), (Some("gate"), 3));
    assert_eq!(credentials.password, "p@ss/word");
    assert_eq!(parse("redis://:x@[::1]:7000").topology, RedisTopology::Single(node("::1", 7000)));
    assert_eq!(node("::1", 7000).to_string(), "[::1]:7000");
    assert_eq!(parse("redis://[::1]").topology, RedisTopology::Single(node("::1", 6379)));
}

#[test]
fn clusters_and_sentinels_are_parsed() {
    let cluster = parse("redis+cluster://:x@a:1,b,[::1]:3");
    let nodes = vec![node("a", 1), node("b", 6379), node("::1", 3)];
    assert_eq!(cluster.topology, RedisTopology::Cluster(nodes));
    assert!(cluster.credentials.is_some());

    let sentinel = parse("redis+sentinel://a,b:2/shop");
    let sentinels = vec![node("a", 26379), node("b", 2)];
    let master = "shop".to_owned();
    assert_eq!(sentinel.topology, RedisTopology::Sentinel { sentinels, master });
}

#[test]
fn an_error_names_the_invalid_part() {
    for (url, what) in [
        ("localhost:6379", "does not begin with redis://"),
        ("http://a", "http:// is not known"),
        ("redis://", "a host is missing"),
        ("redis://a:0", "no port between 1 and 65535"),
        ("redis://a:x", "no port between 1 and 65535"),
        ("redis://a:70000", "no port between 1 and 65535"),
        ("redis://a:1:2", "no port between 1 and 65535"),
        ("redis://[::1", "no closing bracket"),
        ("redis://[::1]7", "no colon in front of the port"),
        ("redis://a,b", "one server, not several"),
        ("redis://a/x", "\"x\" is not the number of a database"),
        ("redis://a/-1", "not the number of a database"),
        ("redis://a?db=1", "'?' has no meaning here"),
        ("redis://a b", "' ' has no meaning here"),
        ("redis://secret@a", "behind a colon"),
        ("redis://:@a", "the password is empty"),
        ("redis://:%4@a", "% without two hexadecimal digits"),
        ("redis://:%ff@a", "not UTF-8"),
        ("redis+cluster://a/1", "no numbered databases"),
        ("redis+cluster://a,,b", "a host is missing"),
        ("redis+sentinel://a", "the name of the master is missing"),
        ("redis+sentinel://a/", "the name of the master is missing"),
        ("redis+sentinel://a/b/1", "not the name of one master"),
    ] {
        let error = url.parse::<RedisUrl>().unwrap_err().to_string();
        assert!(error.contains(what), "{url}: {error}");
        assert!(error.ends_with(SYNTAX), "{url}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn each_topology_may_be_encrypted() {
    for url in ["redis://a:1", "redis+cluster://a,b:2", "redis+sentinel://:x@a:1,b/shop"] {
        let (plain, encrypted) = (parse(url), parse(&url.replacen("redis", "rediss", 1)));
        assert!(!plain.tls && encrypted.tls, "{url}");
        assert_eq!(RedisUrl { tls: false, ..encrypted }, plain);
    }
    let refused = "redisss://a".parse::<RedisUrl>().unwrap_err().to_string();
    assert!(refused.contains("redisss:// is not known"), "{refused}");
}

#[test]
fn debug_output_omits_the_password() {
    let shown = format!("{:?}", parse("redis://gate:secret@a"));
    assert!(shown.contains("gate") && !shown.contains("secret"), "{shown}");
}
