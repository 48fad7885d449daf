//! The doors from the command line into the engine; nothing else in `cli` calls it.

use std::sync::Arc;

use anyhow::Context;
use serde_json::Value as Json;

use super::exit::{Exit, Failure};
use crate::actors::supervisor::ComponentDown;
use crate::app::{self, Listening};
use crate::broker::rabbit;
use crate::config::Settings;
use crate::db::Ledger;
use crate::db::mysql::health as mysql;
use crate::domain::{Epoch, Phase, SaleDraft, SaleId, Sku};
use crate::rebuild::load_sku;
use crate::redis_link::health::{self, Health};
use crate::stock::Stock;
use crate::tier::Backends;
use crate::{audit, clock, db, http, tier};

/// Runs the server until it has stopped; calls `ready` once both listeners are open.
///
/// # Errors
/// The engine could not start, or gave up; [`exit_of`] tells its exit.
pub(super) fn serve(settings: Settings, ready: impl FnOnce(Listening)) -> anyhow::Result<Exit> {
    app::run(settings, ready)?;
    Ok(Exit::Done)
}

/// The exit that an error of the engine stands for; `None` when it is none of the engine's.
pub(super) fn exit_of(error: &anyhow::Error) -> Option<Exit> {
    if let Some(error) = error.downcast_ref::<app::Error>() {
        return Some(match error {
            app::Error::Backends(tier::Error::Redis { .. } | tier::Error::Amqp { .. }) => {
                Exit::Configuration
            }
            app::Error::Backends(tier::Error::Broker(_)) => Exit::Internal,
            app::Error::Backends(tier::Error::Ledger(_))
            | app::Error::Rebuild(_)
            | app::Error::Http(http::server::Error::Ledger(_)) => Exit::Ledger,
            app::Error::Http(http::server::Error::Bind { .. }) => Exit::Address,
            app::Error::Http(http::server::Error::NoSecret(_)) => Exit::Configuration,
            app::Error::ComponentDown(_) => Exit::GaveUp,
            app::Error::System { .. } | app::Error::MainThreadDied => Exit::Internal,
        });
    }
    if error.is::<ComponentDown>() {
        return Some(Exit::GaveUp);
    }
    error.is::<db::Error>().then_some(Exit::Ledger)
}

/// Brings the ledger's schema up to date; the names of the migrations that were run.
///
/// # Errors
/// The ledger cannot be used.
pub(super) fn migrate(settings: &Settings) -> Result<Vec<String>, db::Error> {
    tier::migrate(settings)
}

/// The names of the migrations that the ledger lacks; `None` when there is no ledger yet.
///
/// # Errors
/// The ledger cannot be opened.
pub(super) fn pending_migrations(settings: &Settings) -> Result<Option<Vec<String>>, db::Error> {
    tier::pending_migrations(settings)
}

/// Reads the whole ledger file.
///
/// # Errors
/// What is damaged, and what to do.
pub(super) fn check_ledger_pages(settings: &Settings) -> Result<(), db::Error> {
    tier::check_ledger_pages(settings)
}

/// What the database server of the ledger tells of itself; `None` where the ledger is a file.
///
/// # Errors
/// What is wrong, and what to do.
pub(super) fn ledger_health(settings: &Settings) -> Result<Option<mysql::Facts>, db::Error> {
    tier::ledger_health(settings)
}

/// What there is to know about the servers behind `redis.url`.
///
/// # Errors
/// The address does not make sense.
pub(super) async fn redis_health(settings: &Settings) -> Result<Health, tier::Error> {
    Ok(health::look(&tier::link_options(settings)?, &settings.namespace).await)
}

/// What there is to know about the broker behind `amqp.url`; the inner error is its trouble.
///
/// # Errors
/// The address does not make sense.
pub(super) async fn broker_health(
    settings: &Settings,
) -> Result<Result<rabbit::health::Facts, rabbit::health::Trouble>, tier::Error> {
    Ok(rabbit::health::look(&tier::broker_options(settings)?).await)
}

/// The ledger's own name in buckets; `None` where the ledger or the name is still to be made.
///
/// # Errors
/// The ledger cannot be read.
pub(super) async fn known_installation(settings: &Settings) -> Result<Option<String>, db::Error> {
    if pending_migrations(settings)?.is_none() {
        return Ok(None);
    }
    let ledger = tier::open_ledger_for_reading(settings)?;
    let installation = tier::installation(ledger.as_ref()).await;
    ledger.close().await;
    match installation {
        Ok(installation) => Ok(Some(installation.to_string())),
        Err(db::Error::ReadOnly { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Audits the ledger itself, without a server: the report as the admin API gives it.
///
/// # Errors
/// It could not tell.
pub(super) async fn audit_ledger(settings: &Settings, sale: Option<&str>) -> Result<Json, Failure> {
    let could_not_tell = |problem: String| {
        let remedy = "`floodgate doctor` looks further, with the same --config and --set";
        Failure::new(Exit::Unclear, format!("could not tell: {problem}"), remedy)
    };
    let sale: Option<SaleId> = match sale.map(str::parse).transpose() {
        Ok(sale) => sale,
        Err(error) => return Err(could_not_tell(format!("--sale: {error}"))),
    };
    let ledger = tier::open_ledger_for_reading(settings)
        .map_err(|error| could_not_tell(error.to_string()))?;
    let report = audit::audit(None, ledger.as_ref(), sale.as_ref(), clock::wall_ms()).await;
    ledger.close().await;
    let report = report.map_err(|error| could_not_tell(with_cause(&error)))?;
    serde_json::to_value(report).map_err(|error| could_not_tell(error.to_string()))
}

/// Violations of a measured sale that are named.
const VIOLATIONS_SHOWN: usize = 5;

/// Ledger and stock of a tier, without actors and HTTP: for measurements.
pub(super) struct Bare {
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) stock: Arc<dyn Stock>,
}

/// Opens what the tier stands on, and starts nothing else.
///
/// # Errors
/// What is wrong and what to do.
pub(super) async fn bare(settings: &Settings) -> Result<Bare, tier::Error> {
    let Backends { ledger, stock, .. } =
        tier::open(settings, &clock::SystemClock::shared()).await?;
    Ok(Bare { ledger, stock })
}

impl Bare {
    /// Creates a sale, opens it, and loads the buckets of its first SKU.
    ///
    /// # Errors
    /// The ledger's or the stock's.
    pub(super) async fn open_sale(&self, draft: SaleDraft) -> anyhow::Result<(Arc<Sku>, Epoch)> {
        let (id, now) = (draft.id.clone(), clock::wall_ms());
        let created = self.ledger.create_sale(draft, now).await?;
        created.context("a sale of that name exists")?;
        let opened = self.ledger.turn_sale(id, Phase::Open, now).await?;
        let sale = opened.context("the sale is gone")?;
        let sku = Arc::new(sale.skus.into_iter().next().context("the sale has no SKU")?);
        let (ledger, stock) = (self.ledger.as_ref(), self.stock.as_ref());
        load_sku(ledger, stock, &sku, Phase::Open, sale.epoch, Vec::new()).await?;
        Ok((sku, sale.epoch))
    }

    /// Audits one sale, ledger and buckets: the first violations, and what could not be judged.
    ///
    /// # Errors
    /// It could not tell.
    pub(super) async fn violations(&self, sale: &SaleId) -> anyhow::Result<Vec<String>> {
        self.audited(Some(self.stock.as_ref()), sale).await
    }

    /// Audits one sale whose buckets have no part in it: the first violations.
    ///
    /// # Errors
    /// It could not tell.
    pub(super) async fn ledger_violations(&self, sale: &SaleId) -> anyhow::Result<Vec<String>> {
        self.audited(None, sale).await
    }

    async fn audited(
        &self,
        stock: Option<&dyn Stock>,
        sale: &SaleId,
    ) -> anyhow::Result<Vec<String>> {
        let report =
            audit::audit(stock, self.ledger.as_ref(), Some(sale), clock::wall_ms()).await?;
        let shown = report.violations.iter().take(VIOLATIONS_SHOWN);
        let mut found: Vec<String> = shown.map(|violation| format!("{violation:?}")).collect();
        if stock.is_some() && !report.could_tell {
            found.extend(report.notes);
        }
        Ok(found)
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(directory: &std::path::Path) -> Settings {
        Settings::for_test(&format!("sqlite://{}/l.db", directory.display()))
    }

    #[test]
    fn errors_of_the_engine_find_their_exit() {
        let cannot = || db::Error::CannotOpen { reason: "no".into() };
        assert_eq!(exit_of(&anyhow::Error::new(cannot())), Some(Exit::Ledger));
        assert_eq!(exit_of(&app::Error::Backends(cannot().into()).into()), Some(Exit::Ledger));
        assert_eq!(exit_of(&app::Error::MainThreadDied.into()), Some(Exit::Internal));
        assert_eq!(exit_of(&anyhow::anyhow!("else")), None);
    }

    #[test]
    fn a_new_ledger_is_migrated_once() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        assert_eq!(pending_migrations(&settings).unwrap(), None);
        assert!(!migrate(&settings).unwrap().is_empty());
        assert_eq!(migrate(&settings).unwrap(), Vec::<String>::new());
        assert_eq!(pending_migrations(&settings).unwrap(), Some(Vec::new()));
    }

    #[tokio::test]
    async fn an_audit_without_a_server_tells_what_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let missing = audit_ledger(&settings, None).await.unwrap_err();
        assert_eq!(missing.exit, Exit::Unclear);

        migrate(&settings).unwrap();
        let report = audit_ledger(&settings, None).await.unwrap();
        assert_eq!(report["num_violations"], 0);
        let unknown = audit_ledger(&settings, Some("spring")).await.unwrap_err();
        assert!(unknown.problem.contains("spring"), "{unknown}");
    }
}
