//! The `redis.url` setting: addresses, topology and credentials.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

/// Every [`UrlError`] ends with this.
const SYNTAX: &str = "write redis://[[user]:password@]host[:port][/db], \
     redis+cluster://[[user]:password@]host[:port],host[:port],.. or \
     redis+sentinel://[[user]:password@]host[:port],host[:port],../master-name; \
     rediss://, rediss+cluster:// or rediss+sentinel:// for TLS";

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
    /// Database number; 0 with sentinels, which have no other, and in a cluster.
    pub db: i64,
    /// Whether every connection, to sentinels too, is encrypted.
    pub tls: bool,
}

impl RedisUrl {
    /// The addresses in the URL.
    pub fn addresses(&self) -> &[ServerAddress] {
        match &self.topology {
            RedisTopology::Single(node) => std::slice::from_ref(node),
            RedisTopology::Sentinel { sentinels: nodes, .. } | RedisTopology::Cluster(nodes) => {
                nodes
            }
        }
    }
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let no_scheme = || UrlError("it does not begin with redis://".to_owned());
        let (scheme, rest) = url.split_once("://").ok_or_else(no_scheme)?;
        let tls = scheme.starts_with("rediss");
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
        let (topology, db) = match scheme.replacen("rediss", "redis", 1).as_str() {
            "redis" => {
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
            _ => return Err(UrlError(format!("{scheme}:// is not known"))),
        };
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
        if !port.is_empty() && !port.starts_with(':') {
            return Err(invalid("has no colon in front of the port"));
        }
        (host, port.strip_prefix(':'))
    } else {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    if host.is_empty() {
        return Err(UrlError("a host is missing".to_owned()));
    }
    let out_of_range = |_| invalid("has no port between 1 and 65535");
    let port = match port {
        None => default_port,
        Some(port) => port.parse::<NonZeroU16>().map_err(out_of_range)?.get(),
    };
    Ok(ServerAddress { host: host.to_owned(), port })
}

fn database(path: Option<&str>) -> Result<i64, UrlError> {
    let Some(db) = path.filter(|path| !path.is_empty()) else { return Ok(0) };
    let number = db.parse().ok().filter(|number| (0..DB_MAX).contains(number));
    number.ok_or_else(|| UrlError(format!("{db:?} is not the number of a database")))
}

fn master(path: Option<&str>) -> Result<String, UrlError> {
    match path.unwrap_or_default() {
        "" => Err(UrlError("the name of the master is missing".to_owned())),
        name if name.contains('/') => {
            Err(UrlError(format!("{name:?} is not the name of one master")))
        }
        name => Ok(name.to_owned()),
    }
}
