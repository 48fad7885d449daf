//! The command line: one file per command.
//!
//! Data goes to stdout, messages to stderr, and every command ends with a documented exit code
//! (`exit::Exit`). Commands about a running server are clients of its admin API.

use std::ffi::OsString;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

pub mod admin;
mod audit;
mod check_config;
mod common;
mod demo;
mod dlq;
pub mod doctor;
pub mod exit;
mod migrate;
mod open_files;
pub mod output;
mod rebuild;
mod sale;
mod serve;
mod trace;

use exit::Exit;
use output::Output;

const EXAMPLES: &str = "\
Examples:
  floodgate demo                               20,000 buyers rush 1,000 units
  floodgate serve                              tier memory, ./floodgate.db, port 8080
  floodgate serve --config floodgate.toml
  floodgate sale create sale.json && floodgate sale open spring
  floodgate audit --sale spring                exit 0: every invariant holds
  floodgate rebuild --sale spring              its buckets in Redis, from the ledger
  floodgate trace 7212345678901234567          where is this order?
  floodgate doctor                             what would go wrong tonight?
";

/// A flash-sale order engine: never oversells, never doubles an order, never loses one silently.
#[derive(Debug, Parser)]
#[command(name = "floodgate", version, before_help = EXAMPLES, after_help = exit::help())]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The commands: a new one is registered here and in [`dispatch`].
#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Migrate(migrate::MigrateArgs),
    CheckConfig(check_config::CheckConfigArgs),
    Doctor(doctor::DoctorArgs),
    Sale(sale::SaleArgs),
    Rebuild(rebuild::RebuildArgs),
    Audit(audit::AuditArgs),
    Dlq(dlq::DlqArgs),
    Trace(trace::TraceArgs),
}

fn dispatch(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::Doctor(args) => block_on(doctor::run(&args))?,
        Command::Sale(args) => block_on(sale::run(&args))?,
        Command::Rebuild(args) => block_on(rebuild::run(&args))?,
        Command::Audit(args) => block_on(audit::run(&args))?,
        Command::Dlq(args) => block_on(dlq::run(&args))?,
        Command::Trace(args) => block_on(trace::run(&args))?,
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os()).into()
}

/// Runs one command line, whose first argument is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // clap reports `--help` and `--version` as errors, too; they go to stdout.
        Err(error) => {
            drop(error.print());
            return if error.use_stderr() { Exit::Unclear } else { Exit::Done };
        }
    };
    // The panic hook has reported the panic; only the exit code is left to set.
    match catch_unwind(AssertUnwindSafe(|| dispatch(cli.command))) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            let error = exit::with_remedy(error);
            Output::new(false).failed(&error);
            Exit::of(&error)
        }
        Err(_panic) => Exit::Internal,
    }
}

/// Runs a command that is a client of a server.
fn block_on<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(runtime()?.block_on(work))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn leaf_commands(command: &clap::Command) -> Vec<clap::Command> {
        if command.has_subcommands() {
            command
                .get_subcommands()
                .filter(|inner| inner.get_name() != "help")
                .flat_map(leaf_commands)
                .collect()
        } else {
            vec![command.clone()]
        }
    }

    #[test]
    fn the_clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_begins_its_help_with_examples_and_has_json() {
        for mut command in leaf_commands(&Cli::command()) {
            let name = command.get_name().to_owned();
            assert!(command.get_arguments().any(|arg| arg.get_id() == "json"), "{name}");
            let help = command.render_long_help().to_string();
            assert!(help.trim_start().starts_with("Examples:\n  floodgate "), "{name}: {help}");
        }
    }

    #[test]
    fn wrong_usage_is_2_and_help_is_0() {
        let run = |arguments: &[&str]| run(arguments.iter().map(OsString::from));
        assert_eq!(run(&["floodgate", "fly"]), Exit::Unclear);
        assert_eq!(run(&["floodgate", "serve", "--fly"]), Exit::Unclear);
        assert_eq!(run(&["floodgate", "--version"]), Exit::Done);
    }

    #[test]
    fn a_wrong_configuration_is_3() {
        let arguments = ["floodgate", "check-config", "--set", "http.wings=2"];
        assert_eq!(run(arguments.iter().map(OsString::from)), Exit::Configuration);
    }
}
