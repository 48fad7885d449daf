//! `floodgate-bench`: how fast, and still correct?
//!
//! Without `--table` it runs one load against one sale. With `--table` it measures the goals next
//! to their yardsticks, on Redis, RabbitMQ and MariaDB servers of its own; where those are not
//! installed, it says which goals were not measured. Everything that sells ends with an audit: a
//! run whose audit fails is void, however fast it was.
//!
//! The servers under test are child processes of this same executable, which contains the engine.

use std::ffi::OsString;
use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use floodgate::cli;
use floodgate::cli::exit::{self, CommandFailure, Exit};
use floodgate::cli::output::Output;

use crate::args::BenchArgs;

mod admin;
mod args;
mod backlog;
mod bare;
mod crowd;
mod decide;
mod http;
mod lab;
mod machine;
mod memory;
mod meter;
mod million;
mod orders;
mod pipeline;
mod private;
mod process;
mod rabbit;
mod raw;
mod relay;
mod restart;
mod rig;
mod single;
mod stats;
mod table;
mod takeover;
mod yardstick;

/// Measures Floodgate: one load against one sale, or the table of goals.
#[derive(Debug, Parser)]
#[command(name = "floodgate-bench", version, args_conflicts_with_subcommands = true)]
struct Bench {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    args: BenchArgs,
}

/// The processes that the bench starts.
#[derive(Debug, Subcommand)]
enum Part {
    /// `floodgate` with these arguments.
    #[command(hide = true)]
    Floodgate {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    #[command(hide = true)]
    Yardstick(yardstick::YardstickArgs),
}

fn main() -> ExitCode {
    let Bench { part, args } = Bench::parse();
    let ended = match part {
        Some(Part::Floodgate { arguments }) => {
            return cli::run([OsString::from("floodgate")].into_iter().chain(arguments)).into();
        }
        Some(Part::Yardstick(args)) => actix_rt::System::new().block_on(yardstick::run(args)),
        None => block_on(run(args)),
    };
    let exit = ended.unwrap_or_else(|error| {
        let error = exit::explained(error);
        Output::new(false).failed(&error);
        Exit::of(&error)
    });
    exit.into()
}

fn block_on(work: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start the event loop")?.block_on(work)
}

async fn run(args: BenchArgs) -> anyhow::Result<Exit> {
    if args.rounds == 0 || args.seconds == 0 {
        let remedy = "give --rounds and --seconds at least 1";
        return Err(CommandFailure::new(Exit::Unclear, "nothing to measure", remedy).into());
    }
    let done = if args.table { table::run(&args).await } else { single::run(&args).await };
    match done {
        Ok(true) => Ok(Exit::Done),
        Ok(false) => Ok(Exit::Negative),
        Err(error) => Err(error.context(CommandFailure::new(
            Exit::Unclear,
            "the bench could not run",
            "see `floodgate doctor`; for a running server check --url and --internal-url",
        ))),
    }
}
