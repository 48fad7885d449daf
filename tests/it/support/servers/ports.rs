//! Ports that no other test takes, in this process or another.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

/// Below the range from which the kernel picks ports of outgoing connections, so that a server that
/// is down for a while finds its port free.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// A port on 127.0.0.1 that is this test's until it is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked: tests in other processes see that the port is taken, also while nobody listens.
    _claim: File,
}

impl Port {
    /// Claims a port on which nobody listens.
    pub fn claim() -> Self {
        let folder = claims();
        for _ in 0..1_000 {
            let number = fastrand::u16(RANGE);
            let Ok(file) = File::create(folder.join(number.to_string())) else { continue };
            if file.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self { number, _claim: file };
            }
        }
        panic!("no free port in {RANGE:?}: see the claims in {}", folder.display());
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// One folder per user: a claim of another user could not be opened.
fn claims() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("floodgate-test-ports-{user}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_claimed_port_is_not_given_twice() {
    let ports: Vec<_> = (0..50).map(|_| Port::claim()).collect();
    let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ports.len());
}
