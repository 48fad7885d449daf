//! The command line: one file per command, or for two that belong together.
//!
//! Data goes to stdout, messages to stderr, and every command ends with a documented exit code
//! (`exit::Exit`). Commands about a running server are clients of its admin API.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub mod admin;
mod answers;
mod archive_files;
mod audit;
mod bench;
mod common;
mod demo;
mod dlq;
pub mod doctor;
mod events;
pub mod exit;
mod export;
pub mod output;
mod payments;
mod rebuild;
mod retention;
mod sale;
mod sale_changes;
mod serve;
mod trace;

use common::Common;
use exit::Exit;

const EXAMPLES: &str = "\
Examples:
  floodgate demo                               20,000 buyers rush 1,000 units
  floodgate serve                              tier memory, ./floodgate.db, port 8080
  floodgate serve --config floodgate.toml
  floodgate sale create sale.json && floodgate sale open spring
  floodgate audit --sale spring                exit 0: every invariant holds
  floodgate rebuild --sale spring              its buckets in Redis, from the ledger
  floodgate trace 7212345678901234567          where is this order?
  floodgate payments list                      which payments wait for an operator?
  floodgate doctor                             what would go wrong tonight?
";

/// A flash-sale order engine: never oversells, never doubles an order, never loses one silently.
#[derive(Debug, Parser)]
#[command(name = "floodgate", version, before_help = EXAMPLES, after_help = exit::help())]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// The commands: a new one is registered here and in [`dispatch`].
#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    /// Bring the ledger's schema up to date
    #[command(before_help = serve::MIGRATE_EXAMPLES)]
    Migrate,
    /// Show the effective configuration, secrets hidden, and every fault of it
    #[command(before_help = common::EXAMPLES)]
    CheckConfig,
    /// Check the configuration, every server that it names, disk, limits and ports
    #[command(before_help = doctor::EXAMPLES)]
    Doctor,
    Sale(sale::SaleArgs),
    Rebuild(rebuild::RebuildArgs),
    Audit(audit::AuditArgs),
    Dlq(dlq::DlqArgs),
    Trace(trace::TraceArgs),
    Events(events::EventsArgs),
    Payments(payments::PaymentsArgs),
    Bench(bench::BenchArgs),
}

fn dispatch(Cli { command, common }: Cli) -> anyhow::Result<Exit> {
    let common = &common;
    match command {
        Command::Demo(args) => demo::run(&args, common),
        Command::Serve(args) => serve::run(&args, common),
        Command::Migrate => serve::migrate(common),
        Command::CheckConfig => common.check(),
        Command::Doctor => runtime()?.block_on(doctor::run(common)),
        Command::Sale(args) => runtime()?.block_on(sale::run(&args, common)),
        Command::Rebuild(args) => runtime()?.block_on(rebuild::run(&args, common)),
        Command::Audit(args) => runtime()?.block_on(audit::run(&args, common)),
        Command::Dlq(args) => runtime()?.block_on(dlq::run(&args, common)),
        Command::Trace(args) => runtime()?.block_on(trace::run(&args, common)),
        Command::Events(args) => runtime()?.block_on(events::run(&args, common)),
        Command::Payments(args) => runtime()?.block_on(payments::run(&args, common)),
        Command::Bench(args) => bench::run(&args, common),
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os()).into()
}

/// Runs one command line, whose first argument is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        // clap reports `--help` and `--version` as errors, too; they go to stdout.
        Err(error) => {
            drop(error.print());
            return if error.use_stderr() { Exit::Unclear } else { Exit::Done };
        }
    };
    let output = cli.common.output();
    // The panic hook has reported the panic; only the exit code is left to set.
    match catch_unwind(AssertUnwindSafe(|| dispatch(cli))) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            let error = exit::with_remedy(error);
            output.failed(&error);
            Exit::of(&error)
        }
        Err(_panic) => Exit::Internal,
    }
}

/// Reads the command line. Common options may stand before and behind each command: every `--set`
/// counts, and the last `--config`. With clap's `global` a later `--set` would replace all before.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = with_common(Cli::command()).try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let mut command = &matches;
    while let Some((_, inner)) = command.subcommand() {
        let Common { config, set, json, .. } = Common::from_arg_matches(inner)?;
        cli.common.config = config.or(cli.common.config);
        cli.common.set.extend(set);
        cli.common.json |= json;
        // Only commands that call a server have it.
        let url = inner.try_get_one::<String>("internal_url").ok().flatten();
        cli.common.internal_url = url.cloned().or(cli.common.internal_url);
        command = inner;
    }
    Ok(cli)
}

fn with_common(command: clap::Command) -> clap::Command {
    let common = Common::augment_args(clap::Command::default());
    command.mut_subcommands(|inner| with_common(inner.args(common.get_arguments())))
}

/// For commands that are clients of a server.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf_commands(command: &clap::Command) -> Vec<clap::Command> {
        if !command.has_subcommands() {
            return vec![command.clone()];
        }
        let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        inner.flat_map(leaf_commands).collect()
    }

    #[test]
    fn every_command_begins_its_help_with_examples_and_has_json() {
        let mut all = with_common(Cli::command());
        all.build();
        for mut command in leaf_commands(&all) {
            let name = command.get_name().to_owned();
            assert!(command.get_arguments().any(|arg| arg.get_id() == "json"), "{name}");
            let help = command.render_long_help().to_string();
            assert!(help.trim_start().starts_with("Examples:\n  floodgate "), "{name}: {help}");
        }
    }
}
