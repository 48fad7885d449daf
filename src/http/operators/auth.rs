//! Access control of the internal listener.
//!
//! If a token is configured, every request must have it. Without a token the listener must be bound
//! to loopback. Pages of other sites in an operator's browser are then kept out by refusing a
//! foreign `Origin` and a foreign `Host` (DNS rebinding).

use std::net::IpAddr;

use actix_web::http::header::{HOST, HeaderMap, ORIGIN};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::ExposeSecret;
use sha2::Sha256;

use crate::config::{AdminSettings, InternalSettings};
use crate::http::buyers::auth::bearer;
use crate::http::middleware::problem::{Problem, ProblemCode};

const CHALLENGE: &str = "Bearer realm=\"floodgate internal\"";

/// Access rule of the internal listener.
pub enum AdminAuth {
    /// Requests with this token. Stored as a keyed hash and compared in constant time.
    Token(Hmac<Sha256>, Vec<u8>),
    /// Requests from this machine, except those of another site's page.
    Local,
    /// No requests: no token is set, and the listener is reachable from other machines.
    DenyAll,
}

impl AdminAuth {
    pub fn new(admin: &AdminSettings, internal: &InternalSettings) -> Self {
        let Some(token) = admin.bearer() else {
            let local = internal.bind.ip().is_loopback();
            return if local { Self::Local } else { Self::DenyAll };
        };
        match Hmac::<Sha256>::new_from_slice(b"floodgate admin token") {
            Ok(keyed) => {
                let expected = keyed.clone().chain_update(token.expose_secret());
                Self::Token(keyed, expected.finalize().into_bytes().to_vec())
            }
            Err(_) => Self::DenyAll,
        }
    }

    /// Authorizes a request by its headers.
    ///
    /// # Errors
    /// `unauthenticated` or `forbidden`.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Self::Token(keyed, expected) => {
                let sent = bearer(headers).unwrap_or_default();
                keyed.clone().chain_update(sent).verify_slice(expected).map_err(|_wrong| {
                    Problem::unauthenticated("the bearer token of admin.token is needed", CHALLENGE)
                })
            }
            Self::Local if is_local(headers) => Ok(()),
            Self::Local => Err(ProblemCode::Forbidden.into()),
            Self::DenyAll => Err(Problem::unauthenticated(
                "this listener can be reached from other machines: set admin.token_file",
                CHALLENGE,
            )),
        }
    }
}

/// Whether `Host` is loopback, a name that DNS cannot rebind, and `Origin` is absent or this
/// listener.
fn is_local(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(host) = text(HOST) else { return false };
    let is_same_origin = match text(ORIGIN) {
        None => !headers.contains_key(ORIGIN),
        Some(origin) => origin.strip_prefix("http://") == Some(host),
    };
    is_same_origin && is_loopback(host)
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    fn auth(token: &str, bind: &str) -> AdminAuth {
        let admin = AdminSettings { token: token.into(), token_file: "".into() };
        AdminAuth::new(&admin, &InternalSettings { bind: bind.parse().unwrap() })
    }

    fn passes(auth: &AdminAuth, pairs: &[(&str, &str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        auth.check(&headers).is_ok()
    }

    #[test]
    fn a_configured_token_is_required() {
        for bind in ["127.0.0.1:0", "0.0.0.0:0"] {
            let auth = auth("a long enough token", bind);
            assert!(passes(&auth, &[("authorization", "Bearer a long enough token")]));
            for sent in ["Bearer", "Bearer x", "Bearer a long enough toke", "Basic a"] {
                assert!(!passes(&auth, &[("authorization", sent)]), "{sent}");
            }
            assert!(!passes(&auth, &[("host", "localhost")]));
        }
    }

    #[test]
    fn without_a_token_a_reachable_listener_refuses_everything() {
        let auth = auth("", "0.0.0.0:0");
        assert!(!passes(&auth, &[("host", "localhost"), ("authorization", "Bearer ")]));
    }

    #[test]
    fn without_a_token_pages_of_other_sites_are_refused() {
        let auth = auth("", "127.0.0.1:0");
        for host in ["localhost:9090", "LOCALHOST", "127.0.0.1:9090", "[::1]:9090", "127.3.2.1"] {
            assert!(passes(&auth, &[("host", host)]), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1:9090", ""] {
            assert!(!passes(&auth, &[("host", host)]), "{host}");
        }
        let from = |origin| passes(&auth, &[("host", "localhost:9090"), ("origin", origin)]);
        assert!(from("http://localhost:9090"));
        assert!(!from("http://localhost:8080"));
        assert!(!from("https://evil.example"));
        assert!(!from("null"));
    }
}
