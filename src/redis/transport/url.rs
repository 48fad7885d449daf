//! The `redis.url` setting: addresses, topology and credentials.

use std::fmt;
use std::str::FromStr;

/// Every [`UrlError`] ends with this.
const SYNTAX: &str = "write redis://[[user]:password@]host[:port][/db], \
     rediss:// for TLS, redis+cluster://[[user]:password@]host[:port],host[:port],.. or \
     redis+sentinel://[[user]:password@]host[:port],host[:port],../master-name";

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// Sanity limit; Redis can be configured with more.
const DB_MAX: i64 = 1_000;

/// The URL is invalid. The message never contains the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("redis.url: {0}; {SYNTAX}")]
pub struct UrlError(String);

/// Address of one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerAddress {
    /// Name or IP address, without brackets.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How to find the masters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisTopology {
    /// One server.
    Single(ServerAddress),
    /// Sentinels name the current master.
    Sentinel {
        sentinels: Vec<ServerAddress>,
        /// The name of the monitored master.
        master: String,
    },
    /// A Redis Cluster; each master has some of the 16384 hash slots.
    Cluster(
        /// Seed nodes.
        Vec<ServerAddress>,
    ),
}

/// User and password; `Debug` omits the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `None`: the default user.
    pub user: Option<String>,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A parsed `redis.url`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub topology: RedisTopology,
    /// Sent to sentinels only if they require a password.
    pub credentials: Option<Credentials>,
    /// Database number.
    pub db: i64,
    pub tls: bool,
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let no_scheme = || UrlError("it does not begin with redis://".to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(no_scheme)?;
        if let Some(forbidden) = rest.chars().find(|c| c.is_whitespace() || "?#".contains(*c)) {
            return Err(UrlError(format!("{forbidden:?} has no meaning here")));
        }
        // `@` and `/` must be percent-encoded in a password. Splitting at the last `@` keeps an
        // unencoded password out of the host names, which are logged.
        let (userinfo, hosts_and_path) =
            rest.rsplit_once('@').map_or((None, rest), |(w, p)| (Some(w), p));
        let credentials = userinfo.map(credentials).transpose()?;
        let (hosts, path) =
            hosts_and_path.split_once('/').map_or((hosts_and_path, None), |(h, p)| (h, Some(p)));
        let (topology, db) = match scheme {
            "redis" | "rediss" => {
                let nodes = nodes(hosts, REDIS_PORT)?;
                let [node] = nodes.as_slice() else {
                    return Err(UrlError(format!("{scheme}:// is one server, not several")));
                };
                (RedisTopology::Single(node.clone()), database(path)?)
            }
            "redis+cluster" if path.is_some_and(|path| !path.is_empty()) => {
                return Err(UrlError("a cluster has no numbered databases".to_owned()));
            }
            "redis+cluster" => (RedisTopology::Cluster(nodes(hosts, REDIS_PORT)?), 0),
            "redis+sentinel" => {
                let sentinels = nodes(hosts, SENTINEL_PORT)?;
                (RedisTopology::Sentinel { sentinels, master: master(path)? }, 0)
            }
            other => return Err(UrlError(format!("{other}:// is not known"))),
        };
        let tls = scheme == "rediss";
        if tls && !cfg!(feature = "tls") {
            let how = "this program was built without TLS; build it with `--features tls`";
            return Err(UrlError(how.to_owned()));
        }
        Ok(Self { topology, credentials, db, tls })
    }
}

fn credentials(text: &str) -> Result<Credentials, UrlError> {
    let (user, password) = text
        .split_once(':')
        .ok_or_else(|| UrlError("a password stands behind a colon, as in :password@".to_owned()))?;
    let password = decode(password)?;
    if password.is_empty() {
        return Err(UrlError("the password is empty".to_owned()));
    }
    let user = (!user.is_empty()).then(|| decode(user)).transpose()?;
    Ok(Credentials { user, password })
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Result<String, UrlError> {
    let invalid =
        || UrlError("a user or password holds % without two hexadecimal digits".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next()), digit(rest.next()));
        let code = high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(code.ok_or_else(invalid)?);
    }
    let not_text = |_| UrlError("a user or password is not UTF-8".to_owned());
    String::from_utf8(bytes).map_err(not_text)
}

fn nodes(text: &str, default_port: u16) -> Result<Vec<ServerAddress>, UrlError> {
    text.split(',').map(|node| self::node(node, default_port)).collect()
}

fn node(text: &str, default_port: u16) -> Result<ServerAddress, UrlError> {
    let invalid = |what: &str| UrlError(format!("{text:?} {what}"));
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or_else(|| invalid("has no closing bracket"))?;
        let port = match port.strip_prefix(':') {
            Some(port) => Some(port),
            None if port.is_empty() => None,
            None => return Err(invalid("has no colon in front of the port")),
        };
        (host, port)
    } else {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    if host.is_empty() {
        return Err(UrlError("a host is missing".to_owned()));
    }
    if host.contains('/') || (host.contains(':') && !text.starts_with('[')) {
        return Err(invalid("is not a host"));
    }
    let port = match port {
        None => default_port,
        Some(port) => match port.parse() {
            Ok(port @ 1..) => port,
            _ => return Err(invalid("has no port between 1 and 65535")),
        },
    };
    Ok(ServerAddress { host: host.to_owned(), port })
}

fn database(path: Option<&str>) -> Result<i64, UrlError> {
    match path {
        None | Some("") => Ok(0),
        Some(db) => match db.parse() {
            Ok(number @ 0..DB_MAX) => Ok(number),
            _ => Err(UrlError(format!("{db:?} is not the number of a database"))),
        },
    }
}

fn master(path: Option<&str>) -> Result<String, UrlError> {
    match path {
        Some(name) if !name.is_empty() && !name.contains('/') => Ok(name.to_owned()),
        Some(name) if name.contains('/') => {
            Err(UrlError(format!("{name:?} is not the name of one master")))
        }
        _ => Err(UrlError("the name of the master is missing".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            parse("redis://:x@[::1]:7000").topology,
            RedisTopology::Single(node("::1", 7000))
        );
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

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_requires_the_build_feature() {
        let error = "rediss://a".parse::<RedisUrl>().unwrap_err().to_string();
        assert!(error.contains("--features tls"), "{error}");
    }

    #[test]
    fn debug_output_omits_the_password() {
        let shown = format!("{:?}", parse("redis://gate:secret@a"));
        assert!(shown.contains("gate") && !shown.contains("secret"), "{shown}");
    }
}
