//! Signatures of webhooks: HMAC-SHA-256 over the raw bytes of the body and the time of sending.
//!
//! * Standard Webhooks 1.0.0 signs `id.timestamp.body`: headers `webhook-id`, `webhook-timestamp`
//!   and `webhook-signature: v1,<base64>`, a list with spaces.
//! * Stripe signs `timestamp.body`: header `stripe-signature: t=<timestamp>,v1=<hex>`, a list with
//!   commas.

use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::config::{PaymentSettings, WebhookProfile, WebhookSecret};
use crate::domain::text::{bytes_of_hex, hex};

type HmacSha256 = Hmac<Sha256>;

const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";
const STRIPE_SIGNATURE: &str = "stripe-signature";

/// Largest body of a webhook, bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest id of an event.
const ID_CHARS_MAX: usize = 128;
/// Most signatures of one webhook that are tried: a sender lists one for each of its secrets.
const SIGNATURES_MAX: usize = 8;

/// Why a webhook was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    #[error("the body is larger than 65536 bytes")]
    TooLarge,
    /// Missing, repeated or malformed.
    #[error("the header {0} is missing, repeated or malformed")]
    Header(&'static str),
    #[error("the webhook was signed too long ago, or in the future")]
    Time,
    #[error("no signature is of a secret that is valid now")]
    Signature,
    /// The signature is valid, and the body cannot be read.
    #[error("{0}")]
    Body(String),
}

impl WebhookError {
    /// The failed check, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge => "size",
            Self::Header(_) => "header",
            Self::Time => "time",
            Self::Signature => "signature",
            Self::Body(_) => "body",
        }
    }
}

struct VerifierKey {
    /// HMAC state after the key.
    keyed: HmacSha256,
    /// First instant at which it is refused, epoch milliseconds.
    until_ms: Option<i64>,
}

fn keys_of(secrets: &[WebhookSecret], profile: WebhookProfile) -> Vec<VerifierKey> {
    // HMAC takes keys of every length.
    let keys = secrets.iter().filter_map(|secret| {
        let keyed = HmacSha256::new_from_slice(&secret.key(profile)?).ok()?;
        Some(VerifierKey { keyed, until_ms: secret.until_ms })
    });
    keys.collect()
}

fn valid(keys: &[VerifierKey], now_ms: i64) -> impl Iterator<Item = &VerifierKey> {
    keys.iter().filter(move |key| key.until_ms.is_none_or(|until_ms| now_ms < until_ms))
}

/// Verifies webhooks, and signs those of the demo provider.
pub struct WebhookVerifier {
    profile: WebhookProfile,
    keys: ArcSwap<Vec<VerifierKey>>,
    tolerance_s: u64,
}

impl WebhookVerifier {
    /// Accepts the configured secrets, or only `fallback` without any.
    pub fn new(settings: &PaymentSettings, fallback: &[u8]) -> Self {
        let profile = settings.webhook_profile;
        let fallback = [WebhookSecret::of_key(fallback)];
        let secrets = match settings.webhook_keys.as_slice() {
            [] => fallback.as_slice(),
            configured => configured,
        };
        let keys = ArcSwap::from_pointee(keys_of(secrets, profile));
        Self { profile, keys, tolerance_s: u64::from(settings.webhook_tolerance_s) }
    }

    /// Accepts these secrets from now on; without configured secrets nothing changes.
    pub fn replace_secrets(&self, settings: &PaymentSettings) {
        if !settings.webhook_keys.is_empty() {
            self.keys.store(Arc::new(keys_of(&settings.webhook_keys, self.profile)));
        }
    }

    /// Checks size, headers, time and signature, in this order. Returns the event's id, the same
    /// for each repeat; `None`: the body names it. `header` returns the value of a header that the
    /// webhook has once. `may_be_old`: it may have waited in a queue, so that only
    /// a time in the future is refused; what a replay of it could do, the id of its event prevents.
    pub fn verify<'w>(
        &self,
        header: impl Fn(&str) -> Option<&'w str>,
        body: &[u8],
        now_ms: i64,
        may_be_old: bool,
    ) -> Result<Option<&'w str>, WebhookError> {
        if body.len() > BODY_BYTES_MAX {
            return Err(WebhookError::TooLarge);
        }
        let field = |name| header(name).ok_or(WebhookError::Header(name));
        let (id, timestamp, signatures) = match self.profile {
            WebhookProfile::Standard => {
                let id = Some(field(ID)?).filter(|id| is_event_id(id));
                let id = id.ok_or(WebhookError::Header(ID))?;
                let timestamp = seconds(field(TIMESTAMP)?);
                let timestamp = timestamp.ok_or(WebhookError::Header(TIMESTAMP))?;
                let listed = field(SIGNATURE)?.split(' ');
                let of_version = listed.filter_map(|item| item.strip_prefix("v1,"));
                let signatures =
                    of_version.take(SIGNATURES_MAX).filter_map(|text| STANDARD.decode(text).ok());
                (Some(id), timestamp, signatures.collect::<Vec<_>>())
            }
            WebhookProfile::Stripe => {
                let items = || field(STRIPE_SIGNATURE).map(|text| text.split(','));
                let timestamp = items()?.find_map(|item| item.strip_prefix("t="));
                let timestamp = timestamp.and_then(seconds);
                let timestamp = timestamp.ok_or(WebhookError::Header(STRIPE_SIGNATURE))?;
                let of_version = items()?.filter_map(|item| item.strip_prefix("v1="));
                let signatures = of_version.take(SIGNATURES_MAX).filter_map(bytes_of_hex);
                (None, timestamp, signatures.collect())
            }
        };
        let now_s = now_ms.div_euclid(1000);
        let may_be_old = may_be_old && timestamp <= now_s;
        if now_s.abs_diff(timestamp) > self.tolerance_s && !may_be_old {
            return Err(WebhookError::Time);
        }
        if !self.is_signed(&signatures, id, timestamp, body, now_ms) {
            return Err(WebhookError::Signature);
        }
        Ok(id)
    }

    /// Compares every signature with that of every valid key, in constant time and without an early
    /// end.
    fn is_signed(
        &self,
        signatures: &[Vec<u8>],
        id: Option<&str>,
        timestamp: i64,
        body: &[u8],
        now_ms: i64,
    ) -> bool {
        let mut is_signed = false;
        for key in valid(&self.keys.load(), now_ms) {
            let mac = signed_text(key.keyed.clone(), id, timestamp, body);
            for signature in signatures {
                is_signed |= mac.clone().verify_slice(signature).is_ok();
            }
        }
        is_signed
    }

    /// The headers of a webhook of this process: its id and signatures, one for each valid key.
    pub fn sign(&self, id: &str, body: &[u8], now_ms: i64) -> Vec<(&'static str, String)> {
        let timestamp = now_ms.div_euclid(1000);
        let signed_id = (self.profile == WebhookProfile::Standard).then_some(id);
        let keys = self.keys.load();
        let macs = valid(&keys, now_ms).map(|key| {
            signed_text(key.keyed.clone(), signed_id, timestamp, body).finalize().into_bytes()
        });
        match self.profile {
            WebhookProfile::Standard => {
                let signatures: Vec<_> =
                    macs.map(|mac| format!("v1,{}", STANDARD.encode(mac))).collect();
                vec![
                    (ID, id.to_owned()),
                    (TIMESTAMP, timestamp.to_string()),
                    (SIGNATURE, signatures.join(" ")),
                ]
            }
            WebhookProfile::Stripe => {
                let text = format!("t={timestamp}");
                let text = macs.fold(text, |text, mac| format!("{text},v1={}", hex(&mac)));
                vec![(STRIPE_SIGNATURE, text)]
            }
        }
    }
}

/// Whether this may identify an event: without a dot, which separates the fields of the signed
/// text.
pub(super) fn is_event_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'.';
    (1..=ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(is_plain)
}

/// Digits only: `+1` and `01` are not what the sender signed.
fn seconds(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number >= 0 && number.to_string() == text).then_some(number)
}

fn signed_text(mac: HmacSha256, id: Option<&str>, timestamp: i64, body: &[u8]) -> HmacSha256 {
    let id = id.map_or_else(String::new, |id| format!("{id}."));
    mac.chain_update(format!("{id}{timestamp}.")).chain_update(body)
}

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
