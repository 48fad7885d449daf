//! Selects the backends of the configured tier. Only this folder names concrete backends; all other
//! code uses the ports.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::{self, Publisher, RabbitBroker, RabbitOptions, Subscriber, Topology};
use crate::config::{OutboxKind, OutboxSettings, PaymentBackend, Settings, Tier};
use crate::db::{self, Ledger};
use crate::domain::Counting;
use crate::lease::{Lease, RedisLease, SoleLease};
use crate::limits::SharedLimits;
use crate::messages::envelope::EnvelopeReader;
use crate::outbox::{Outbox, RedisOutbox};
use crate::payment::{BoundedProvider, DemoProvider, Payments, WebhookReader, WebhookVerifier};
use crate::redis::executor::ScriptExecutor;
use crate::redis::scripts::intent::IntentKey;
use crate::redis::scripts::{EntryLimits, Installation, OutboxArgs, Script};
use crate::redis::transport::{
    ConnectionOptions, ConnectionPool, ConnectionPurpose, Durability, RedisUrl, ScriptSource,
};
use crate::runtime::clock::SharedClock;
use crate::stock::redis::RedisStockOptions;
use crate::stock::{MemoryStock, RedisStock, Stock};
use crate::tickets::{MemoryTicketUses, RedisTicketUses, TicketUses};
use crate::watermark::{RedisWatermarks, Watermarks};

mod ledger;

use ledger::open_ledger;
pub use ledger::{
    check_ledger_pages, check_ledger_path, ledger_health, migrate, open_ledger_for_reading,
    pending_migrations,
};

/// First and longest delay before a reconnect to Redis.
const RECONNECT_MIN: Duration = Duration::from_millis(20);
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Why the backends of a tier are not usable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the ledger cannot be used")]
    Ledger(#[from] db::Error),
    /// The broker client did not start.
    #[error(transparent)]
    Broker(#[from] broker::Error),
    /// The settings of the broker or Redis are invalid.
    #[error("{key}: {reason}")]
    Setting {
        key: &'static str,
        /// The fault and the valid values.
        reason: String,
    },
}

/// The backends of a tier.
#[derive(Clone)]
pub struct Backends {
    pub ledger: Arc<dyn Ledger>,
    /// Counts units and stores results.
    pub stock: Arc<dyn Stock>,
    /// Whether the stock or the ledger counts units.
    pub counting: Counting,
    /// Leases for work that one process at a time must do.
    pub lease: Arc<dyn Lease>,
    /// Which requests the used tickets stand for.
    pub ticket_uses: Arc<dyn TicketUses>,
    /// Counts calls of all processes together, with `limits.shared`.
    pub shared_limits: Option<Arc<SharedLimits>>,
    /// Whether other processes may serve the same sales.
    pub is_shared: bool,
    /// Only in tier `pipeline`.
    pub pipeline: Option<Pipeline>,
}

/// Outbox and broker, between the gates and the ledger.
#[derive(Clone)]
pub struct Pipeline {
    pub outbox: Arc<dyn Outbox>,
    pub publisher: Arc<dyn Publisher>,
    pub subscriber: Arc<dyn Subscriber>,
    /// Progress of the order consumers.
    pub watermarks: Arc<dyn Watermarks>,
    /// Reads messages of this installation, whose id each message has as a header.
    pub reader: EnvelopeReader,
}

impl Backends {
    /// The backends of a tier that counts in this process or in the ledger.
    pub fn embedded(tier: Tier, ledger: Arc<dyn Ledger>, clock: &SharedClock) -> Self {
        let counting = match tier {
            Tier::Ledger => Counting::InLedger,
            Tier::Memory | Tier::Gate | Tier::Pipeline => Counting::InStock,
        };
        Self {
            ledger,
            stock: Arc::new(MemoryStock::new(counting)),
            counting,
            lease: Arc::new(SoleLease::new(Arc::clone(clock))),
            ticket_uses: Arc::new(MemoryTicketUses::new(Arc::clone(clock))),
            shared_limits: None,
            is_shared: false,
            pipeline: None,
        }
    }

    /// The backends of a tier that counts in Redis.
    pub async fn on_redis(
        settings: &Settings,
        ledger: Arc<dyn Ledger>,
        clock: &SharedClock,
    ) -> Result<Self, Error> {
        let pool = connection_pool(settings)?;
        let installation = installation(ledger.as_ref()).await?;
        let reader = envelope_reader(ledger.as_ref()).await?;
        let stock = RedisStock::new(RedisStockOptions {
            pool: pool.clone(),
            namespace: settings.namespace.clone(),
            installation,
            outbox: outbox_args(settings),
            intents: reader.key.clone(),
            replicated: settings.redis.durability == Durability::Replicated,
            sold_out_refresh: Duration::from_millis(settings.redis.sold_out_refresh_ms),
        });
        let pipeline = match settings.tier {
            Tier::Pipeline => {
                let redis = (pool.clone(), installation);
                Some(pipeline(settings, redis, reader)?)
            }
            Tier::Memory | Tier::Ledger | Tier::Gate => None,
        };
        let new_limits = || Arc::new(SharedLimits::new(pool.clone(), &settings.namespace));
        let shared_limits = settings.limits.shared.then(new_limits);
        Ok(Self {
            ledger,
            stock: Arc::new(stock),
            shared_limits,
            counting: Counting::InStock,
            ticket_uses: Arc::new(RedisTicketUses::new(
                pool.clone(),
                &settings.namespace,
                Arc::clone(clock),
            )),
            lease: Arc::new(RedisLease::new(pool, &settings.namespace, Arc::clone(clock))),
            is_shared: true,
            pipeline,
        })
    }
}

fn pipeline(
    settings: &Settings,
    (pool, installation): (ConnectionPool, Installation),
    reader: EnvelopeReader,
) -> Result<Pipeline, Error> {
    let namespace = &settings.namespace;
    let watermarks = Arc::new(RedisWatermarks::new(pool.clone(), namespace));
    let executor = ScriptExecutor::new(pool, ConnectionPurpose::Relay, namespace, installation);
    let outbox = Arc::new(RedisOutbox::new(executor, settings.outbox.kind));
    let broker = Arc::new(RabbitBroker::new(broker_options(settings)?)?);
    Ok(Pipeline {
        outbox,
        publisher: Arc::clone(&broker) as Arc<dyn Publisher>,
        subscriber: broker,
        watermarks,
        reader,
    })
}

/// Connection options and topology of RabbitMQ.
pub fn broker_options(settings: &Settings) -> Result<RabbitOptions, Error> {
    let amqp = &settings.amqp;
    let topology = Topology {
        has_events: settings.events.exchange,
        has_payments: settings.payment.queue,
        delays_s: settings.payment.delay_windows_s(),
        ..Topology::new(&settings.namespace, amqp.queues, amqp.deliveries_max)
    };
    let options = RabbitOptions::new(&amqp.url, topology);
    let mut options = options.map_err(|reason| Error::Setting { key: "amqp.url", reason })?;
    options.trust.clone_from(&amqp.trust);
    options.connect_timeout = Duration::from_millis(amqp.connect_timeout_ms);
    options.heartbeat_s = amqp.heartbeat_s;
    options.reconnect_min = Duration::from_millis(amqp.reconnect_min_ms);
    options.reconnect_max = Duration::from_millis(amqp.reconnect_max_ms);
    options.confirm_timeout = Duration::from_millis(settings.relay.confirm_timeout_ms);
    Ok(options)
}

fn outbox_args(settings: &Settings) -> OutboxArgs {
    let OutboxSettings { kind, entries_max, envelope_max } = settings.outbox;
    let entries = EntryLimits { envelope_max, entries_max };
    match (settings.tier, kind) {
        (Tier::Memory | Tier::Ledger | Tier::Gate, _) => OutboxArgs::None,
        (Tier::Pipeline, OutboxKind::List) => OutboxArgs::List(entries),
        (Tier::Pipeline, OutboxKind::Stream) => OutboxArgs::Stream(entries),
    }
}

/// Opens the backends of the configured tier.
pub async fn open(settings: &Settings, clock: &SharedClock) -> Result<Backends, Error> {
    let ledger = open_ledger(settings, clock)?;
    match settings.tier {
        Tier::Memory | Tier::Ledger => Ok(Backends::embedded(settings.tier, ledger, clock)),
        Tier::Gate | Tier::Pipeline => Backends::on_redis(settings, ledger, clock).await,
    }
}

/// The configured payment provider; the ledger has the key of its webhooks.
pub async fn payments(
    settings: &Settings,
    ledger: &dyn Ledger,
    clock: &SharedClock,
) -> Result<Option<Payments>, Error> {
    let payment = &settings.payment;
    if payment.provider == PaymentBackend::None {
        return Ok(None);
    }
    let verifier = WebhookVerifier::new(payment, &ledger.secret("payment-webhooks").await?);
    let verifier = Arc::new(verifier);
    let demo = Arc::new(DemoProvider::new(Arc::clone(&verifier), Arc::clone(clock)));
    let timeout = Duration::from_millis(payment.timeout_ms);
    let provider = BoundedProvider::new(Arc::clone(&demo) as _, payment.calls_max, timeout);
    let webhooks = Arc::new(WebhookReader::new(verifier, DemoProvider::NAME));
    Ok(Some(Payments {
        provider_of_tasks: Arc::new(provider.for_tasks()),
        provider: Arc::new(provider),
        webhooks,
        demo: Some(demo),
    }))
}

/// The pool of Redis connections. Connects on first use.
pub fn connection_pool(settings: &Settings) -> Result<ConnectionPool, Error> {
    ConnectionPool::new(connection_options(settings)?).map_err(invalid_redis)
}

/// Options of Redis connections.
pub fn connection_options(settings: &Settings) -> Result<ConnectionOptions, Error> {
    let redis = &settings.redis;
    let url: RedisUrl = redis.url.parse().map_err(invalid_redis)?;
    let scripts = Script::ALL.iter();
    let scripts = scripts.map(|script| ScriptSource { name: script.name(), text: script.text() });
    Ok(ConnectionOptions {
        url,
        trust: redis.trust.clone(),
        connect_timeout: Duration::from_millis(redis.connect_timeout_ms),
        command_timeout: Duration::from_millis(redis.command_timeout_ms),
        user_timeout: Duration::from_millis(redis.user_timeout_ms),
        reconnect_min: RECONNECT_MIN,
        reconnect_max: RECONNECT_MAX,
        durability: redis.durability,
        replicas_min: redis.replicas_min,
        replicas_wait_ms: redis.replicas_wait_ms,
        scripts: scripts.collect(),
    })
}

fn invalid_redis(error: impl std::error::Error) -> Error {
    Error::Setting { key: "redis.url", reason: error.to_string() }
}

/// Identity of the ledger that the buckets belong to. Random, generated with the ledger, so that
/// several ledgers can share one Redis.
///
/// # Errors
/// `ReadOnly` for a ledger that is open for reading and has no identity yet.
pub async fn installation(ledger: &dyn Ledger) -> Result<Installation, db::Error> {
    let secret = ledger.secret("installation").await?;
    let first = secret.first_chunk::<4>().copied().unwrap_or_default();
    Ok(Installation(u32::from_be_bytes(first)))
}

/// The key that signs accepted intents, the same in every process.
pub async fn intent_key(ledger: &dyn Ledger) -> Result<IntentKey, db::Error> {
    Ok(IntentKey::new(&ledger.secret("intents").await?))
}

/// Reads the messages of the ledger's installation.
pub async fn envelope_reader(ledger: &dyn Ledger) -> Result<EnvelopeReader, db::Error> {
    Ok(EnvelopeReader {
        installation: installation(ledger).await?.to_string().into(),
        key: intent_key(ledger).await?,
    })
}
