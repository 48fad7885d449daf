//! Configuration: the keys, their sources and their rules.
//!
//! Order: `config/default.toml` (compiled in, the only place with defaults) < a TOML file <
//! `FLOODGATE__SECTION__KEY` in the environment < flags. An unknown key is an error in every
//! source. Nothing outside this module reads the environment.
//!
//! | file | holds |
//! |---|---|
//! | `settings` | the typed settings; each field is named as its key |
//! | `load` | merging and deserializing the layers |
//! | `secrets` | secrets in files of their own |
//! | `layers` | the sources: defaults, file, environment, flags |
//! | `validate`, `limits`, `store_rules` | rules between keys; all faults at once |
//! | `effective` | effective values and origins, secrets hidden |
//! | `error` | faults and errors |

mod effective;
mod error;
mod layers;
mod limits;
mod load;
mod secrets;
mod settings;
mod store_rules;
mod validate;

pub use effective::{Effective, HIDDEN, SettingEntry, redact_url};
pub use error::{ConfigFault, Error};
pub use layers::{ConfigSources, DEFAULT_TOML, EnvSource, ValueOrigin};
pub use load::LoadedSettings;
pub use settings::{
    AdminSettings, AmqpSettings, AuthMode, AuthSettings, ConsumerSettings, Durability,
    FaultSettings, GateSettings, HttpSettings, InternalSettings, LedgerSettings, LogFormat,
    LogSettings, MaintenanceSettings, OutboxKind, OutboxSettings, ReconcilerSettings,
    RedisSettings, RelaySettings, Role, Settings, ShutdownSettings, SupervisorSettings, Tier,
};
pub use validate::validate;
