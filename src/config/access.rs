//! Settings of who may do what: authentication, challenges, and the rules between their keys.

use std::collections::BTreeSet;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::jwks;
use super::settings::{AdminSettings, AuthSettings, Settings};
use super::validate::RuleCheck;

/// Shortest admin token that may guard a listener reachable from other machines.
pub(super) const TOKEN_CHARS_MIN: usize = 16;

/// Shortest key for HMAC-SHA-256: the length of its output (RFC 7518, section 3.2).
const SECRET_BYTES_MIN: usize = 32;

/// A secret with fewer different bytes was typed, not drawn: hexadecimal digits of 16 random bytes
/// have 8 with near certainty.
const SECRET_DISTINCT_MIN: usize = 8;

/// A rotation needs two.
const SECRETS_MAX: usize = 2;

/// How a buyer authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// `X-Buyer-Id`, unverified: for development and tests.
    Header,
    /// Bearer token, signed with a secret or a private key of the login service.
    Jwt,
}

/// What a buyer solves to get a ticket. The numbers are those in challenge ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum ChallengeKind {
    /// A sum, a difference or a product in a picture.
    Arithmetic = 1,
    /// A search of the buyer's device for a SHA-256 digest.
    Work = 2,
}

impl ChallengeKind {
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Arithmetic),
            2 => Some(Self::Work),
            _ => None,
        }
    }
}

/// What the bearer of an admin token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdminScope {
    /// `GET`, and audits without repair.
    Read,
    /// Every verb.
    Operate,
}

/// A token of the internal listener with its owner's name.
#[derive(Clone)]
pub struct NamedToken {
    pub name: String,
    pub scope: AdminScope,
    pub token: SecretString,
}

impl NamedToken {
    /// Reads the lines of `admin.tokens_file`; empty lines and those that begin with `#` are
    /// skipped.
    ///
    /// # Errors
    /// The first fault, without the token.
    pub(super) fn read_all(text: &str) -> Result<Vec<Self>, String> {
        let mut tokens: Vec<Self> = Vec::new();
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let fault = |what: &str| Err(format!("line {number}: {what}"));
            let mut words = line.split_whitespace();
            let (Some(name), Some(scope), Some(token), None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                return fault("is not `name scope token`");
            };
            let scope = match scope {
                "read" => AdminScope::Read,
                "operate" => AdminScope::Operate,
                _ => return fault("the scope is neither `read` nor `operate`"),
            };
            if token.chars().count() < TOKEN_CHARS_MIN {
                return fault("the token has fewer than 16 characters");
            }
            if tokens.iter().any(|other| other.token.expose_secret() == token) {
                return fault("the token is there twice");
            }
            if tokens.iter().filter(|other| other.name == name).count() >= 2 {
                return fault("the name has two tokens already");
            }
            tokens.push(Self { name: name.to_owned(), scope, token: token.into() });
        }
        if tokens.is_empty() { Err("holds no token".to_owned()) } else { Ok(tokens) }
    }
}

impl AdminSettings {
    /// The tokens of `token`, one a line: callers must present one of them or of `tokens`. Without
    /// any, the listener must be on loopback.
    pub fn bearers(&self) -> Vec<SecretString> {
        jwks::secrets(&self.token)
    }

    /// The token that commands present: the first of `token`, else of those that may operate.
    pub fn bearer(&self) -> Option<SecretString> {
        let named = self.tokens.iter().find(|named| named.scope == AdminScope::Operate);
        self.bearers().into_iter().next().or_else(|| named.map(|named| named.token.clone()))
    }
}

impl AuthSettings {
    /// Whether a bearer token may be valid without end.
    pub fn trusts_for_ever(&self) -> bool {
        self.mode == AuthMode::Jwt && !self.jwt_require_exp && self.jwt_lifetime_max_s == 0
    }
}

/// Checks the rules that are no number's.
pub(super) fn check(settings: &Settings, check: &mut RuleCheck) {
    secrets(settings, check);
    check.require(
        !settings.tickets.challenges.is_empty(),
        "tickets.challenges",
        "is empty, so that buyers could not get tickets",
        "name \"arithmetic\", \"work\" or both; the first is the default",
    );
}

fn secrets(settings: &Settings, check: &mut RuleCheck) {
    let is_word =
        |token: &SecretString| token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic());
    check.require(
        settings.admin.bearers().iter().all(is_word),
        "admin.token",
        "holds white space or other characters that no header carries",
        "use letters and digits, such as from `openssl rand -hex 16`",
    );
    let (auth, key) = (&settings.auth, "auth.jwt_secret_file");
    let has_files = auth.jwt_secret_file != *"" || auth.jwks_file != *"";
    check.require(
        auth.mode != AuthMode::Jwt || has_files || !auth.jwt_keys.is_empty(),
        key,
        "is not set, nor is auth.jwks_file, but auth.mode = \"jwt\" needs one of them",
        "name a file with the HS256 secret of your login service, at least 32 bytes, or in \
         auth.jwks_file one with its public keys",
    );
    for (key, num) in
        [(key, auth.jwt_keys.secrets.len()), ("admin.token", settings.admin.bearers().len())]
    {
        check.require(
            num <= SECRETS_MAX,
            key,
            "has more than two lines",
            "keep the new secret and the one that it replaces, one a line",
        );
    }
    let jwt = auth.jwt_keys.secrets.iter().map(|secret| (key, secret));
    let signing = auth.signing_key.iter().map(|secret| ("auth.signing_key_file", secret));
    for (key, secret) in jwt.take(SECRETS_MAX).chain(signing) {
        let bytes = secret.expose_secret().as_bytes();
        check.require(
            bytes.len() >= SECRET_BYTES_MIN,
            key,
            "holds fewer than 32 bytes",
            "write 32 bytes or more into it, such as from `openssl rand -hex 32`",
        );
        check.require(
            bytes.len() < SECRET_BYTES_MIN
                || bytes.iter().collect::<BTreeSet<_>>().len() >= SECRET_DISTINCT_MIN,
            key,
            "holds a secret of fewer than 8 different bytes, which can be guessed",
            "draw it at random, such as with `openssl rand -hex 32`",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "0123456789abcdef";

    #[test]
    fn tokens_have_a_name_and_a_scope() {
        let text = format!(
            "# collectors\nprometheus read {LONG}1\n\n ann operate {LONG}2\nann  read\t{LONG}3\n"
        );
        let tokens = NamedToken::read_all(&text).unwrap();
        let read = |token: &NamedToken| (token.name.clone(), token.scope);
        let expected = [
            ("prometheus".to_owned(), AdminScope::Read),
            ("ann".to_owned(), AdminScope::Operate),
            ("ann".to_owned(), AdminScope::Read),
        ];
        assert_eq!(tokens.iter().map(read).collect::<Vec<_>>(), expected);
        assert_eq!(tokens[2].token.expose_secret(), format!("{LONG}3"));
        assert!(AdminScope::Operate > AdminScope::Read);
    }

    #[test]
    fn tokens_without_end_are_trusted_only_where_nothing_limits_them() {
        let mut auth = Settings::with_ledger("sqlite://x").auth;
        assert!(!auth.trusts_for_ever(), "mode header has no tokens");
        auth.mode = AuthMode::Jwt;
        assert!(auth.trusts_for_ever());
        for (require_exp, lifetime_max_s) in [(true, 0), (false, 3_600)] {
            (auth.jwt_require_exp, auth.jwt_lifetime_max_s) = (require_exp, lifetime_max_s);
            assert!(!auth.trusts_for_ever());
        }
    }

    #[test]
    fn faults_name_the_line_and_hide_the_token() {
        let cases = [
            (String::new(), "no token"),
            (format!("ann {LONG}"), "line 1: is not"),
            (format!("ann read {LONG} x"), "line 1: is not"),
            (format!("# a\nann write {LONG}"), "line 2: the scope"),
            ("ann read short".to_owned(), "fewer than 16"),
            (format!("ann read {LONG}\nbob read {LONG}"), "line 2: the token is there twice"),
            (format!("ann read {LONG}1\nann read {LONG}2\nann read {LONG}3"), "line 3: the name"),
        ];
        for (text, expected) in cases {
            let Err(fault) = NamedToken::read_all(&text) else { panic!("{text}") };
            assert!(fault.contains(expected) && !fault.contains(LONG), "{fault}");
        }
    }
}
