//! Checks of the listeners: whether their addresses are free, and whether they are exposed.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use super::{CheckOutcome, Finding, fail, ok, warn};
use crate::config::{AuthMode, Settings};

pub(super) fn examine(settings: &Settings, running: bool) -> Vec<Finding> {
    vec![
        address("http.bind", settings.http.bind, running).on("public address"),
        address("internal.bind", settings.internal.bind, running).on("internal address"),
        exposure(settings).on("exposure"),
    ]
}

fn address(key: &str, bind: SocketAddr, running: bool) -> CheckOutcome {
    match TcpListener::bind(bind) {
        Ok(_closed_at_once) => ok(format!("{bind} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && running => {
            ok(format!("{bind} is used by the running server"))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => fail(
            format!("{bind} is used by another program"),
            format!("find it with `ss -ltnp 'sport = :{}'`, or change {key}", bind.port()),
        ),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => fail(
            format!("{} is not an address of this machine", bind.ip()),
            format!("see `ip address`, or change {key}"),
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => fail(
            format!("this user may not listen on port {}", bind.port()),
            format!("use a port from 1024 up in {key}"),
        ),
        Err(error) => fail(format!("{bind}: {error}"), format!("change {key}")),
    }
}

/// Warns of exposure that is allowed; forbidden exposure is a fault of the configuration.
fn exposure(settings: &Settings) -> CheckOutcome {
    let open: Vec<String> = [("public", settings.http.bind), ("internal", settings.internal.bind)]
        .iter()
        .filter(|(_, bind)| !bind.ip().is_loopback())
        .map(|(name, bind)| format!("{name} {bind}"))
        .collect();
    if !open.is_empty() {
        warn(
            format!("reachable from other machines without TLS: {}", open.join(", ")),
            "let only a proxy that speaks TLS, and the operators' network, reach them",
        )
    } else if settings.auth.mode == AuthMode::Header {
        warn(
            "loopback only; X-Buyer-Id is not verified",
            "for real buyers set auth.mode = \"jwt\" and auth.jwt_secret_file",
        )
    } else {
        ok("loopback only")
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_used_port_passes_only_when_our_server_uses_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let bind = taken.local_addr().unwrap();
        let status = |running| address("http.bind", bind, running).status;
        assert_eq!(status(false), Status::Fail);
        assert_eq!(status(true), Status::Ok);
        drop(taken);
        assert_eq!(status(false), Status::Ok);
    }

    #[test]
    fn an_address_of_another_machine_fails() {
        // TEST-NET-1 (RFC 5737): never assigned.
        let bind = "192.0.2.1:8080".parse().unwrap();
        let finding = address("http.bind", bind, false);
        assert!(finding.detail.contains("not an address of this machine"), "{finding:?}");
    }

    #[test]
    fn exposure_depends_on_mode_and_address() {
        let mut settings = Settings::for_test("sqlite://./x.db");
        assert_eq!(exposure(&settings).status, Status::Warn);
        settings.auth.mode = AuthMode::Jwt;
        assert_eq!(exposure(&settings).status, Status::Ok);
        settings.http.bind = "0.0.0.0:80".parse().unwrap();
        assert!(exposure(&settings).detail.contains("public 0.0.0.0:80"));
    }
}
