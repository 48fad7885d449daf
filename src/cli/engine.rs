//! The doors from the command line into the engine; nothing else in `cli` calls it.

use serde_json::Value as Json;

use super::exit::{Exit, Failure};
use crate::actors::supervisor::ComponentDown;
use crate::app::{self, Listening};
use crate::config::Settings;
use crate::domain::SaleId;
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
            app::Error::Ledger(_)
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
        assert_eq!(exit_of(&app::Error::Ledger(cannot()).into()), Some(Exit::Ledger));
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
