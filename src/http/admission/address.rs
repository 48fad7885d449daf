//! The address that a request counts for.

use std::net::{IpAddr, SocketAddr};

use actix_web::HttpRequest;

/// The peer's address; behind a trusted proxy the last address of `X-Forwarded-For` that is not a
/// trusted proxy's. What stands before it may be invented by the client.
pub fn of(request: &HttpRequest, trusted_proxies: &[IpAddr]) -> Option<IpAddr> {
    let peer = request.peer_addr()?.ip().to_canonical();
    if !trusted_proxies.contains(&peer) {
        return Some(peer);
    }
    let values: Vec<_> = request.headers().get_all("x-forwarded-for").collect();
    for value in values.into_iter().rev() {
        // Bytes: the client's part, before the comma, need not be text.
        for part in value.as_bytes().rsplit(|byte| *byte == b',') {
            // A part that is no address was not written by the proxy.
            let Some(address) = parse(part) else { return Some(peer) };
            if !trusted_proxies.contains(&address.to_canonical()) {
                return Some(address.to_canonical());
            }
        }
    }
    Some(peer)
}

/// Some proxies add the client's port.
fn parse(part: &[u8]) -> Option<IpAddr> {
    let part = str::from_utf8(part.trim_ascii()).ok()?;
    part.parse().ok().or_else(|| part.parse::<SocketAddr>().ok().map(|client| client.ip()))
}

/// An IPv4 address, or the /64 of an IPv6 address: one household or machine.
pub fn network(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() >> 64 << 64,
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn only_a_trusted_proxy_names_another_address() {
        let addr = |text: &str| text.parse::<IpAddr>().unwrap();
        let trusted = [addr("10.0.0.1"), addr("10.0.0.2")];
        let seen = |peer: &str, forwarded: &[&str]| {
            let request = TestRequest::default().peer_addr(peer.parse().unwrap());
            let headers = forwarded.iter().map(|value| {
                ("x-forwarded-for", HeaderValue::from_bytes(value.as_bytes()).unwrap())
            });
            let request = headers.fold(request, TestRequest::append_header);
            of(&request.to_http_request(), &trusted).unwrap()
        };
        assert_eq!(seen("192.0.2.7:1", &["198.51.100.1"]), addr("192.0.2.7"), "not trusted");
        assert_eq!(seen("10.0.0.1:1", &["198.51.100.1"]), addr("198.51.100.1"));
        assert_eq!(seen("[::ffff:10.0.0.1]:1", &["2001:db8::1"]), addr("2001:db8::1"));
        let with_ports = ["198.51.100.1:4711, 10.0.0.2:80", "[2001:db8::1]:4711"];
        assert_eq!(seen("10.0.0.1:1", &with_ports[..1]), addr("198.51.100.1"));
        assert_eq!(seen("10.0.0.1:1", &with_ports[1..]), addr("2001:db8::1"));
        let chain = ["9.9.9.9, 198.51.100.1", "10.0.0.2"];
        assert_eq!(seen("10.0.0.1:1", &chain), addr("198.51.100.1"), "the first is invented");
        assert_eq!(seen("10.0.0.1:1", &["198.51.100.1, x"]), addr("10.0.0.1"));
        assert_eq!(seen("10.0.0.1:1", &["é, 198.51.100.1"]), addr("198.51.100.1"));
        assert_eq!(seen("10.0.0.1:1", &["198.51.100.1, é"]), addr("10.0.0.1"));
        assert_eq!(seen("10.0.0.1:1", &[]), addr("10.0.0.1"));
    }

    #[test]
    fn the_addresses_of_one_ipv6_subnet_count_together() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
