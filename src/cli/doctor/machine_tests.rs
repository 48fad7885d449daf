use super::super::Status::{Fail, Warn};
use super::super::tests::{assert_problem, problems};
use super::*;

#[test]
fn too_few_open_files_are_reported_unless_serve_can_raise_them() {
    let found = |soft, hard| vec![open_files(OpenFiles { soft, hard }, 1000)];
    assert_eq!(problems(found(5000, 5000)), []);
    assert_eq!(problems(found(1024, 5000)), []);
    assert_problem(found(1024, 1024), "open files", Warn, "at most 1024 allowed, 1256 needed");
}

#[test]
fn a_clock_behind_the_last_write_or_off_another_clock_is_reported() {
    let now = 1_900_000_000_000;
    let right = vec![clock(now, None), clock(now, Some(now - 5)), skew("redis clock", 900)];
    assert_eq!(problems(right), []);
    let behind = vec![clock(now, Some(now + 3_600_000))];
    assert_problem(behind, "clock", Fail, "is 3600 s behind the ledger's last write");
    assert_problem(vec![clock(0, None)], "clock", Fail, "reads 0 ms since 1970");
    for (ahead_ms, words) in [(2_500, "2.5 s ahead of ours"), (-2_500, "2.5 s behind ours")] {
        assert_problem(vec![skew("redis clock", ahead_ms)], "redis clock", Warn, words);
    }
}

#[test]
fn an_address_passes_if_it_is_free_or_our_server_uses_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap();
    let found = |bind, running| vec![address("public address", "http.bind", bind, running)];
    assert_problem(found(bind, false), "public address", Fail, "no Floodgate answers");
    let internal = vec![address("internal address", "internal.bind", bind, false)];
    assert_problem(internal, "internal address", Fail, "no Floodgate answers");
    assert_eq!(problems(found(bind, true)), []);
    drop(taken);
    assert_eq!(problems(found(bind, false)), []);
    // TEST-NET-1 (RFC 5737): never assigned.
    let foreign = found("192.0.2.1:8080".parse().unwrap(), false);
    assert_problem(foreign, "public address", Fail, "not an address of this machine");
}
