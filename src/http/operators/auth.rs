//! Access control of the internal listener.
//!
//! If tokens are configured, every request must have one, with the scope of what it does. Without a
//! token the listener must be bound to loopback. Requests that a proxy forwarded are then refused,
//! and so are pages of other sites in an operator's browser: a foreign `Origin`, a foreign `Host`
//! (DNS rebinding), or a `Sec-Fetch-Site` that says so.

use std::sync::Arc;

use actix_web::dev::RequestHead;
use actix_web::http::Method;
use actix_web::http::header::{HOST, ORIGIN};
use hmac::Mac;
use secrecy::{ExposeSecret, SecretString};

use crate::config::{AdminScope, AdminSettings, InternalSettings};
use crate::http::buyers::auth::{bearer, is_forwarded};
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::net;
use crate::runtime::mac::{HmacSha256, keyed};

const CHALLENGE: &str = "Bearer realm=\"floodgate internal\"";

/// The name of the token in `admin.token`.
const ADMIN: &str = "admin";

/// The name of callers on a listener without tokens.
const LOCAL: &str = "local";

/// Audits only read, unless their body demands a repair: for that their handlers need `operate`.
const AUDITS: [&str; 2] = ["/admin/v1/audit", "/admin/v1/audits"];

/// Access rule of the internal listener.
pub enum AdminAuth {
    /// Requests with one of these tokens, which are stored as keyed hashes.
    Tokens(HmacSha256, Vec<KnownToken>),
    /// Requests from this machine, except those of another site's page.
    Local,
    /// No requests: no token is set, and the listener is reachable from other machines.
    DenyAll,
}

/// Who calls, and what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    pub name: Arc<str>,
    pub scope: AdminScope,
}

/// Whether a call of an operator changes nothing.
pub fn only_reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

impl Operator {
    /// Judges a call of a route: `GET` and audits need the scope `read`, all others `operate`.
    pub fn check(&self, method: &Method, route: &str) -> Result<(), Problem> {
        let reads = only_reads(method) || AUDITS.contains(&route);
        if reads { Ok(()) } else { self.check_operate() }
    }

    /// Requires the scope `operate`.
    pub fn check_operate(&self) -> Result<(), Problem> {
        let detail = "This token may only read: its scope is not `operate`.";
        let forbidden = || Problem::from(ProblemCode::Forbidden).with_detail(detail);
        (self.scope == AdminScope::Operate).then_some(()).ok_or_else(forbidden)
    }
}

/// A token by its keyed hash.
pub struct KnownToken {
    operator: Operator,
    expected: Vec<u8>,
}

impl AdminAuth {
    pub fn new(admin: &AdminSettings, internal: &InternalSettings) -> Self {
        let keyed = keyed(b"floodgate admin token");
        let known = |name: &str, scope: AdminScope, token: &SecretString| {
            let expected = keyed.clone().chain_update(token.expose_secret()).finalize();
            let operator = Operator { name: name.into(), scope };
            KnownToken { operator, expected: expected.into_bytes().to_vec() }
        };
        let bearers = admin.bearers();
        let unnamed = bearers.iter().map(|token| known(ADMIN, AdminScope::Operate, token));
        let named = admin.tokens.iter().map(|named| known(&named.name, named.scope, &named.token));
        let tokens: Vec<KnownToken> = unnamed.chain(named).collect();
        if !tokens.is_empty() {
            return Self::Tokens(keyed, tokens);
        }
        if internal.bind.ip().is_loopback() { Self::Local } else { Self::DenyAll }
    }

    /// Authenticates a request. Returns the owner of the token.
    ///
    /// # Errors
    /// `unauthenticated`; `forbidden` if a loopback listener without tokens is not called locally.
    pub fn check(&self, request: &RequestHead) -> Result<Operator, Problem> {
        match self {
            Self::Tokens(keyed, tokens) => {
                let sent = keyed.clone().chain_update(bearer(&request.headers).unwrap_or_default());
                let is_sent = |known: &&KnownToken| {
                    // Compares in constant time.
                    sent.clone().verify_slice(&known.expected).is_ok()
                };
                let known = tokens.iter().find(is_sent).map(|known| known.operator.clone());
                known.ok_or_else(|| {
                    let detail = "a bearer token of admin.token or admin.tokens_file is needed";
                    Problem::unauthenticated(detail, CHALLENGE)
                })
            }
            Self::Local if is_local(request) => {
                Ok(Operator { name: LOCAL.into(), scope: AdminScope::Operate })
            }
            Self::Local => Err(ProblemCode::Forbidden.into()),
            Self::DenyAll => Err(Problem::unauthenticated(
                "this listener can be reached from other machines: set admin.token_file",
                CHALLENGE,
            )),
        }
    }
}

/// Whether the request comes from this machine and from no page of another site: `Host`, and the
/// authority of an absolute URI, are loopback, names that DNS cannot rebind; `Origin` is absent or
/// this listener; no proxy forwarded it.
fn is_local(request: &RequestHead) -> bool {
    let headers = &request.headers;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(host) = text(HOST) else { return false };
    let is_same_origin = match text(ORIGIN) {
        None => !headers.contains_key(ORIGIN),
        // The same host and port can only be this listener, with or without TLS.
        Some(origin) => {
            let is_of = |scheme| origin.strip_prefix(scheme) == Some(host);
            is_of("http://") || is_of("https://")
        }
    };
    let is_own_page = headers
        .get("sec-fetch-site")
        .is_none_or(|site| matches!(site.as_bytes(), b"same-origin" | b"none"));
    let names_loopback = request.uri.authority().is_none_or(|name| is_loopback(name.as_str()));
    is_same_origin && is_own_page && names_loopback && is_loopback(host) && !is_forwarded(headers)
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    net::is_loopback(name)
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
