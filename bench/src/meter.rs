//! The machine, and CPU time and memory of this process, the servers and the machine, read from
//! `/proc`.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use floodgate::cli::doctor::sqlite;
use floodgate::runtime::clock::now_monotonic;
use serde::Serialize;

use crate::stats::{Figures, RoundSample, per_second};

/// Clock ticks per second of `/proc` times (`USER_HZ`). The kernel has reported times in this unit
/// on every architecture for decades.
const TICKS_PER_SECOND: u64 = 100;

/// Timed writes for the minimum cost of one durable commit.
const SYNCS: usize = 100;

/// CPU time and memory of one process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Usage {
    /// User and system time of all threads, and of children that have ended: such a child may be a
    /// generator, or rewrite Redis's append-only file.
    cpu: Duration,
    /// Resident memory in bytes.
    resident: u64,
}

/// A process: its name in the table and its id.
pub type Named = (&'static str, u32);

/// The result of a measurement.
#[derive(Debug, Clone)]
pub struct Metered {
    pub elapsed: Duration,
    /// CPU time of each server; the first is the server under test.
    servers: Vec<(&'static str, Duration)>,
    own_cpu: Duration,
    /// Resident memory of the first server before and after, in bytes.
    pub resident: (u64, u64),
    /// Share of the machine's time that the hypervisor gave to others.
    pub stolen: f64,
    /// Share of it that processes outside the bench used.
    pub others: f64,
    /// Mean batch sizes of the server under test, by component.
    pub batches: Figures,
}

/// What servers, and last this process, have used until now.
fn usages(servers: &[Named]) -> Result<Vec<Usage>> {
    let all = servers.iter().map(|(_, pid)| *pid).chain([std::process::id()]);
    all.map(usage).collect()
}

/// Does `work` and measures it; the first process is the server under test.
pub async fn metered<T>(
    servers: &[Named],
    work: impl Future<Output = Result<T>>,
) -> Result<(T, Metered)> {
    let (begun, before, machine) = (now_monotonic(), usages(servers)?, MachineTime::now());
    let done = work.await?;
    let (elapsed, after) = (now_monotonic().duration_since(begun), usages(servers)?);
    let both = || before.iter().zip(&after);
    let cpu: Vec<_> = both().map(|(old, new)| new.cpu.saturating_sub(old.cpu)).collect();
    let (stolen, others) = MachineTime::now().taken_since(&machine, cpu.iter().sum());
    let metered = Metered {
        elapsed,
        own_cpu: cpu.last().copied().unwrap_or_default(),
        servers: servers.iter().map(|(name, _)| *name).zip(cpu).collect(),
        resident: both().next().map_or((0, 0), |(old, new)| (old.resident, new.resident)),
        stolen,
        others,
        batches: Figures::new(),
    };
    Ok((done, metered))
}

impl Metered {
    /// Core-microseconds per operation, by server.
    pub fn each(&self, operations: u64) -> Figures {
        self.servers.iter().map(|(name, cpu)| (*name, us_each(*cpu, operations))).collect()
    }

    /// Core-microseconds per operation of the server under test.
    pub fn server_us(&self, operations: u64) -> f64 {
        self.servers.first().map_or(0.0, |(_, cpu)| us_each(*cpu, operations))
    }

    /// Core-microseconds per operation of this process.
    pub fn own_us(&self, operations: u64) -> f64 {
        us_each(self.own_cpu, operations)
    }

    /// Operations per second.
    pub fn rate(&self, operations: u64) -> f64 {
        per_second(operations, self.elapsed)
    }

    /// A sample with `value` as the compared value, and costs per operation.
    pub fn sample(&self, value: f64, operations: u64) -> RoundSample {
        RoundSample {
            value,
            costs: self.each(operations),
            own_us: self.own_us(operations),
            own_cores: self.own_cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9),
            batches: self.batches.clone(),
            incomplete: 0,
        }
    }
}

/// Core-microseconds per operation; 0 without operations.
fn us_each(cpu: Duration, operations: u64) -> f64 {
    if operations == 0 { 0.0 } else { cpu.as_secs_f64() * 1e6 / operations as f64 }
}

fn ticks(number: u64) -> Duration {
    Duration::from_millis(number * 1_000 / TICKS_PER_SECOND)
}

/// Resident memory of a process, in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    Ok(usage(pid)?.resident)
}

pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Memory of all TCP sockets of this network namespace, in bytes.
pub fn socket_bytes() -> Result<u64> {
    let sockets = fs::read_to_string("/proc/net/sockstat").context("no /proc/net/sockstat")?;
    let pages = parse_socket_pages(&sockets).context("unexpected format of sockstat")?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Parses `TCP: inuse 5 orphan 0 tw 0 alloc 7 mem 2`, whose last number are pages.
fn parse_socket_pages(sockets: &str) -> Option<u64> {
    let line = sockets.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    line.rsplit_once(" mem ")?.1.trim().parse().ok()
}

fn usage(pid: u32) -> Result<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    let stat = stat.context("a server process has ended")?;
    parse_usage(&stat).context("unexpected /proc format")
}

/// Parses fields 14 to 17 (`utime`, `stime`, and those of children) and 24 (`rss`, in pages) of
/// proc(5) `stat`, counted from the end of the name, which may contain spaces and parentheses.
fn parse_usage(stat: &str) -> Option<Usage> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let used = fields.by_ref().take(4).sum::<Result<u64, _>>().ok()?;
    let pages = fields.nth(6)?.ok()?;
    Some(Usage { cpu: ticks(used), resident: pages * rustix::param::page_size() as u64 })
}

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

/// CPU time of the whole machine in ticks; the hypervisor gave `stolen` of it to other guests.
#[derive(Debug, Clone, Copy, Default)]
struct MachineTime {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl MachineTime {
    fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|stat| parse_time(&stat)).unwrap_or_default()
    }

    /// Shares (0 to 1) of the time since `earlier`: stolen by the hypervisor, and used by processes
    /// other than `ours`.
    fn taken_since(&self, earlier: &Self, ours: Duration) -> (f64, f64) {
        let all = self.all.saturating_sub(earlier.all);
        let stolen = self.stolen.saturating_sub(earlier.stolen);
        let unused = self.idle.saturating_sub(earlier.idle) + stolen;
        let others = ticks(all.saturating_sub(unused)).saturating_sub(ours);
        let share = |of: Duration| of.as_secs_f64() / ticks(all).as_secs_f64().max(1e-9);
        (share(ticks(stolen)), share(others))
    }
}

/// Parses the first line of proc(5) `stat`: user, nice, system, idle, iowait, irq, softirq, steal.
/// The guest times that follow are already part of the first two.
fn parse_time(stat: &str) -> Option<MachineTime> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let numbers: Vec<u64> = line.take(8).map_while(|number| number.parse().ok()).collect();
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some(MachineTime { all: numbers.iter().sum(), idle, stolen: *numbers.get(7)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_found_behind_an_odd_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 123 45 6 7 20 0 3 0 99 4096 2 8";
        let expected = Usage {
            cpu: Duration::from_millis(1_810),
            resident: 2 * rustix::param::page_size() as u64,
        };
        assert_eq!(parse_usage(stat), Some(expected));
        assert_eq!(parse_usage("7 (x) S 1"), None);
    }

    #[test]
    fn pages_of_sockets_are_found() {
        let text =
            "sockets: used 9\nTCP: inuse 5 orphan 0 tw 0 alloc 7 mem 23\nUDP: inuse 1 mem 4\n";
        assert_eq!(parse_socket_pages(text), Some(23));
        assert_eq!(parse_socket_pages("UDP: inuse 1 mem 4\n"), None);
    }

    #[test]
    fn taken_time_is_a_share() {
        let before = parse_time("cpu  10 0 10 70 0 0 0 10 5 5\ncpu0 1\n").unwrap();
        let after = parse_time("cpu  20 0 20 130 0 0 0 30 9 9\ncpu0 1\n").unwrap();
        let (stolen, others) = after.taken_since(&before, Duration::from_millis(50));
        assert!((stolen - 0.2).abs() < 1e-9 && (others - 0.15).abs() < 1e-9, "{stolen} {others}");
        assert!(parse_time("cpu  1 2 3\n").is_none());
    }

    #[test]
    fn the_model_is_found() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), Some("AMD EPYC"));
        assert_eq!(cpu_model(""), None);
    }
}
