//! The flags of the bench.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;

const EXAMPLES: &str = "Examples:
  floodgate-bench --duration 10                    own server, as fast as 64 connections go
  floodgate-bench --rate 5000 --duration 30        open loop: 5,000 purchases per second
  floodgate-bench --stock 100 --requests 50000     a sale that sells out
  floodgate-bench --url http://127.0.0.1:8080 --internal-url http://127.0.0.1:9090
  floodgate-bench --table                          the performance goals, as `make bench`
  floodgate-bench --table --only S3,S8             some of them

Exit code: 0 = the audit holds, 1 = the run is void (audit or counts disagree, or a yardstick
measured nothing), 2 = could not run. A goal below its floor changes nothing here.";

/// Flags of the bench.
#[derive(Debug, Clone, clap::Args)]
#[command(before_help = EXAMPLES)]
pub struct BenchFlags {
    /// Public listener of a running server with auth.mode = "header"; without it an own server is
    /// started and stopped.
    #[arg(long, value_name = "URL", requires = "internal_url", conflicts_with = "table")]
    pub url: Option<String>,
    /// Internal listener of the running server.
    #[arg(long, value_name = "URL", requires = "url")]
    pub internal_url: Option<String>,
    /// File with the admin token of the running server.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub admin_token_file: Option<PathBuf>,
    /// Units on sale.
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000)]
    pub stock: u32,
    /// Stop after this many requests.
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    pub requests: Option<u64>,
    /// Stop after this many seconds; default 10, unless --requests is given.
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// Connections; with --rate the most that are opened.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections: usize,
    /// Requests per second, sent whether or not answers come (open loop).
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Where own servers keep their ledgers, which are removed at the end; default: the system's
    /// directory for temporary files.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Measure the goals next to their yardsticks and print a Markdown table.
    #[arg(long)]
    pub table: bool,
    /// Measure only these goals of the table, such as S3,S8.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(crate::table::goals()))]
    pub only: Vec<String>,
    /// Pairs of measurements for each goal of the table.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Length of one measurement of the table.
    #[arg(long, value_name = "SECONDS", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl BenchFlags {
    pub fn round(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Where own servers keep their files.
    pub fn parent(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(std::env::temp_dir)
    }
}

/// Resolves `http://host:port`; the default port is 80.
pub async fn resolve(url: &str) -> Result<SocketAddr> {
    let authority = url.strip_prefix("http://").context("only http:// addresses are supported")?;
    let authority = authority.split('/').next().unwrap_or_default();
    let host =
        if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
    let mut found = tokio::net::lookup_host(&host).await?;
    found.next().with_context(|| format!("cannot resolve {host}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchFlags,
    }

    #[test]
    fn flags_are_consistent() {
        Command::command().debug_assert();
        let parse = |flags: &[&str]| Command::try_parse_from([&["x"], flags].concat());
        for refused in [
            &["--url", "http://a"][..],
            &["--requests", "1", "--duration", "1"],
            &["--rounds", "0"],
            &["--seconds", "0"],
        ] {
            assert!(parse(refused).is_err(), "{refused:?}");
        }
        let bench = parse(&["--table"]).unwrap().bench;
        assert!(bench.table && bench.rounds == 5 && bench.seconds == 4);
    }

    #[tokio::test]
    async fn only_plain_http_is_resolved() {
        assert_eq!(resolve("http://127.0.0.1:81/").await.unwrap().port(), 81);
        assert!(resolve("https://127.0.0.1").await.is_err());
    }
}
