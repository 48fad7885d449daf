use std::time::Duration;

use super::*;

fn open_connection() -> Arc<ConnectionHealth> {
    ConnectionHealth::new(ConnectionPurpose::Hot, Arc::default())
}

#[test]
fn three_consecutive_timeouts_close_the_connection() {
    let health = open_connection();
    for _ in 0..2 {
        health.timed_out(now_monotonic());
        assert_eq!(health.status(), ValueStatus::Usable);
    }
    health.answered();
    for _ in 0..2 {
        health.timed_out(now_monotonic());
        assert!(health.check().is_ok());
    }
    health.timed_out(now_monotonic());
    let why = Error::not_sent("no answer to 3 calls in a row");
    assert_eq!(health.status(), ValueStatus::Expired { proven: true, why });
}

#[test]
fn concurrent_timeouts_count_once() {
    let health = open_connection();
    let started_at = now_monotonic();
    for _ in 0..10 {
        health.timed_out(started_at);
    }
    assert!(health.check().is_ok());
    health.timed_out(now_monotonic() + Duration::from_secs(1));
    health.timed_out(now_monotonic() + Duration::from_secs(1));
    assert!(health.check().is_err());
}

#[test]
fn the_first_close_reason_is_kept() {
    let health = open_connection();
    health.close("the first", false);
    health.close("the second", true);
    assert_eq!(health.check().unwrap_err(), Error::not_sent("the first"));
    assert_eq!(health.refreshes.count(), 1, "the refresh is requested nevertheless");
}
