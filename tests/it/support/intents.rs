//! Packed intents: of a known key, and of the key of a real ledger.

use floodgate::config::Settings;
use floodgate::domain::OrderIntent;
use floodgate::messages::envelope::EnvelopeReader;
use floodgate::redis::scripts::intent;
pub use floodgate::redis::scripts::intent::{INTENT_BYTES, IntentKey};
use floodgate::tier;

/// The key of simulated installations.
pub fn key() -> IntentKey {
    IntentKey::new(&[7; 32])
}

/// Reads messages of [`key`].
pub fn reader(installation: &str) -> EnvelopeReader {
    EnvelopeReader { installation: installation.into(), key: key() }
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
