//! Checks of this machine: open files, the clock, and free addresses.

use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::time::UNIX_EPOCH;

use super::Check;
use crate::cli::serve::{OpenFiles, open_files_needed};
use crate::config::Settings;
use crate::runtime::clock;

/// 2025-01-01T00:00:00Z: this program is younger.
const CLOCK_MIN_MS: i64 = 1_735_689_600_000;
/// 2100-01-01T00:00:00Z.
const CLOCK_MAX_MS: i64 = 4_102_444_800_000;
/// Tolerated difference between the clock and the file system's timestamps.
const SKEW_MAX_MS: i64 = 60_000;
/// Tolerated difference between two clocks that are synchronized over the network.
const SERVER_SKEW_MAX_MS: u64 = 1_000;

pub(super) fn examine(settings: &Settings, running: bool) -> Vec<Check> {
    let public = || address("public address", "http.bind", settings.http.bind, running);
    let mut checks = vec![
        open_files(OpenFiles::of_this_process(), settings.http.connections_max),
        clock(clock::wall_ms(), last_write_ms(settings)),
        address("internal address", "internal.bind", settings.internal.bind, running),
    ];
    checks.extend(settings.role.sells().then(public));
    checks
}

fn open_files(OpenFiles { soft, hard }: OpenFiles, connections_max: usize) -> Check {
    let needed = open_files_needed(connections_max);
    check! { "open files";
        soft >= needed => Ok "{soft} allowed, {needed} needed";
        hard < needed =>
            Warn "at most {hard} allowed, {needed} needed for http.connections_max = \
                  {connections_max}"
            -> "raise the hard limit (`ulimit -Hn`, LimitNOFILE= in systemd), or lower \
                http.connections_max";
        else => Ok "{soft} allowed; serve raises it to {needed}"
    }
}

fn clock(now_ms: i64, last_write_ms: Option<i64>) -> Check {
    let remedy = "set the clock (chronyd or systemd-timesyncd): sales open and close by it";
    let behind_ms = last_write_ms.map_or(0, |written_ms| written_ms - now_ms);
    let behind_s = behind_ms / 1000;
    check! { "clock";
        !(CLOCK_MIN_MS..CLOCK_MAX_MS).contains(&now_ms) =>
            Fail "reads {now_ms} ms since 1970" -> "{remedy}";
        behind_ms > SKEW_MAX_MS =>
            Fail "is {behind_s} s behind the ledger's last write" -> "{remedy}";
        else => Ok "plausible"
    }
}

/// Checks a server's clock against ours: reclaiming goes by time, and operators compare logs.
pub(super) fn skew(name: &'static str, ahead_ms: i64) -> Check {
    let seconds = (ahead_ms as f64 / 1000.0).abs();
    let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
    check! { name;
        ahead_ms.unsigned_abs() > SERVER_SKEW_MAX_MS =>
            Warn "is {seconds:.1} s {direction} ours"
            -> "set both clocks by the same source: start chronyd or systemd-timesyncd on both \
                machines";
        else => Ok "as ours"
    }
}

fn last_write_ms(settings: &Settings) -> Option<i64> {
    let modified = std::fs::metadata(settings.ledger.sqlite_path()?).ok()?.modified().ok()?;
    i64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

fn address(name: &'static str, key: &str, bind: SocketAddr, running: bool) -> Check {
    let (ip, port) = (bind.ip(), bind.port());
    let error = TcpListener::bind(bind).err();
    let kind = error.as_ref().map(Error::kind);
    check! { name;
        kind == Some(ErrorKind::AddrInUse) && running =>
            Ok "{bind} is used by the running server";
        kind == Some(ErrorKind::AddrInUse) =>
            Fail "{bind} is in use, and no Floodgate answers at internal.bind"
            -> "see whose it is: `ss -ltnp 'sport = :{port}'`, or change {key}";
        kind == Some(ErrorKind::AddrNotAvailable) =>
            Fail "{ip} is not an address of this machine" -> "see `ip address`, or change {key}";
        kind == Some(ErrorKind::PermissionDenied) =>
            Fail "this user may not listen on port {port}" -> "use a port from 1024 up in {key}";
        let Some(error) = error => Fail "{bind}: {error}" -> "change {key}";
        else => Ok "{bind} is free"
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
