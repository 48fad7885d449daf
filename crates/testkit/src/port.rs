//! Ports that no other server takes, of this process or of others.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use anyhow::{Result, bail};

/// Below the kernel's range of ephemeral ports, so that no outgoing connection takes the port of a
/// stopped server.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// A port on 127.0.0.1, reserved until drop.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// An abstract socket name in the port's network namespace. It reserves the port among the
    /// servers of all processes, users and temporary directories, even while no server listens.
    _claim: UnixListener,
}

impl Port {
    /// Claims a free port.
    pub fn claim() -> Result<Self> {
        for _ in 0..1_000 {
            let number = fastrand::u16(RANGE);
            let Ok(claim) = UnixListener::bind_addr(&name_of(number)?) else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _claim: claim });
            }
        }
        bail!("no free port in {RANGE:?}");
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

fn name_of(number: u16) -> std::io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("floodgate-test-port-{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_not_given_twice() {
        let ports: Vec<_> = (0..50).map(|_| Port::claim().unwrap()).collect();
        let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ports.len());
        let again = UnixListener::bind_addr(&name_of(numbers[0]).unwrap());
        assert!(again.is_err(), "a second claim of the same port succeeded");
        drop(ports);
        UnixListener::bind_addr(&name_of(numbers[0]).unwrap()).unwrap();
    }
}
