use super::*;

const AFTER_MS: i64 = 5_000;

/// A walk with a checkpoint taken at 20,000, when the oldest entry of the outbox had been
/// accepted at `oldest`.
fn with_checkpoint(oldest: Option<i64>) -> BucketWalk {
    let mut walk = BucketWalk::default();
    assert!(walk.begin(Some(i64::MAX)), "no checkpoint yet");
    walk.take_checkpoint(20_000, oldest, AFTER_MS);
    assert!(!walk.is_lost(0), "the consumers have not passed the checkpoint");
    walk.record_oldest(OldestQueued::Due);
    walk.advance(None, 20_000, AFTER_MS);
    walk
}

#[test]
fn no_request_is_lost_before_the_consumers_passed_the_checkpoint() {
    for watermark in [None, Some(0), Some(20_000)] {
        let mut walk = with_checkpoint(None);
        assert!(!walk.begin(watermark), "the checkpoint stays");
        assert!(!walk.is_lost(0), "{watermark:?}");
    }
    let mut walk = with_checkpoint(None);
    assert!(!walk.begin(Some(20_001)));
    assert!(walk.is_lost(14_999));
    assert!(!walk.is_lost(15_000), "it may not have reached the outbox");
}

#[test]
fn requests_in_the_outbox_at_the_checkpoint_are_not_lost() {
    let mut walk = with_checkpoint(Some(7_000));
    walk.begin(Some(20_001));
    assert!(walk.is_lost(6_999));
    assert!(!walk.is_lost(7_000));
}

#[test]
fn a_walk_submits_after_a_checkpoint_of_its_own() {
    let mut walk = with_checkpoint(None);
    walk.begin(Some(20_001));
    walk.record_oldest(OldestQueued::Due);
    walk.advance(Some(64), 30_000, AFTER_MS);
    assert!(walk.is_due(30_000) && walk.is_lost(14_999), "the same walk, a later page");
    walk.advance(None, 30_500, AFTER_MS);
    assert!(!walk.is_lost(14_999));
    assert!(walk.begin(Some(31_000)), "a new checkpoint, after the submission");
    assert!(!walk.is_lost(14_999));
    walk.take_checkpoint(31_500, None, AFTER_MS);
    walk.record_oldest(OldestQueued::Due);
    walk.advance(None, 31_500, AFTER_MS);
    walk.begin(Some(31_000));
    assert!(!walk.is_lost(14_999), "the consumers have not passed it");
    walk.advance(None, 31_500, AFTER_MS);
}

#[test]
fn a_bucket_without_old_requests_is_walked_after_the_interval() {
    let mut walk = BucketWalk::default();
    walk.begin(None);
    walk.take_checkpoint(20_000, None, AFTER_MS);
    walk.advance(None, 20_000, AFTER_MS);
    assert!(!walk.is_due(24_999) && walk.is_due(25_000));
    assert!(walk.begin(Some(24_000)), "the old checkpoint does not cover later requests");
}

#[test]
fn a_checkpoint_that_the_consumers_do_not_pass_is_reported() {
    let mut walk = with_checkpoint(None);
    assert!(!walk.is_behind(20_000 + BEHIND_AFTER_MS));
    assert!(walk.is_behind(20_001 + BEHIND_AFTER_MS));
    assert!(!BucketWalk::default().is_behind(i64::MAX));
    assert!(!walk.begin(Some(20_000)));
    walk.record_oldest(OldestQueued::Waiting);
    walk.advance(None, 21_000, AFTER_MS);
    assert!(!walk.is_due(25_999) && walk.is_due(26_000));
    assert!(walk.is_behind(20_001 + BEHIND_AFTER_MS), "the checkpoint stays");
}
