//! Secrets of payment webhooks. An entry of `payment.webhook_secrets` is a secret or the path of a
//! file with one, and may end at a time: `whsec_.. until 2026-12-01T00:00:00Z`.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::DateTime;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

/// Begins every secret, so that a secret is never taken for a path.
const PREFIX: &str = "whsec_";
const UNTIL: &str = " until ";

/// The scheme of webhook signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookProfile {
    /// Standard Webhooks 1.0.0.
    Standard,
    /// `Stripe-Signature`.
    Stripe,
}

/// One secret that webhooks may be signed with. No `Debug`.
#[derive(Clone)]
pub struct WebhookSecret {
    /// With its prefix.
    text: SecretString,
    /// First instant at which it is refused, epoch milliseconds; `None`: it has no end.
    pub until_ms: Option<i64>,
}

impl WebhookSecret {
    /// Reads an entry; `read_file` returns the trimmed text of a file.
    ///
    /// # Errors
    /// What is wrong with the entry, without the secret.
    pub(super) fn read(
        entry: &str,
        read_file: impl FnOnce(&Path) -> Result<SecretString, String>,
    ) -> Result<Self, String> {
        let (place, until) = match entry.split_once(UNTIL) {
            Some((place, until)) => (place.trim(), Some(until.trim())),
            None => (entry.trim(), None),
        };
        let until_ms = until.map(|time| {
            let time = DateTime::parse_from_rfc3339(time);
            time.map(|time| time.timestamp_millis())
                .map_err(|_error| "the time after `until` is not in RFC 3339".to_owned())
        });
        if is_literal(place) {
            return Err(
                "a list outside a file is separated by commas, without brackets and quotes"
                    .to_owned(),
            );
        }
        let text = if place.starts_with(PREFIX) {
            SecretString::from(place)
        } else {
            read_file(Path::new(place))?
        };
        Ok(Self { text, until_ms: until_ms.transpose()? })
    }

    /// The file of an entry; `None`: the entry is the secret.
    pub(super) fn file(entry: &str) -> Option<&Path> {
        let place = entry.split_once(UNTIL).map_or(entry, |(place, _)| place).trim();
        (!place.starts_with(PREFIX) && !is_literal(place)).then(|| Path::new(place))
    }

    /// A secret without an end.
    pub fn of_key(key: &[u8]) -> Self {
        let text = format!("{PREFIX}{}", STANDARD.encode(key));
        Self { text: SecretString::from(text), until_ms: None }
    }

    /// An entry without its secret; a path is shown.
    pub(super) fn redacted(entry: &str, hidden: &str) -> String {
        if !entry.trim_start().starts_with(PREFIX) && !is_literal(entry) {
            return entry.to_owned();
        }
        match entry.split_once(UNTIL) {
            Some((_, until)) => format!("{hidden}{UNTIL}{until}"),
            None => hidden.to_owned(),
        }
    }

    /// The bytes that key the HMAC: Standard Webhooks decodes the base64 after the prefix, 24 to 64
    /// bytes; Stripe uses the whole text, of up to 128 characters. `None`: too short, too long or
    /// not base64.
    pub fn key(&self, profile: WebhookProfile) -> Option<Vec<u8>> {
        let text = self.text.expose_secret();
        let encoded = text.strip_prefix(PREFIX)?;
        match profile {
            WebhookProfile::Standard => {
                let key = STANDARD.decode(encoded).ok()?;
                (24..=64).contains(&key.len()).then_some(key)
            }
            WebhookProfile::Stripe => {
                let is_usable = (24..=128).contains(&encoded.len());
                is_usable.then(|| text.as_bytes().to_vec())
            }
        }
    }
}

/// Whether this is a piece of a list or a string as TOML writes it, perhaps with a secret in it.
fn is_literal(entry: &str) -> bool {
    entry.trim_start().starts_with(['[', '"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn no_file(_: &Path) -> Result<SecretString, String> {
        Err("no file".to_owned())
    }

    #[test]
    fn an_entry_is_a_secret_or_a_file_and_may_end() {
        let plain = WebhookSecret::read(SECRET, no_file).ok().unwrap();
        assert_eq!(plain.until_ms, None);
        assert_eq!(plain.key(WebhookProfile::Standard).unwrap().len(), 24);
        let ending = format!("{SECRET} until 2026-12-01T00:00:00Z");
        let ending = WebhookSecret::read(&ending, no_file).ok().unwrap();
        assert_eq!(ending.until_ms, Some(1_796_083_200_000));
        assert_eq!(ending.key(WebhookProfile::Standard), plain.key(WebhookProfile::Standard));
        let from_file =
            WebhookSecret::read("/run/secret until 2026-12-01T00:00:00+00:00", |path| {
                assert_eq!(path, Path::new("/run/secret"));
                Ok(SecretString::from(SECRET))
            });
        assert_eq!(from_file.ok().unwrap().until_ms, ending.until_ms);
        let faulty = format!("{SECRET} until tomorrow");
        let fault = WebhookSecret::read(&faulty, no_file).err().unwrap();
        assert!(fault.contains("RFC 3339") && !fault.contains(SECRET), "{fault}");
        assert_eq!(WebhookSecret::read("/nowhere", no_file).err().unwrap(), "no file");
    }

    #[test]
    fn keys_have_24_to_64_bytes() {
        for (len, fits) in [(23, false), (24, true), (64, true), (65, false)] {
            let secret = WebhookSecret::of_key(&vec![7; len]);
            assert_eq!(secret.key(WebhookProfile::Standard).is_some(), fits, "{len}");
        }
        for text in ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_not base64 but long enough !"] {
            let secret = WebhookSecret { text: SecretString::from(text), until_ms: None };
            assert_eq!(secret.key(WebhookProfile::Standard), None, "{text}");
        }
        let secret = WebhookSecret { text: SecretString::from(SECRET), until_ms: None };
        assert_eq!(secret.key(WebhookProfile::Stripe).unwrap(), SECRET.as_bytes());
    }

    #[test]
    fn a_shown_entry_has_no_secret() {
        let until = format!("{SECRET} until 2026-12-01T00:00:00Z");
        for (entry, shown) in [
            (SECRET, "(hidden)"),
            (until.as_str(), "(hidden) until 2026-12-01T00:00:00Z"),
            ("/run/secret", "/run/secret"),
            (r#"["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]"#, "(hidden)"),
        ] {
            assert_eq!(WebhookSecret::redacted(entry, "(hidden)"), shown);
        }
    }
}
