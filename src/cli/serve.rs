//! `floodgate serve`: runs the server; `floodgate migrate` prepares its ledger.

use clap::Args;
use clap::builder::PossibleValue;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::common::Common;
use super::doctor;
use super::exit::Exit;
use super::output::Output;
use crate::app::{self, BoundAddresses};
use crate::config::{LoadedSettings, Role, redact_url};
use crate::observe::telemetry;
use crate::tier;

const EXAMPLES: &str = "\
Examples:
  floodgate serve                              tier memory, ./floodgate.db, loopback only
  floodgate serve --config floodgate.toml
  floodgate serve --config floodgate.toml --role relay    one part of tier pipeline
  FLOODGATE__HTTP__BIND=127.0.0.1:0 floodgate serve --set log.filter=debug
";

/// Examples of `migrate`.
pub(super) const MIGRATE_EXAMPLES: &str = "\
Examples:
  floodgate migrate --config floodgate.toml    safe to repeat; stop the server first
  floodgate migrate --set ledger.url=sqlite:///var/lib/floodgate/floodgate.db
";

/// Files besides the connections: listeners, ledger, event loops, and a reserve.
const BESIDES_CONNECTIONS: u64 = 256;

fn roles() -> [PossibleValue; 5] {
    let [all, api, relay, consumer, maintenance] =
        Role::ALL.map(|role| PossibleValue::new(role.name()));
    [all, api, relay, consumer, maintenance.alias("keeper")]
}

/// Run the server until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct ServeArgs {
    /// Which part of the pipeline this process runs; the same as --set role=ROLE
    #[arg(long, value_parser = roles())]
    role: Option<String>,
}

/// Runs the server until it has stopped.
pub fn run(args: &ServeArgs, common: &Common) -> anyhow::Result<Exit> {
    let LoadedSettings { mut settings, exposed, .. } = settings(args, common)?;
    let _log = telemetry::init(&settings.log)?;
    if settings.role.sells() {
        settings.http.connections_max = raise_open_files(settings.http.connections_max);
    }
    doctor::log_unsafe(&settings, &exposed);
    let output = common.output();
    app::run(settings, |listening| announce(output, listening))?;
    Ok(Exit::Done)
}

/// Runs the pending migrations.
pub fn migrate(common: &Common) -> anyhow::Result<Exit> {
    let settings = common.settings_for(&["ledger."])?;
    let file = settings.ledger.sqlite_path();
    let created = file.is_some_and(|file| !file.exists());
    let ran = tier::migrate(&settings)?;
    // Relative paths are often of another folder than the one that was meant.
    let ledger = match file.map(std::path::absolute) {
        Some(Ok(file)) => format!("sqlite://{}", file.display()),
        _ => redact_url(&settings.ledger.url),
    };
    let done = json!({ "ledger": ledger, "created": created, "migrations_run": ran });
    common.output().data(&done, || match ran.join(", ") {
        ran if created => format!("{ledger}: created a new ledger, ran {ran}"),
        ran if ran.is_empty() => format!("{ledger}: the schema is up to date"),
        ran => format!("{ledger}: ran {ran}"),
    })?;
    Ok(Exit::Done)
}

/// Prints the `listening` line that scripts and tests wait for, and logs it.
fn announce(output: Output, BoundAddresses { public, internal }: BoundAddresses) {
    let shown = public.map_or_else(|| "none".to_owned(), |public| public.to_string());
    tracing::info!(public = %shown, %internal, "listening");
    let data = json!({ "listening": { "public": public, "internal": internal } });
    if let Err(error) =
        output.data(&data, || format!("listening public={shown} internal={internal}"))
    {
        tracing::error!(%error, "listening addresses: cannot be printed");
    }
}

/// `--json` also makes the log JSON.
fn settings(args: &ServeArgs, common: &Common) -> Result<LoadedSettings, crate::config::Error> {
    let mut sources = common.sources();
    if common.json {
        // Inserted first, so that an explicit --set log.format overrides it.
        sources.set.insert(0, "log.format=json".to_owned());
    }
    sources.set.extend(args.role.iter().map(|role| format!("role={role}")));
    LoadedSettings::read(&sources)?.without_faults()
}

/// This process's limits on open files; `u64::MAX` means unlimited.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFiles {
    /// The limit in effect.
    pub soft: u64,
    /// The highest value that this process may set as `soft`.
    pub hard: u64,
}

impl OpenFiles {
    pub fn of_this_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        Self { soft: current.unwrap_or(u64::MAX), hard: maximum.unwrap_or(u64::MAX) }
    }
}

/// Open files that `connections_max` connections need: each takes one.
pub(super) fn open_files_needed(connections_max: usize) -> u64 {
    u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(BESIDES_CONNECTIONS)
}

/// Raises the soft limit to what `connections_max` connections need, at most to the hard limit.
/// Returns how many connections it allows; logs a warning if these are fewer. Connections that took
/// the last files would keep out probes and operators, and the ledger from its servers.
pub(super) fn raise_open_files(connections_max: usize) -> usize {
    let needed = open_files_needed(connections_max);
    let limits = OpenFiles::of_this_process();
    if limits.soft >= needed {
        return connections_max;
    }
    let target = needed.min(limits.hard);
    let maximum = (limits.hard != u64::MAX).then_some(limits.hard);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum });
    let limit = if raised.is_ok() { target } else { limits.soft };
    if limit == needed {
        return connections_max;
    }
    let allowed = limit - BESIDES_CONNECTIONS.min(limit / 2);
    tracing::warn!(
        limit,
        needed,
        allowed,
        "too few open files for http.connections_max: more connections than are allowed wait; \
         raise `ulimit -n` or lower http.connections_max"
    );
    usize::try_from(allowed).map_or(connections_max, |allowed| allowed.max(1))
}
