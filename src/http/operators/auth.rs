//! Who may use the internal listener.
//!
//! With a token configured, every call needs it. Without one the listener must be on loopback, and
//! still a page of another site that an operator has open must not reach it: a foreign `Origin` and
//! a foreign `Host` (a name that was rebound to loopback) are refused.

use std::net::IpAddr;

use actix_web::http::header::{HOST, HeaderMap, ORIGIN};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::ExposeSecret;
use sha2::Sha256;

use crate::config::{AdminSettings, InternalSettings};
use crate::http::buyers::auth::bearer;
use crate::http::middleware::problem::{Problem, ProblemCode};

const CHALLENGE: &str = "Bearer realm=\"floodgate internal\"";

/// Who may use the internal listener.
pub enum AdminAuth {
    /// Whoever sends this token. Kept as a keyed hash, so that comparing takes the same time for
    /// every token.
    Token(Hmac<Sha256>, Vec<u8>),
    /// Whoever is on this machine, as long as no other site's page sends them.
    Local,
    /// Nobody: no token, and reachable from other machines.
    Nobody,
}

impl AdminAuth {
    /// What the settings ask for.
    #[must_use]
    pub fn new(admin: &AdminSettings, internal: &InternalSettings) -> Self {
        let Some(token) = admin.bearer() else {
            let local = internal.bind.ip().is_loopback();
            return if local { Self::Local } else { Self::Nobody };
        };
        match Hmac::<Sha256>::new_from_slice(b"floodgate admin token") {
            Ok(keyed) => {
                let told = keyed.clone().chain_update(token.expose_secret());
                Self::Token(keyed, told.finalize().into_bytes().to_vec())
            }
            Err(_) => Self::Nobody,
        }
    }

    /// Lets a request with these headers pass or not.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Self::Token(keyed, told) => {
                let sent = bearer(headers).unwrap_or_default();
                keyed.clone().chain_update(sent).verify_slice(told).map_err(|_wrong| {
                    Problem::unauthenticated("the bearer token of admin.token is needed", CHALLENGE)
                })
            }
            Self::Local if from_this_machine(headers) => Ok(()),
            Self::Local => Err(ProblemCode::Forbidden.into()),
            Self::Nobody => Err(Problem::unauthenticated(
                "this listener can be reached from other machines: set admin.token_file",
                CHALLENGE,
            )),
        }
    }
}

/// Whether the request names this machine by a name that cannot be rebound, and comes from no page
/// or from a page of this very listener.
fn from_this_machine(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(host) = text(HOST) else { return false };
    let own_page = match text(ORIGIN) {
        None => !headers.contains_key(ORIGIN),
        Some(origin) => origin.strip_prefix("http://") == Some(host),
    };
    own_page && is_loopback(host)
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    fn settings(token: &str, bind: &str) -> AdminAuth {
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
    fn a_token_is_needed_wherever_one_is_set() {
        for bind in ["127.0.0.1:0", "0.0.0.0:0"] {
            let auth = settings("a long enough token", bind);
            assert!(passes(&auth, &[("authorization", "Bearer a long enough token")]));
            for sent in ["Bearer", "Bearer x", "Bearer a long enough toke", "Basic a"] {
                assert!(!passes(&auth, &[("authorization", sent)]), "{sent}");
            }
            assert!(!passes(&auth, &[("host", "localhost")]));
        }
    }

    #[test]
    fn without_a_token_nobody_gets_in_from_outside() {
        let auth = settings("", "0.0.0.0:0");
        assert!(!passes(&auth, &[("host", "localhost"), ("authorization", "Bearer ")]));
    }

    #[test]
    fn without_a_token_pages_of_other_sites_are_kept_out() {
        let auth = settings("", "127.0.0.1:0");
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
