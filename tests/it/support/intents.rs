//! Packed intents: of a known key, of the key of a real ledger, and of version 1.

use floodgate::config::Settings;
use floodgate::domain::{OrderIntent, RequestRecord};
use floodgate::messages::envelope::EnvelopeReader;
use floodgate::redis::scripts::intent;
pub use floodgate::redis::scripts::intent::{INTENT_BYTES, IntentKey, UNSIGNED_BYTES};
use floodgate::tier;

/// The key of simulated installations.
pub fn key() -> IntentKey {
    IntentKey::new(&[7; 32])
}

/// Reads messages of [`key`].
pub fn reader(installation: &str) -> EnvelopeReader {
    EnvelopeReader { installation: installation.into(), key: key(), accepts_unsigned: false }
}

/// Packs with [`key`].
pub fn pack(intent: &OrderIntent) -> Vec<u8> {
    intent::pack(intent, &key())
}

/// Packs with [`key`].
pub fn pack_into(intent: &OrderIntent, bytes: &mut Vec<u8>) {
    intent::pack_into(intent, &key(), bytes);
}

/// The key of the installation of these settings.
pub async fn key_of(settings: &Settings) -> IntentKey {
    let settings = settings.clone();
    let opening = move || tier::open_ledger_for_reading(&settings);
    let ledger = tokio::task::spawn_blocking(opening).await.unwrap().unwrap();
    tier::intent_key(ledger.as_ref()).await.unwrap()
}

/// Packs as version 1 did.
pub fn pack_unsigned(intent: &OrderIntent) -> Vec<u8> {
    let mut bytes = Vec::new();
    RequestRecord::queued(intent).pack_into(&mut bytes);
    bytes.push(1);
    bytes.extend(intent.request.get().to_be_bytes());
    bytes.extend(intent.sku.0.to_be_bytes());
    bytes.extend(intent.bucket.0.to_be_bytes());
    bytes.extend(intent.epoch.0.to_be_bytes());
    bytes.push(u8::from(intent.slot != 0));
    bytes.extend(intent.quota.unwrap_or(0).to_be_bytes());
    bytes.extend(intent.amount.to_be_bytes());
    bytes.extend(intent.payment_window_s.to_be_bytes());
    bytes.extend(intent.trace.0.to_be_bytes());
    assert_eq!(bytes.len(), UNSIGNED_BYTES);
    bytes
}
