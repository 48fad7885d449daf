use std::fs::{self, File};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use floodgate::cli::doctor::sqlite;
use serde::Serialize;

/// Timed writes for the minimum cost of one durable commit.
const SYNCS: usize = 100;

/// The machine on which a table was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    /// Median time of a 4 KiB append with `fdatasync` in the ledger's directory, in microseconds.
    fdatasync_us: u64,
}

impl Machine {
    /// Inspects the machine and the disk of `directory`.
    pub fn inspect(directory: &Path) -> Result<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let path = directory.join("fdatasync.probe");
        let file =
            File::create(&path).with_context(|| format!("cannot write to {}", path.display()))?;
        let fdatasync = sqlite::median_sync(&file, SYNCS)?;
        fs::remove_file(&path)?;
        Ok(Self {
            cores: cores(),
            cpu: cpu_model(&cpu).unwrap_or("unknown").to_owned(),
            kernel: kernel.trim().to_owned(),
            fdatasync_us: u64::try_from(fdatasync.as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// One line of text.
    pub fn summary(&self) -> String {
        let Self { cores, cpu, kernel, fdatasync_us } = self;
        format!("{cores} cores ({cpu}), Linux {kernel}, fdatasync of 4 KiB {fdatasync_us} µs")
    }
}

/// CPU cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), Some("AMD EPYC"));
        assert_eq!(cpu_model(""), None);
    }
}
