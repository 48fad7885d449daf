//! What a process costs, read from `/proc`.

use std::fs;
use std::io;
use std::time::Duration;

/// Clock ticks per second of `/proc` times. The kernel has reported them to programs in this
/// unit on every architecture for decades (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// CPU time and memory of one process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// User and system time of all threads, ended ones included; in steps of 10 ms.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident: u64,
}

impl Usage {
    /// Usage of the process `pid`.
    ///
    /// # Errors
    /// When the process does not exist, or the system has no Linux `/proc`.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc format");
        let cpu = parse_cpu(&stat).ok_or_else(unreadable)?;
        let resident = parse_resident(&status).ok_or_else(unreadable)?;
        Ok(Self { cpu, resident })
    }

    /// Usage of this process.
    ///
    /// # Errors
    /// When the system has no Linux `/proc`.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// CPU time spent since `earlier`.
    pub fn cpu_since(&self, earlier: &Self) -> Duration {
        self.cpu.saturating_sub(earlier.cpu)
    }
}

/// Fields 14 (`utime`) and 15 (`stime`) of proc(5), counted after the name, which may itself
/// hold spaces and parentheses.
fn parse_cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(ticks(user + system))
}

/// A time of `/proc` in its unit.
pub(crate) fn ticks(number: u64) -> Duration {
    Duration::from_millis(number * 1_000 / TICKS_PER_SECOND)
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_found_behind_an_odd_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 123 45 6 7 20 0 3 0 99 1 2";
        assert_eq!(parse_cpu(stat), Some(Duration::from_millis(1_680)));
        assert_eq!(parse_cpu("7 (x) S 1"), None);
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2_097_152));
        assert_eq!(parse_resident("Name:\tx\n"), None);
    }
}
