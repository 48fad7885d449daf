//! Where Redis is, as an operator writes it.

use std::fmt;
use std::str::FromStr;

/// The one line that every refusal ends with.
const RIGHT: &str = "write redis://[[user]:password@]host[:port][/db], \
     rediss:// for TLS, redis+cluster://[[user]:password@]host[:port],host[:port],.. or \
     redis+sentinel://[[user]:password@]host[:port],host[:port],../master-name";

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// Redis can be configured to have more databases; nobody was seen who wanted them.
const DB_MAX: i64 = 1_000;

/// Why a URL is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("redis.url: {0}; {RIGHT}")]
pub struct UrlError(String);

/// One server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerAddress {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
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

/// How the masters are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisTopology {
    /// There is one.
    Single(ServerAddress),
    /// Sentinels know which server it is now.
    Sentinel {
        /// The sentinels, asked in this order.
        sentinels: Vec<ServerAddress>,
        /// The name under which they watch the master.
        master: String,
    },
    /// Each has some of the 16384 hash slots.
    Cluster(
        /// Nodes to ask first.
        Vec<ServerAddress>,
    ),
}

/// Who we are.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `None`: the default user.
    pub user: Option<String>,
    /// Never shown.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// How the masters are found.
    pub topology: RedisTopology,
    /// Who we are; for sentinels only if they ask.
    pub credentials: Option<Credentials>,
    /// Which database.
    pub db: i64,
    /// Whether the connections are encrypted.
    pub tls: bool,
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let no_scheme = || UrlError("it does not begin with redis://".to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(no_scheme)?;
        if let Some(odd) = rest.chars().find(|c| c.is_whitespace() || "?#".contains(*c)) {
            return Err(UrlError(format!("{odd:?} has no meaning here")));
        }
        // A password may hold `@` and `/` only in encoded form, but a mistake must not leak it into
        // a host name that is shown.
        let (who, place) = rest.rsplit_once('@').map_or((None, rest), |(w, p)| (Some(w), p));
        let credentials = who.map(credentials).transpose()?;
        let (hosts, path) = place.split_once('/').map_or((place, None), |(h, p)| (h, Some(p)));
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

/// `%41` is `A`.
fn decode(text: &str) -> Result<String, UrlError> {
    let wrong = || UrlError("a user or password holds % without two hexadecimal digits".to_owned());
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
        bytes.push(code.ok_or_else(wrong)?);
    }
    let not_text = |_| UrlError("a user or password is not UTF-8".to_owned());
    String::from_utf8(bytes).map_err(not_text)
}

fn nodes(text: &str, default_port: u16) -> Result<Vec<ServerAddress>, UrlError> {
    text.split(',').map(|node| self::node(node, default_port)).collect()
}

fn node(text: &str, default_port: u16) -> Result<ServerAddress, UrlError> {
    let wrong = |what: &str| UrlError(format!("{text:?} {what}"));
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']').ok_or_else(|| wrong("has no closing bracket"))?;
        let port = match port.strip_prefix(':') {
            Some(port) => Some(port),
            None if port.is_empty() => None,
            None => return Err(wrong("has no colon in front of the port")),
        };
        (host, port)
    } else {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    if host.is_empty() {
        return Err(UrlError("a host is missing".to_owned()));
    }
    if host.contains('/') || (host.contains(':') && !text.starts_with('[')) {
        return Err(wrong("is not a host"));
    }
    let port = match port {
        None => default_port,
        Some(port) => match port.parse() {
            Ok(port @ 1..) => port,
            _ => return Err(wrong("has no port between 1 and 65535")),
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
    fn one_server_is_read() {
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
    fn clusters_and_sentinels_are_read() {
        let cluster = parse("redis+cluster://:x@a:1,b,[::1]:3");
        let nodes = vec![node("a", 1), node("b", 6379), node("::1", 3)];
        assert_eq!(cluster.topology, RedisTopology::Cluster(nodes));
        assert!(cluster.credentials.is_some());

        let watched = parse("redis+sentinel://a,b:2/shop");
        let sentinels = vec![node("a", 26379), node("b", 2)];
        let master = "shop".to_owned();
        assert_eq!(watched.topology, RedisTopology::Sentinel { sentinels, master });
    }

    #[test]
    fn what_is_wrong_is_said() {
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
            assert!(error.ends_with(RIGHT), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn encryption_is_a_matter_of_building() {
        let error = "rediss://a".parse::<RedisUrl>().unwrap_err().to_string();
        assert!(error.contains("--features tls"), "{error}");
    }

    #[test]
    fn a_password_is_never_shown() {
        let shown = format!("{:?}", parse("redis://gate:secret@a"));
        assert!(shown.contains("gate") && !shown.contains("secret"), "{shown}");
    }
}
