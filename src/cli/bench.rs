//! `floodgate bench`: runs the program `floodgate-bench`, which stands beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use clap::Args;

use super::common::Common;
use super::exit::{CommandFailure, Exit};

const PROGRAM: &str = "floodgate-bench";

const EXAMPLES: &str = "\
Examples:
  floodgate bench                              own server, as fast as 64 connections go
  floodgate bench --rate 5000 --duration 30    open loop: 5,000 purchases per second
  floodgate bench --table --only S3,S8         some of the performance goals
  floodgate bench -- --help                    every flag
";

/// Load against a sale, measured and audited: 0 = the audit holds, 1 = void, 2 = could not run
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct BenchArgs {
    /// Flags of `floodgate-bench`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

/// Becomes `floodgate-bench`; returns only if that program cannot be run.
pub fn run(args: &BenchArgs, common: &Common) -> anyhow::Result<Exit> {
    if common.config.is_some() || !common.set.is_empty() {
        let remedy = "its flags set what it measures: floodgate bench -- --help";
        let problem = "the bench takes neither --config nor --set";
        return Err(CommandFailure::unclear(problem, remedy).into());
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let program = own.with_file_name(PROGRAM);
    let json = common.json.then_some("--json");
    let error = Command::new(&program).args(&args.flags).args(json).exec();
    let remedy = format!(
        "build it from the source with `cargo build --release -p {PROGRAM}`, and put it beside \
         {}",
        own.display()
    );
    let problem = format!("cannot run {}: {error}", program.display());
    Err(CommandFailure::unclear(problem, remedy).into())
}
