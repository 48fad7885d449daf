//! Every fault of the proxy, tested against an echo server.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;
use parking_lot::Mutex;

use super::fault_proxy::{FaultProxy, Mode, Way};
use super::wait::until_true;

/// Sends every byte back and records it.
struct Echo {
    addr: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let log = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let log = log.clone();
                std::thread::spawn(move || answer(stream, &log));
            }
        });
        Self { addr, received }
    }

    fn received(&self) -> Vec<u8> {
        self.received.lock().clone()
    }
}

fn answer(mut stream: TcpStream, received: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        received.lock().extend_from_slice(&buffer[..length]);
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

fn proxied_echo() -> (Echo, FaultProxy, TcpStream) {
    let echo = Echo::start();
    let proxy = FaultProxy::start(echo.addr);
    let client = connect(&proxy);
    (echo, proxy, client)
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    let client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

fn round_trip(client: &mut TcpStream, bytes: &[u8]) {
    client.write_all(bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes);
}

fn assert_reset(client: &mut TcpStream) {
    let error = client.read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// Asserts that no byte arrives within 20 ms. That finds a proxy that forwards everything, and a
/// slow machine cannot make it fail.
fn assert_silent(client: &mut TcpStream) {
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let error = client.read(&mut [0; 16]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
}

#[test]
fn everything_passes_and_the_end_is_passed_on() {
    let (_echo, proxy, mut client) = proxied_echo();
    round_trip(&mut client, b"hello");
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    drop(client);
    until_true("the end", || proxy.open() == 0);
}

#[test]
fn held_bytes_arrive_late() {
    for way in [None, Some(Way::ToServer), Some(Way::ToClient)] {
        let (echo, proxy, mut client) = proxied_echo();
        round_trip(&mut client, b"one");
        proxy.set(Mode::Hold(way));
        client.write_all(b"two").unwrap();
        if way == Some(Way::ToClient) {
            until_true("the request", || echo.received() == b"onetwo");
        }
        assert_silent(&mut client);
        proxy.heal();
        let mut answer = [0; 3];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"two");
    }
}

#[test]
fn lost_bytes_never_arrive() {
    for way in [None, Some(Way::ToServer), Some(Way::ToClient)] {
        let (echo, proxy, mut client) = proxied_echo();
        proxy.set(Mode::Lose(way));
        client.write_all(b"lost").unwrap();
        until_true("the loss", || proxy.lost() == 4);
        assert_silent(&mut client);
        proxy.heal();
        round_trip(&mut client, b"found");
        let all: &[u8] = if way == Some(Way::ToClient) { b"lostfound" } else { b"found" };
        assert_eq!(echo.received(), all);
    }
}

#[test]
fn a_reset_ends_open_and_new_connections() {
    let (_echo, proxy, mut client) = proxied_echo();
    round_trip(&mut client, b"hello");
    proxy.set(Mode::Reset);
    assert_reset(&mut client);
    let mut client = connect(&proxy);
    assert_reset(&mut client);
    proxy.heal();
    round_trip(&mut connect(&proxy), b"again");
}

#[test]
fn delay_and_throttle_take_their_time() {
    for mode in [Mode::Delay(Duration::from_millis(30)), Mode::Throttle(100)] {
        let (_echo, proxy, mut client) = proxied_echo();
        proxy.set(mode);
        let begun = now_monotonic();
        round_trip(&mut client, b"12345");
        assert!(begun.elapsed() >= Duration::from_millis(40), "{mode:?}");
    }
}

#[test]
fn a_connection_is_cut_after_so_many_bytes() {
    let (echo, proxy, mut client) = proxied_echo();
    round_trip(&mut client, b"12");
    proxy.cut_after(Way::ToServer, 3);
    client.write_all(b"34").unwrap();
    client.read_exact(&mut [0; 2]).unwrap();
    client.write_all(b"5678").unwrap();
    until_true("the cut", || proxy.cuts() == 1);
    until_true("the last byte", || echo.received() == b"12345");
    round_trip(&mut connect(&proxy), b"once only");

    let mut client = connect(&proxy);
    proxy.cut_after(Way::ToClient, 2);
    client.write_all(b"abcd").unwrap();
    let mut answer = [0; 2];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ab");
    assert_reset(&mut client);
}

#[test]
fn a_request_is_cut_before_the_server_reads_it() {
    let (echo, proxy, mut client) = proxied_echo();
    proxy.cut_request("COMMIT");
    round_trip(&mut client, b"COMM");
    client.write_all(b"IT;").unwrap();
    assert_reset(&mut client);
    assert_eq!(echo.received(), b"COMM");
    assert_eq!(proxy.cuts(), 1);
}

#[test]
fn a_reply_is_cut_after_the_server_read_the_request() {
    let (echo, proxy, mut client) = proxied_echo();
    let mut other = connect(&proxy);
    proxy.cut_reply("COMMIT");
    round_trip(&mut client, b"BEGIN;COM");
    client.write_all(b"MIT;").unwrap();
    assert_reset(&mut client);
    assert_eq!(echo.received(), b"BEGIN;COMMIT;");
    round_trip(&mut other, b"COMMIT");
    assert_eq!(proxy.cuts(), 1);
}

#[test]
fn a_new_target_is_for_new_connections() {
    let (first, proxy, mut client) = proxied_echo();
    let second = Echo::start();
    round_trip(&mut client, b"old");
    proxy.lead_to(second.addr);
    round_trip(&mut client, b"er");
    round_trip(&mut connect(&proxy), b"new");
    assert_eq!((first.received(), second.received()), (b"older".to_vec(), b"new".to_vec()));
}
