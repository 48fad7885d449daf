//! The URLs of servers, which links to them are encrypted, and the certificates for it.

use std::path::Path;

use url::Url;

use super::error::{ConfigFault, or_fault};
use super::settings::Settings;
use crate::net::{Trust, private_key, server_config};

/// Parameters of `mysql://` URLs, besides `ssl-mode`.
const MYSQL_PARAMETERS: [&str; 8] = [
    "compression",
    "max_allowed_packet",
    "prefer_socket",
    "secure_auth",
    "socket",
    "tcp_keepalive",
    "tcp_nodelay",
    "wait_timeout",
];

impl Settings {
    /// Whether the links to the ledger, to Redis and to the broker are encrypted.
    pub fn encrypted_links(&self) -> [bool; 3] {
        let ledger = MysqlUrl::parse(&self.ledger.url);
        [
            matches!(ledger, Ok(Some(MysqlUrl { is_encrypted: true, .. }))),
            self.redis.url.starts_with("rediss"),
            self.amqp.url.starts_with("amqps://"),
        ]
    }
}

/// The URL of each node of a broker: `amqp://user:password@host1:5672,host2:5672/vhost` names two.
pub fn broker_urls(url: &str) -> Vec<String> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (user, nodes) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    nodes.split(',').map(|node| format!("{scheme}://{user}{node}{path}")).collect()
}

/// The host of `scheme://user:password@host:port/path`; empty if the URL is faulty.
pub fn host_of(url: &str) -> String {
    let url = Url::parse(url).ok();
    url.as_ref().and_then(Url::host_str).unwrap_or_default().to_owned()
}

/// A `ledger.url` of a server.
#[derive(Debug, PartialEq, Eq)]
pub struct MysqlUrl {
    /// Without `ssl-mode`, which is ours.
    pub client_url: String,
    pub is_encrypted: bool,
}

impl MysqlUrl {
    /// `None` if it is not `mysql://`.
    ///
    /// # Errors
    /// A parameter is unknown, or a value of `ssl-mode`. Not repeated: it may be a password.
    pub fn parse(url: &str) -> Result<Option<Self>, String> {
        if !url.starts_with("mysql://") {
            return Ok(None);
        }
        let (base, parameters) = url.split_once('?').unwrap_or((url, ""));
        let (mut kept, mut is_encrypted) = (Vec::new(), false);
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = value.to_ascii_lowercase().replace('_', "-");
            match (name, value.as_str()) {
                ("ssl-mode", "verify-full" | "verify-identity") => is_encrypted = true,
                ("ssl-mode", "disabled") => is_encrypted = false,
                ("ssl-mode", _) => {
                    return Err("ssl-mode is neither verify-full nor disabled: other modes \
                                encrypt without knowing the server"
                        .to_owned());
                }
                _ if MYSQL_PARAMETERS.contains(&name) => kept.push(parameter),
                _ => return Err("has a parameter that is not known".to_owned()),
            }
        }
        let question_mark = if kept.is_empty() { "" } else { "?" };
        let client_url = format!("{base}{question_mark}{}", kept.join("&"));
        Ok(Some(Self { client_url, is_encrypted }))
    }
}

/// Reads the certificates that the settings name; one fault per unusable file.
pub(super) fn read_certificates(settings: &mut Settings) -> Vec<ConfigFault> {
    let mut faults = Vec::new();
    let mut trust = |key: &str, is_encrypted: bool, file: &Path| {
        let is_set = !file.as_os_str().is_empty();
        if is_set && !is_encrypted {
            let problem = "is set, but the URL asks for no TLS".to_owned();
            faults.push(ConfigFault::new(key, problem, "remove it, or write a URL with TLS"));
        }
        let remedy = "name a PEM file with the certificate of the authority that signed the \
                      server's";
        or_fault(is_encrypted.then(|| Trust::read(file)).transpose(), &mut faults, key, remedy)
    };
    let [to_ledger, to_redis, to_broker] = settings.encrypted_links();
    let ledger = trust("ledger.ca_file", to_ledger, &settings.ledger.ca_file);
    let redis = trust("redis.ca_file", to_redis, &settings.redis.ca_file);
    let amqp = trust("amqp.ca_file", to_broker, &settings.amqp.ca_file);
    (settings.ledger.trust, settings.redis.trust, settings.amqp.trust) = (ledger, redis, amqp);

    let mut listener = |section: &str, chain: &Path, key: &Path| {
        let [of_chain, of_key] = ["cert", "key"].map(|what| format!("{section}.tls_{what}_file"));
        let [chain_set, key_set] = [chain, key].map(|file| !file.as_os_str().is_empty());
        if chain_set != key_set {
            let (there, missing) = if chain_set { (of_chain, of_key) } else { (of_key, of_chain) };
            let problem = format!("is not set, but {there} is");
            faults.push(ConfigFault::new(&missing, problem, "set both, or neither"));
            return None;
        }
        let remedy = "name PEM files: the certificate with its chain, and its key";
        if !chain_set {
            return None;
        }
        let read = private_key(key)
            .map_err(|problem| (of_key, problem))
            .and_then(|secret| server_config(chain, secret).map_err(|problem| (of_chain, problem)));
        read.map_err(|(key, problem)| faults.push(ConfigFault::new(&key, problem, remedy))).ok()
    };
    let (http, internal) = (&settings.http, &settings.internal);
    let of_http = listener("http", &http.tls_cert_file, &http.tls_key_file);
    let of_internal = listener("internal", &internal.tls_cert_file, &internal.tls_key_file);
    (settings.http.tls, settings.internal.tls) = (of_http, of_internal);
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mysql_urls_are_encrypted_and_verified_or_plain() {
        let parse = |url: &str| MysqlUrl::parse(url).map(Option::unwrap);
        for mode in ["verify-full", "VERIFY_IDENTITY"] {
            let url = format!("mysql://u:p@db/x?tcp_nodelay=true&ssl-mode={mode}");
            let expected = MysqlUrl {
                client_url: "mysql://u:p@db/x?tcp_nodelay=true".to_owned(),
                is_encrypted: true,
            };
            assert_eq!(parse(&url).unwrap(), expected);
        }
        let plain = parse("mysql://u:p@db/x?ssl-mode=disabled").unwrap();
        assert_eq!((plain.client_url.as_str(), plain.is_encrypted), ("mysql://u:p@db/x", false));
        for url in ["mysql://db/x?ssl-mode=required", "mysql://db/x?password=s3cret"] {
            let problem = parse(url).unwrap_err();
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        assert_eq!(MysqlUrl::parse("sqlite://./x.db"), Ok(None));
    }
}
