//! The only place that names concrete backends. Nothing above this file knows which tier runs.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::{self, Publisher, RabbitBroker, RabbitOptions, Subscriber, Topology};
use crate::config::{
    Durability, OutboxKind, OutboxSettings, RedisSettings, Settings, Tier, redact_url,
};
use crate::db::mysql::{self, MysqlLedger, MysqlOptions};
use crate::db::sql::WriteMode;
use crate::db::sqlite::{OpenOptions, SqliteLedger};
use crate::db::{self, Ledger};
use crate::domain::Counting;
use crate::lease::{Lease, RedisLease, SoleLease};
use crate::outbox::{Outbox, OutboxOptions, RedisOutbox};
use crate::redis::scripts;
use crate::redis::scripts::{EntryLimits, Installation, Script};
use crate::redis::transport;
use crate::redis::transport::{ConnectionOptions, ConnectionPool, RedisUrl, ScriptSource};
use crate::runtime::clock::SharedClock;
use crate::stock::redis::RedisOptions;
use crate::stock::{MemoryStock, RedisStock, Stock};
use crate::watermark::{RedisWatermarks, Watermarks};

/// First wait before Redis is connected to again, and the longest.
const RECONNECT_MIN: Duration = Duration::from_millis(20);
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Why the backends of a tier cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger cannot be used.
    #[error("the ledger cannot be used")]
    Ledger(#[from] db::Error),
    /// The settings of the broker do not make sense.
    #[error("amqp.url: {reason}")]
    Amqp {
        /// What is wrong and what would be right.
        reason: String,
    },
    /// There is no thread for the broker.
    #[error(transparent)]
    Broker(#[from] broker::Error),
    /// The settings of Redis do not make sense.
    #[error("redis.url: {reason}")]
    Redis {
        /// What is wrong and what would be right.
        reason: String,
    },
}

/// What a tier stands on.
#[derive(Clone)]
pub struct Backends {
    /// Where orders become true.
    pub ledger: Arc<dyn Ledger>,
    /// Where units are counted and results are read.
    pub stock: Arc<dyn Stock>,
    /// Who counts units.
    pub counting: Counting,
    /// Which of many processes does what one must do.
    pub lease: Arc<dyn Lease>,
    /// Whether other processes may serve the same sales.
    pub is_shared: bool,
    /// What is between the gates and the ledger, in tier `pipeline`.
    pub pipeline: Option<Pipeline>,
}

/// What accepted intents pass on their way to the ledger.
#[derive(Clone)]
pub struct Pipeline {
    /// Where they wait for the broker.
    pub outbox: Arc<dyn Outbox>,
    /// The way into the broker.
    pub publisher: Arc<dyn Publisher>,
    /// The way out of the broker.
    pub subscriber: Arc<dyn Subscriber>,
    /// How far the consumers have come.
    pub watermarks: Arc<dyn Watermarks>,
    /// The ledger that they are for, as messages have it.
    pub installation: Arc<str>,
}

impl Backends {
    /// The backends of a tier that counts in this process or in the ledger.
    #[must_use]
    pub fn embedded(tier: Tier, ledger: Arc<dyn Ledger>, clock: &SharedClock) -> Self {
        let counting = match tier {
            Tier::Ledger => Counting::InLedger,
            Tier::Memory | Tier::Gate | Tier::Pipeline => Counting::Here,
        };
        let stock = Arc::new(MemoryStock::new(counting));
        let lease = Arc::new(SoleLease::new(Arc::clone(clock)));
        Self { ledger, stock, counting, lease, is_shared: false, pipeline: None }
    }

    /// The backends of a tier that counts in Redis.
    ///
    /// # Errors
    /// Settings that do not make sense, and the ledger's error.
    pub async fn on_redis(
        settings: &Settings,
        ledger: Arc<dyn Ledger>,
        clock: &SharedClock,
    ) -> Result<Self, Error> {
        let links = links(settings)?;
        let installation = installation(ledger.as_ref()).await?;
        let stock = RedisStock::new(RedisOptions {
            links: links.clone(),
            namespace: settings.namespace.clone(),
            installation,
            outbox: outbox_of(settings),
            replicated: settings.redis.durability == Durability::Replicated,
            sold_out_refresh: Duration::from_millis(settings.redis.sold_out_refresh_ms),
        });
        let pipeline = match settings.tier {
            Tier::Pipeline => Some(pipeline(settings, links.clone(), installation, clock)?),
            Tier::Memory | Tier::Ledger | Tier::Gate => None,
        };
        Ok(Self {
            ledger,
            stock: Arc::new(stock),
            counting: Counting::Here,
            lease: Arc::new(RedisLease::new(links, &settings.namespace, Arc::clone(clock))),
            is_shared: true,
            pipeline,
        })
    }
}

/// What is between the gates and the ledger.
fn pipeline(
    settings: &Settings,
    links: ConnectionPool,
    installation: Installation,
    clock: &SharedClock,
) -> Result<Pipeline, Error> {
    let namespace = settings.namespace.clone();
    let watermarks = Arc::new(RedisWatermarks::new(links.clone(), &namespace));
    let options = OutboxOptions { links, namespace, installation, clock: Arc::clone(clock) };
    let kind = match settings.outbox.kind {
        OutboxKind::List => scripts::outbox::EntryKind::List,
        OutboxKind::Stream => scripts::outbox::EntryKind::Stream,
    };
    let outbox = Arc::new(RedisOutbox::new(options, kind));
    let broker = Arc::new(RabbitBroker::new(broker_options(settings)?)?);
    Ok(Pipeline {
        outbox,
        publisher: Arc::clone(&broker) as Arc<dyn Publisher>,
        subscriber: broker,
        watermarks,
        installation: installation.to_string().into(),
    })
}

/// How RabbitMQ is reached, and what must be there.
///
/// # Errors
/// [`Error::Amqp`] with what is wrong.
pub fn broker_options(settings: &Settings) -> Result<RabbitOptions, Error> {
    let amqp = &settings.amqp;
    let topology = Topology::new(&settings.namespace, amqp.queues, amqp.deliveries_max);
    let options = RabbitOptions::new(&amqp.url, topology);
    let mut options = options.map_err(|reason| Error::Amqp { reason })?;
    options.connect_timeout = Duration::from_millis(amqp.connect_timeout_ms);
    options.heartbeat_s = amqp.heartbeat_s;
    options.reconnect_min = Duration::from_millis(amqp.reconnect_min_ms);
    options.reconnect_max = Duration::from_millis(amqp.reconnect_max_ms);
    options.confirm_timeout = Duration::from_millis(settings.relay.confirm_timeout_ms);
    Ok(options)
}

/// Where accepted intents wait.
fn outbox_of(settings: &Settings) -> scripts::OutboxArgs {
    let OutboxSettings { kind, entries_max, envelope_max } = settings.outbox;
    let entries = EntryLimits { envelope_max, entries_max };
    match (settings.tier, kind) {
        (Tier::Memory | Tier::Ledger | Tier::Gate, _) => scripts::OutboxArgs::None,
        (Tier::Pipeline, OutboxKind::List) => scripts::OutboxArgs::List(entries),
        (Tier::Pipeline, OutboxKind::Stream) => scripts::OutboxArgs::Stream(entries),
    }
}

/// Opens what the configured tier stands on.
///
/// # Errors
/// What is wrong and what to do.
pub async fn open(settings: &Settings, clock: &SharedClock) -> Result<Backends, Error> {
    let ledger = open_ledger(settings, clock)?;
    match settings.tier {
        Tier::Memory | Tier::Ledger => Ok(Backends::embedded(settings.tier, ledger, clock)),
        Tier::Gate | Tier::Pipeline => Backends::on_redis(settings, ledger, clock).await,
    }
}

fn open_ledger(settings: &Settings, clock: &SharedClock) -> Result<Arc<dyn Ledger>, db::Error> {
    let clock = Arc::clone(clock);
    Ok(match place(settings, true)? {
        LedgerLocation::File(options) => {
            if !options.path.exists() {
                let path = options.path.display();
                tracing::warn!(%path, "no ledger there yet, creating a new one");
            }
            Arc::new(SqliteLedger::open(&OpenOptions { clock, ..options })?)
        }
        LedgerLocation::Server(options) => {
            Arc::new(MysqlLedger::open(&MysqlOptions { clock, ..options })?)
        }
    })
}

/// Connections to Redis as the settings want them; connects to nothing yet.
///
/// # Errors
/// [`Error::Redis`] with what is wrong.
pub fn links(settings: &Settings) -> Result<ConnectionPool, Error> {
    let wrong = |error: transport::Error| Error::Redis { reason: error.to_string() };
    ConnectionPool::new(link_options(settings)?).map_err(wrong)
}

/// What connections to Redis are to be.
///
/// # Errors
/// [`Error::Redis`] with what is wrong.
pub fn link_options(settings: &Settings) -> Result<ConnectionOptions, Error> {
    let redis = &settings.redis;
    let wrong = |error: transport::UrlError| Error::Redis { reason: error.to_string() };
    let url: RedisUrl = redis.url.parse().map_err(wrong)?;
    let scripts = Script::ALL.iter();
    let scripts = scripts.map(|script| ScriptSource { name: script.name(), text: script.text() });
    Ok(ConnectionOptions {
        url,
        connect_timeout: Duration::from_millis(redis.connect_timeout_ms),
        command_timeout: Duration::from_millis(redis.command_timeout_ms),
        user_timeout: Duration::from_millis(redis.user_timeout_ms),
        reconnect_min: RECONNECT_MIN,
        reconnect_max: RECONNECT_MAX,
        durability: durability(redis),
        scripts: scripts.collect(),
    })
}

fn durability(redis: &RedisSettings) -> transport::Durability {
    match redis.durability {
        Durability::Plain => transport::Durability::Plain,
        Durability::Aof => transport::Durability::Aof,
        Durability::Replicated => transport::Durability::Replicated {
            replicas: redis.replicas_min,
            wait_ms: redis.replicas_wait_ms,
        },
    }
}

/// Which ledger the buckets belong to: drawn when the ledger was made, so that another ledger on
/// the same Redis is told apart.
///
/// # Errors
/// The ledger's; `ReadOnly` where it was opened for reading and the name is still to be made.
pub async fn installation(ledger: &dyn Ledger) -> Result<Installation, db::Error> {
    let secret = ledger.secret("installation").await?;
    let first = secret.first_chunk::<4>().copied().unwrap_or_default();
    Ok(Installation(u32::from_be_bytes(first)))
}

/// Opens the ledger for reading, beside a running server or without one. Blocks.
///
/// # Errors
/// [`db::Error::CannotOpen`] with what is wrong and what to do.
pub fn open_ledger_for_reading(settings: &Settings) -> Result<Arc<dyn Ledger>, db::Error> {
    Ok(match place(settings, false)? {
        LedgerLocation::File(options) => Arc::new(SqliteLedger::open_for_reading(&options)?),
        LedgerLocation::Server(options) => Arc::new(MysqlLedger::open_for_reading(&options)?),
    })
}

/// Brings the ledger's schema up to date and returns what was applied. Blocks.
///
/// # Errors
/// [`db::Error::CannotOpen`] with what is wrong and what to do.
pub fn migrate(settings: &Settings) -> Result<Vec<String>, db::Error> {
    match place(settings, true)? {
        LedgerLocation::File(options) => SqliteLedger::migrate(&options),
        LedgerLocation::Server(options) => MysqlLedger::migrate(&options),
    }
}

/// The migrations that the ledger lacks; `None` when there is no ledger yet. Blocks.
///
/// # Errors
/// [`db::Error::CannotOpen`] with what is wrong and what to do.
pub fn pending_migrations(settings: &Settings) -> Result<Option<Vec<String>>, db::Error> {
    let standing = match place(settings, false)? {
        LedgerLocation::File(options) if !options.path.exists() => return Ok(None),
        LedgerLocation::File(options) => SqliteLedger::schema_standing(&options)?,
        LedgerLocation::Server(options) => MysqlLedger::schema_standing(&options)?,
    };
    standing.check_not_newer()?;
    Ok(Some(standing.pending))
}

/// Looks at every page of a ledger file, beside a running server or without one; a server looks
/// after its own pages. Blocks.
///
/// # Errors
/// [`db::Error::CannotOpen`] with what is damaged and what to do.
pub fn check_ledger_pages(settings: &Settings) -> Result<(), db::Error> {
    match place(settings, false)? {
        LedgerLocation::File(options) => SqliteLedger::check_pages(&options),
        LedgerLocation::Server(_) => Ok(()),
    }
}

/// What the database server of the ledger tells of itself; `None` where the ledger is a file.
/// Blocks.
///
/// # Errors
/// [`db::Error::CannotOpen`] with what is wrong and what to do.
pub fn ledger_health(settings: &Settings) -> Result<Option<mysql::health::MysqlFacts>, db::Error> {
    match place(settings, false)? {
        LedgerLocation::File(_) => Ok(None),
        LedgerLocation::Server(options) => mysql::health::look(&options).map(Some),
    }
}

/// Where the ledger is.
enum LedgerLocation {
    File(OpenOptions),
    Server(MysqlOptions),
}

fn place(settings: &Settings, create: bool) -> Result<LedgerLocation, db::Error> {
    let ledger = &settings.ledger;
    match ledger.url.split_once("://") {
        Some(("sqlite", path)) => Ok(LedgerLocation::File(OpenOptions {
            create,
            readers: ledger.readers,
            job_queue_max: ledger.job_queue_max,
            busy_timeout_ms: ledger.busy_timeout_ms,
            job_deadline_ms: ledger.job_deadline_ms,
            cache_kib: ledger.cache_kib,
            ..OpenOptions::new(path)
        })),
        Some(("mysql", _)) => Ok(LedgerLocation::Server(MysqlOptions {
            writers: ledger.writers,
            readers: ledger.readers,
            job_queue_max: ledger.job_queue_max,
            job_deadline_ms: ledger.job_deadline_ms,
            lock_wait_timeout_s: ledger.busy_timeout_ms.div_ceil(1000),
            statement_timeout_ms: ledger.statement_timeout_ms,
            connect_timeout_ms: ledger.connect_timeout_ms,
            // Where this process counts, or remembers alone what it accepted, nobody else may
            // write.
            writing: match settings.tier {
                Tier::Memory | Tier::Ledger => WriteMode::Exclusive,
                Tier::Gate | Tier::Pipeline => WriteMode::Shared,
            },
            ..MysqlOptions::new(&ledger.url)
        })),
        _ => {
            let url = redact_url(&ledger.url);
            let reason = format!("ledger.url {url} is neither sqlite:// nor mysql://");
            Err(db::Error::CannotOpen { reason })
        }
    }
}
