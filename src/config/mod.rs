//! Configuration: the keys, their sources and their rules.
//!
//! Order: `config/default.toml` (compiled in, the only place with defaults) < a TOML file <
//! `FLOODGATE__SECTION__KEY` in the environment < flags. An unknown key is an error in every
//! source. Nothing outside this module reads the environment.
//!
//! | file | holds |
//! |---|---|
//! | `settings`, `kinds` | the typed settings with the rules of single numbers |
//! | `effective` | every key with documentation, value and origin; secrets hidden |
//! | `load` | the sources: defaults, file, environment, flags |
//! | `secret_files` | values in files of their own; secrets that others may read |
//! | `transport` | URLs of servers, which links are encrypted; certificates |
//! | `access` | who may do what: kinds of authentication and of challenges, rules |
//! | `validate`, `store_rules`, `payment_rules` | rules between keys; all faults at once |
//! | `jwks` | secrets and public keys of bearer tokens |
//! | `webhook_secret` | secrets of payment webhooks |
//! | `error` | faults and errors |

mod access;
mod effective;
mod error;
mod jwks;
mod kinds;
mod load;
mod payment_rules;
mod secret_files;
mod settings;
mod store_rules;
mod transport;
mod validate;
mod webhook_secret;

pub use crate::redis::transport::Durability;
pub use access::{AdminScope, AuthMode, ChallengeKind, NamedToken};
pub use effective::{Effective, is_secret_key, redact_url};
pub use error::{ConfigFault, Error};
pub use jwks::{JwtKeys, KeyMaterial, PublicJwk};
pub use kinds::{LogFormat, OutboxKind, PaymentBackend, Role, Tier};
pub use load::{ConfigSources, LoadedSettings};
pub use payment_rules::LatePayment;
pub use secret_files::ExposedSecret;
pub use settings::{
    AdminSettings, AuthSettings, ConsumerSettings, GateSettings, InternalSettings, LimitSettings,
    LogSettings, OutboxSettings, PaymentSettings, RedisSettings, RelaySettings, Settings,
    SupervisorSettings, TicketSettings,
};
pub use transport::{MysqlUrl, broker_urls, host_of};
pub use webhook_secret::{WebhookProfile, WebhookSecret};
