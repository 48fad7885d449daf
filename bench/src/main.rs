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

use crate::args::BenchArgs;

mod admin;
mod args;
mod backlog;
mod baseline;
mod connections;
mod crowd;
mod decide;
mod harness;
mod hostile;
mod http;
mod large_audit;
mod large_start;
mod machine;
mod many_connections;
mod memory;
mod meter;
mod metrics;
mod order_life;
mod orders;
mod pipeline;
mod process;
mod raw;
mod relay;
mod relay_fixture;
mod restart;
mod retention;
mod servers;
mod single;
mod sink;
mod stats;
mod stores;
mod table;
mod takeover;

/// Measures Floodgate: one load against one sale, or the table of goals.
#[derive(Debug, Parser)]
#[command(name = "floodgate-bench", version, args_conflicts_with_subcommands = true)]
struct Bench {
    #[command(subcommand)]
    child: Option<ChildProcess>,
    #[command(flatten)]
    args: BenchArgs,
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
    Yardstick(baseline::YardstickArgs),
    #[command(hide = true)]
    Hold(many_connections::HoldArgs),
}

fn main() -> ExitCode {
    let Bench { child, args } = Bench::parse();
    let result = match child {
        Some(ChildProcess::Floodgate { arguments }) => {
            return cli::run([OsString::from("floodgate")].into_iter().chain(arguments)).into();
        }
        Some(ChildProcess::Yardstick(args)) => {
            actix_rt::System::new().block_on(baseline::run(args))
        }
        Some(ChildProcess::Hold(args)) => block_on(many_connections::hold(args)),
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

async fn run(args: BenchArgs) -> Result<Exit> {
    if args.rounds == 0 || args.seconds == 0 {
        let remedy = "give --rounds and --seconds at least 1";
        return Err(CommandFailure::new(Exit::Unclear, "nothing to measure", remedy).into());
    }
    let outcome = if args.table { table::run(&args).await } else { single::run(&args).await };
    match outcome {
        Ok(true) => Ok(Exit::Done),
        Ok(false) => Ok(Exit::Negative),
        Err(error) => Err(error.context(CommandFailure::new(
            Exit::Unclear,
            "the bench could not run",
            "see `floodgate doctor`; for a running server check --url and --internal-url",
        ))),
    }
}
