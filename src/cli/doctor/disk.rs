//! Checks of the ledger's directory: existence, write permission, free space, commit latency.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use super::{CheckOutcome, Finding, fail, ok, warn};
use crate::runtime::clock::now_monotonic;

const MIB: u64 = 1024 * 1024;
/// Below this the write-ahead log of a busy sale may not fit: a failure.
const FREE_MIN: u64 = 100 * MIB;
/// Below this: a warning.
const FREE_COMFORTABLE: u64 = 1024 * MIB;

/// Measured writes: enough for a stable median, few enough for a slow disk.
const SYNCS: usize = 20;
/// One page of the ledger.
const BLOCK: [u8; 4096] = [0; 4096];
/// Above this the disk noticeably delays each group commit.
const SYNC_COMFORTABLE: Duration = Duration::from_millis(10);

pub(super) fn examine(directory: &Path) -> Vec<Finding> {
    let check = "ledger directory";
    let shown = directory.display();
    let probe = tempfile::Builder::new().prefix(".floodgate-doctor-").tempfile_in(directory);
    let probe = match probe {
        Ok(probe) => probe,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let remedy = format!("mkdir -p {shown}, or change ledger.url");
            return vec![fail(format!("{shown} does not exist"), remedy).on(check)];
        }
        Err(error) => {
            let detail = format!("cannot write into {shown}: {error}");
            let remedy = "let the user that runs floodgate write there, or change ledger.url";
            return vec![fail(detail, remedy).on(check)];
        }
    };
    vec![
        ok(format!("{shown} is writable")).on(check),
        free_space(directory).on("free space"),
        sync_latency(median_sync(probe.as_file(), SYNCS)).on("commit latency"),
    ]
}

fn free_space(directory: &Path) -> CheckOutcome {
    match rustix::fs::statvfs(directory) {
        Ok(disk) => check_space(disk.f_bavail.saturating_mul(disk.f_frsize)),
        Err(error) => {
            warn(format!("cannot be read: {error}"), "check the ledger's directory with `df`")
        }
    }
}

fn check_space(free: u64) -> CheckOutcome {
    let detail = format!("{} MiB", free / MIB);
    let remedy = "free space on the ledger's disk, or move the ledger (ledger.url)";
    if free < FREE_MIN {
        fail(detail, remedy)
    } else if free < FREE_COMFORTABLE {
        warn(detail, remedy)
    } else {
        ok(detail)
    }
}

fn sync_latency(median: io::Result<Duration>) -> CheckOutcome {
    match median {
        Ok(median) => {
            let detail =
                format!("fdatasync takes {:.2} ms (median)", median.as_secs_f64() * 1000.0);
            if median <= SYNC_COMFORTABLE {
                ok(detail)
            } else {
                let remedy = "buyers wait for it at each commit: use a local SSD for the ledger";
                warn(detail, remedy)
            }
        }
        Err(error) => fail(
            format!("writing and syncing failed: {error}"),
            "check the disk and its file system (dmesg)",
        ),
    }
}

/// Median time of `syncs` appends of one page, each with `fdatasync`.
pub fn median_sync(mut file: &File, syncs: usize) -> io::Result<Duration> {
    let mut taken = Vec::with_capacity(syncs);
    for _ in 0..syncs {
        let start = now_monotonic();
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        taken.push(now_monotonic().saturating_duration_since(start));
    }
    taken.sort_unstable();
    taken.get(syncs / 2).copied().ok_or_else(|| io::Error::other("nothing was measured"))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_writable_directory_passes_and_is_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let findings = examine(directory.path());
        assert_eq!(findings.len(), 3);
        assert_eq!(findings[0].verdict.status, Status::Ok);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_missing_directory_is_the_only_finding() {
        let findings = examine(Path::new("/nowhere/at/all"));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].verdict.remedy.starts_with("mkdir -p /nowhere/at/all"), "{findings:?}");
    }

    #[test]
    fn little_space_and_a_slow_disk_are_reported() {
        assert_eq!(check_space(10 * MIB).status, Status::Fail);
        assert_eq!(check_space(500 * MIB).status, Status::Warn);
        assert_eq!(check_space(5000 * MIB).status, Status::Ok);
        assert_eq!(sync_latency(Ok(Duration::from_millis(1))).status, Status::Ok);
        assert_eq!(sync_latency(Ok(Duration::from_millis(40))).status, Status::Warn);
        assert_eq!(sync_latency(Err(io::Error::other("bad"))).status, Status::Fail);
    }
}
