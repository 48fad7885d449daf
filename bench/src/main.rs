//! `floodgate-bench` measures throughput and latency of Floodgate, and audits every run.
//!
//! Without `--table` the bench runs one load against one sale. With `--table` it measures the goals
//! next to their baselines (in the output: yardsticks), on private Redis, RabbitMQ and MariaDB
//! servers; goals whose servers are not installed are reported as not measured. Every run that
//! sells ends with an audit: a run whose audit fails is void.
//!
//! The servers under test are child processes of the same executable, which contains the engine.

use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use floodgate::cli;
use floodgate::cli::exit::{self, CommandFailure, Exit};
use floodgate::cli::output::Output;

use crate::args::BenchFlags;

mod admin;
mod args;
mod connections;
mod gate;
mod harness;
mod hostile;
mod http;
mod large_ledger;
mod meter;
mod order_life;
mod orders;
mod pipeline;
mod process;
mod raw;
mod relay;
mod relay_faults;
mod servers;
mod single;
mod stats;
mod stores;
mod table;
mod yardsticks;

/// Measures Floodgate: one load against one sale, or the table of goals.
#[derive(Debug, Parser)]
#[command(name = "floodgate-bench", version, args_conflicts_with_subcommands = true)]
struct Bench {
    #[command(subcommand)]
    child: Option<ChildProcess>,
    #[command(flatten)]
    args: BenchFlags,
}

/// The child processes of the bench.
#[derive(Debug, Subcommand)]
enum ChildProcess {
    /// `floodgate` with these arguments.
    #[command(hide = true)]
    Floodgate {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    #[command(hide = true)]
    Yardstick,
    #[command(hide = true)]
    Hold(connections::HoldArgs),
}

fn main() -> ExitCode {
    let Bench { child, args } = Bench::parse();
    let result = match child {
        Some(ChildProcess::Floodgate { arguments }) => {
            return cli::run([OsString::from("floodgate")].into_iter().chain(arguments)).into();
        }
        Some(ChildProcess::Yardstick) => actix_rt::System::new().block_on(yardsticks::handler()),
        Some(ChildProcess::Hold(args)) => block_on(connections::hold(args)),
        None => block_on(run(args)),
    };
    let exit = result.unwrap_or_else(|error| {
        let error = exit::with_remedy(error);
        Output::new(false).failed(&error);
        Exit::of(&error)
    });
    exit.into()
}

fn block_on(future: impl Future<Output = Result<Exit>>) -> Result<Exit> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start the event loop")?.block_on(future)
}

async fn run(args: BenchFlags) -> Result<Exit> {
    let outcome = if args.table { table::run(args).await } else { single::run(&args).await };
    let is_valid = outcome.context(CommandFailure::new(
        Exit::Unclear,
        "the bench could not run",
        "see `floodgate doctor`; for a running server check --url and --internal-url",
    ))?;
    Ok(if is_valid { Exit::Done } else { Exit::Negative })
}
