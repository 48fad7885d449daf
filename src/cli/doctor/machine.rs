//! Checks of this machine: open files and the clock.

use std::time::UNIX_EPOCH;

use super::{CheckOutcome, Finding, fail, ok, warn};
use crate::cli::open_files::{OpenFiles, needed};
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

pub(super) fn examine(settings: &Settings) -> Vec<Finding> {
    vec![
        open_files(OpenFiles::of_this_process(), settings.http.connections_max).on("open files"),
        clock(clock::wall_ms(), last_write_ms(settings)).on("clock"),
    ]
}

fn open_files(limits: OpenFiles, connections_max: usize) -> CheckOutcome {
    let needed = needed(connections_max);
    if limits.soft >= needed {
        ok(format!("{} allowed, {needed} needed", limits.soft))
    } else if limits.hard >= needed {
        ok(format!("{} allowed; serve raises it to {needed}", limits.soft))
    } else {
        warn(
            format!(
                "at most {} allowed, {needed} needed for http.connections_max = {connections_max}",
                limits.hard
            ),
            "raise the hard limit (`ulimit -Hn`, LimitNOFILE= in systemd), or lower \
             http.connections_max",
        )
    }
}

fn clock(now_ms: i64, last_write_ms: Option<i64>) -> CheckOutcome {
    let remedy = "set the clock (chronyd or systemd-timesyncd): sales open and close by it";
    if !(CLOCK_MIN_MS..CLOCK_MAX_MS).contains(&now_ms) {
        return fail(format!("reads {now_ms} ms since 1970"), remedy);
    }
    match last_write_ms {
        Some(written) if written > now_ms + SKEW_MAX_MS => fail(
            format!("is {} s behind the ledger's last write", (written - now_ms) / 1000),
            remedy,
        ),
        _ => ok("plausible"),
    }
}

/// Checks a server's clock against ours: reclaiming goes by time, and operators compare logs.
pub(super) fn skew(ahead_ms: i64) -> CheckOutcome {
    if ahead_ms.unsigned_abs() <= SERVER_SKEW_MAX_MS {
        return ok("as ours");
    }
    let seconds = (ahead_ms as f64 / 1000.0).abs();
    let direction = if ahead_ms > 0 { "ahead" } else { "behind" };
    warn(
        format!("is {seconds:.1} s {direction} of ours"),
        "set both clocks by the same source: start chronyd or systemd-timesyncd on both machines",
    )
}

fn last_write_ms(settings: &Settings) -> Option<i64> {
    let modified = std::fs::metadata(settings.ledger.sqlite_path()?).ok()?.modified().ok()?;
    i64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn too_few_open_files_are_reported_unless_serve_can_raise_them() {
        let status = |soft, hard| open_files(OpenFiles { soft, hard }, 1000).status;
        assert_eq!(status(5000, 5000), Status::Ok);
        assert_eq!(status(1024, 5000), Status::Ok);
        assert_eq!(status(1024, 1024), Status::Warn);
    }

    #[test]
    fn a_clock_behind_the_last_write_fails() {
        let now = 1_900_000_000_000;
        assert_eq!(clock(now, None).status, Status::Ok);
        assert_eq!(clock(now, Some(now - 5)).status, Status::Ok);
        assert_eq!(clock(now, Some(now + 3_600_000)).status, Status::Fail);
        assert_eq!(clock(0, None).status, Status::Fail);
    }

    #[test]
    fn a_clock_that_differs_by_more_than_a_second_is_reported() {
        assert_eq!(skew(900).status, Status::Ok);
        assert!(skew(2_500).detail.contains("2.5 s ahead"));
        assert!(skew(-2_500).detail.contains("2.5 s behind"));
    }
}
