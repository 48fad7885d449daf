//! Configuration: the keys, their sources and their rules.
//!
//! Order: `config/default.toml` (compiled in, the only place with defaults) < a TOML file <
//! `FLOODGATE__SECTION__KEY` in the environment < flags. An unknown key is an error in every
//! source. Nothing outside this module reads the environment.
//!
//! | file | holds |
//! |---|---|
//! | `settings` | the typed settings with the rules of single numbers |
//! | `effective` | every key with documentation, value and origin; secrets hidden |
//! | `load` | the sources: defaults, file, environment, flags, and secrets in files of their own |
//! | `validate`, `store_rules`, `payment_rules` | rules between keys; all faults at once |
//! | `webhook_secret` | secrets of payment webhooks |
//! | `error` | faults and errors |

mod effective;
mod error;
mod load;
mod payment_rules;
mod settings;
mod store_rules;
mod validate;
mod webhook_secret;

pub use crate::redis::transport::Durability;
pub use effective::{Effective, redact_url};
pub use error::{ConfigFault, Error};
pub use load::{ConfigSources, LoadedSettings};
pub use settings::{
    AdminSettings, AuthMode, AuthSettings, ConsumerSettings, GateSettings, InternalSettings,
    LogFormat, LogSettings, OutboxKind, OutboxSettings, PaymentBackend, PaymentSettings,
    RedisSettings, RelaySettings, Role, Settings, SupervisorSettings, Tier,
};
pub use webhook_secret::{WebhookProfile, WebhookSecret};
