use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use crate::clock;
use crate::load::cpu::ticks;

/// Writes timed to tell what one durable commit costs at least.
const SYNCS: usize = 100;
/// Bytes of each, a database page.
const PAGE: [u8; 4096] = [0xa5; 4096];

/// Where a table was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    /// Median time of a 4 KiB append with `fdatasync` in the ledger's directory, in microseconds.
    fdatasync_us: u64,
}

impl Machine {
    /// Looks at the machine and at the disk that holds `directory`.
    pub(super) fn look(directory: &Path) -> anyhow::Result<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cores: cores(),
            cpu: cpu_model(&cpu).unwrap_or("unknown").to_owned(),
            kernel: kernel.trim().to_owned(),
            fdatasync_us: fdatasync_us(directory)?,
        })
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        let Self { cores, cpu, kernel, fdatasync_us } = self;
        format!("{cores} cores ({cpu}), Linux {kernel}, fdatasync of 4 KiB {fdatasync_us} µs")
    }
}

/// Cores this process may use.
pub(super) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

fn fdatasync_us(directory: &Path) -> anyhow::Result<u64> {
    let path = directory.join("fdatasync.probe");
    let mut file =
        File::create(&path).with_context(|| format!("cannot write to {}", path.display()))?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begin = clock::now_monotonic();
        file.write_all(&PAGE)?;
        file.sync_data()?;
        times.push(clock::now_monotonic().duration_since(begin));
    }
    fs::remove_file(&path)?;
    times.sort_unstable();
    let median = times.get(SYNCS / 2).copied().unwrap_or_default();
    Ok(u64::try_from(median.as_micros()).unwrap_or(u64::MAX))
}

/// CPU time of the whole machine, of which some was taken by its neighbours.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MachineTime {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl MachineTime {
    pub(super) fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|stat| parse_time(&stat)).unwrap_or_default()
    }

    /// CPU time spent since `earlier`, by anybody.
    pub(super) fn busy_since(&self, earlier: &Self) -> Duration {
        let passed = |later: u64, earlier: u64| later.saturating_sub(earlier);
        let unused = passed(self.idle, earlier.idle) + passed(self.stolen, earlier.stolen);
        ticks(passed(self.all, earlier.all).saturating_sub(unused))
    }

    /// CPU time of all cores since `earlier`, used or not.
    pub(super) fn all_since(&self, earlier: &Self) -> Duration {
        ticks(self.all.saturating_sub(earlier.all))
    }

    /// Share (0 to 1) of the time since `earlier` that the hypervisor gave to others.
    pub(super) fn stolen_since(&self, earlier: &Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        let stolen = self.stolen.saturating_sub(earlier.stolen);
        if all == 0 { 0.0 } else { stolen as f64 / all as f64 }
    }
}

/// First line of proc(5) `stat`: user, nice, system, idle, iowait, irq, softirq, steal; what
/// follows is already part of the first two.
fn parse_time(stat: &str) -> Option<MachineTime> {
    let numbers: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace()
        .take(8)
        .map_while(|number| number.parse().ok())
        .collect();
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some(MachineTime { all: numbers.iter().sum(), idle, stolen: *numbers.get(7)? })
}

/// CPU time of this process's children that have ended and were waited for: fields 16 and 17 of
/// proc(5) `stat`.
pub(super) fn children_cpu() -> Duration {
    let read = || {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace().skip(13);
        let (user, system): (u64, u64) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(ticks(user + system))
    };
    read().unwrap_or_default()
}

/// Core-microseconds each of `operations` cost.
pub(super) fn us_each(cpu: Duration, operations: u64) -> f64 {
    if operations == 0 { 0.0 } else { cpu.as_secs_f64() * 1e6 / operations as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share() {
        let before = parse_time("cpu  10 0 10 70 0 0 0 10 5 5\ncpu0 1\n").unwrap();
        let after = parse_time("cpu  20 0 20 130 0 0 0 30 9 9\ncpu0 1\n").unwrap();
        assert!((after.stolen_since(&before) - 0.2).abs() < 1e-9);
        assert_eq!(after.all_since(&before), Duration::from_secs(1));
        assert_eq!(after.busy_since(&before), Duration::from_millis(200));
        assert!(parse_time("cpu  1 2 3\n").is_none());
    }

    #[test]
    fn the_model_is_found() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), Some("AMD EPYC"));
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn cost_of_nothing_is_nothing() {
        assert!(us_each(Duration::from_secs(1), 0).abs() < f64::EPSILON);
        assert!((us_each(Duration::from_secs(1), 100_000) - 10.0).abs() < 1e-9);
    }
}
