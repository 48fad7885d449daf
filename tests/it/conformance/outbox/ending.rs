//! Acknowledging, taking over and reclaiming entries.

use super::*;

/// Claims requests `1..=size` in bucket 0.
async fn claimed(fixture: &Fixture, worker: &str, size: u64) -> Vec<OutboxEntry> {
    fixture.accept_requests(bucket(0), 1..size + 1);
    fixture.claim(bucket(0), worker, 100).await
}

pub async fn acknowledged_entries_are_removed_for_good(fixture: &Fixture) {
    let entries = claimed(fixture, "node/1.1", 4).await;
    fixture.acknowledge(bucket(0), "node/1.1", &entries[..2]).await;
    assert_eq!(requests(&fixture.held(bucket(0), "node/1.1").await), [3, 4]);
    // Entries may be acknowledged in any order and more than once.
    fixture.acknowledge(bucket(0), "node/1.1", &[entries[3].clone()]).await;
    fixture.acknowledge(bucket(0), "node/1.1", &[entries[3].clone(), entries[2].clone()]).await;
    assert_eq!(fixture.held(bucket(0), "node/1.1").await, []);
    assert_eq!(fixture.claim(bucket(0), "node/1.1", 9).await, []);
}

pub async fn an_acknowledgement_removes_its_own_entries_only(fixture: &Fixture) {
    let entries = claimed(fixture, "node/1.1", 4).await;
    fixture.accept_requests(bucket(0), 5..9);
    fixture.claim(bucket(0), "node/1.1", 2).await;
    let late = [entries[0].clone(), entries[2].clone()];
    for _ in 0..3 {
        // Repeated acknowledgements remove no other entry.
        fixture.acknowledge(bucket(0), "node/1.1", &late).await;
        assert_eq!(requests(&fixture.held(bucket(0), "node/1.1").await), [2, 4, 5, 6]);
    }
    assert_eq!(requests(&fixture.claim(bucket(0), "node/1.1", 9).await), [7, 8]);
}

pub async fn many_buckets_are_acknowledged_at_once(fixture: &Fixture) {
    let wanted: Vec<_> = (0..12).map(|no| (bucket(no), 9)).collect();
    for no in 0..12 {
        fixture.accept_requests(bucket(no), 1..4);
    }
    let claimed = fixture.outbox.claim("node/1.1", &wanted).await;
    let ended: Vec<_> =
        claimed.into_iter().map(|(bucket, entries)| (bucket, ids(&entries.unwrap()))).collect();
    assert_eq!(ended.len(), 12);
    for (_, outcome) in fixture.outbox.acknowledge("node/1.1", &ended).await {
        assert_eq!(outcome, Ok(()));
    }
    for no in 0..12 {
        assert_eq!(fixture.held(bucket(no), "node/1.1").await, []);
    }
}

pub async fn a_successor_takes_over_all_that_predecessors_hold(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..7);
    fixture.accept_requests(bucket(1), 11..13);
    fixture.claim(bucket(0), "node/1.1", 2).await;
    fixture.claim(bucket(0), "node/1.2", 2).await;
    fixture.claim(bucket(1), "node/1.1", 9).await;
    let predecessors = ["node/1.1", "node/1.2"].map(str::to_owned);
    for _ in 0..2 {
        // A repeat returns the same entries.
        let buckets = [bucket(0), bucket(1), bucket(2)];
        let taken = fixture.outbox.take_over("node/1.3", &predecessors, &buckets).await;
        let taken: Vec<_> =
            taken.into_iter().map(|(of, taken)| (of, requests(&taken.unwrap()))).collect();
        let expected =
            [(bucket(0), vec![1, 2, 3, 4]), (bucket(1), vec![11, 12]), (bucket(2), vec![])];
        assert_eq!(taken, expected);
    }
    assert_eq!(fixture.held(bucket(0), "node/1.1").await, []);
    let status = fixture.outbox.status(bucket(0)).await.unwrap();
    assert_eq!(status.claimed, [("node/1.3".to_owned(), 4)]);
}

pub async fn reclaimed_entries_are_claimed_first_and_in_order(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..9);
    fixture.claim(bucket(0), "node/1.1", 3).await;
    fixture.claim(bucket(0), "node/2.1", 2).await;
    assert_eq!(fixture.reclaim(bucket(0), "node/2.1").await, 2);
    assert_eq!(fixture.reclaim(bucket(0), "node/1.1").await, 3);
    assert_eq!(fixture.reclaim(bucket(0), "node/1.1").await, 0, "entries are reclaimed once");
    assert_eq!(fixture.reclaim(bucket(0), "unknown/1.1").await, 0);
    assert_eq!(requests(&fixture.claim(bucket(0), "node/3.1", 6).await), [1, 2, 3, 4, 5, 6]);
}

pub async fn a_slow_worker_acknowledges_what_was_reclaimed_from_it(fixture: &Fixture) {
    let entries = claimed(fixture, "slow/1.1", 4).await;
    fixture.accept_requests(bucket(0), 5..7);
    assert_eq!(fixture.reclaim(bucket(0), "slow/1.1").await, 4);
    // The slow worker resumes: the entries it published leave the outbox.
    let ended = [entries[0].clone(), entries[1].clone(), entries[3].clone()];
    fixture.acknowledge(bucket(0), "slow/1.1", &ended).await;
    assert_eq!(requests(&fixture.claim(bucket(0), "other/1.1", 9).await), [3, 5, 6]);
    // The slow worker can claim again.
    fixture.accept_requests(bucket(0), 7..8);
    assert_eq!(requests(&fixture.claim(bucket(0), "slow/1.1", 9).await), [7]);
}

pub async fn a_slow_worker_does_no_harm_to_another_that_has_its_entries(fixture: &Fixture) {
    let entries = claimed(fixture, "slow/1.1", 3).await;
    fixture.reclaim(bucket(0), "slow/1.1").await;
    let other_entries = fixture.claim(bucket(0), "other/1.1", 2).await;
    assert_eq!(requests(&other_entries), [1, 2]);
    fixture.acknowledge(bucket(0), "slow/1.1", &entries).await;
    // The new owner can still acknowledge its entries.
    fixture.acknowledge(bucket(0), "other/1.1", &other_entries).await;
    assert_eq!(fixture.held(bucket(0), "other/1.1").await, []);
    assert_eq!(fixture.claim(bucket(0), "third/1.1", 9).await, []);
}

pub async fn two_rescuers_at_once_lose_nothing_and_double_nothing(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..101);
    let names: Vec<String> = (0..5).map(|no| format!("gone/{no}.1")).collect();
    for name in &names {
        fixture.claim(bucket(0), name, 10).await;
    }
    let other_process = fixture.open_another();
    let (one, two) = futures_util::future::join(
        fixture.outbox.reclaim(bucket(0), &names),
        other_process.reclaim(bucket(0), &names),
    )
    .await;
    assert_eq!(one.unwrap() + two.unwrap(), 50);
    let mut claimed = requests(&fixture.claim(bucket(0), "node/1.1", 1_000).await);
    claimed.sort_unstable();
    assert_eq!(claimed, (1..101).collect::<Vec<_>>());
}

pub async fn nothing_is_left_of_workers_that_are_gone(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..40);
    for no in 0..10 {
        let name = format!("node-{no}/1.1");
        assert_eq!(fixture.claim(bucket(0), &name, 3).await.len(), 3);
        assert_eq!(fixture.reclaim(bucket(0), &name).await, 3);
    }
    let entries = fixture.claim(bucket(0), "node/1.1", 100).await;
    assert_eq!(requests(&entries), (1..40).collect::<Vec<_>>());
    fixture.acknowledge(bucket(0), "node/1.1", &entries).await;
    assert_eq!(fixture.reclaim(bucket(0), "node/1.1").await, 0);
    let status = fixture.outbox.status(bucket(0)).await.unwrap();
    assert!(status.claimed.iter().all(|(_, num)| *num == 0), "{status:?}");
    fixture.assert_empty(bucket(0));
}

pub async fn only_a_worker_with_a_recent_heartbeat_is_alive(fixture: &Fixture) {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let workers: BTreeSet<String> = names(&["a/1.1", "b/1.1", "c/1.1"]);
    assert_eq!(fixture.outbox.silent(&workers).await, workers);
    fixture.outbox.renew_heartbeat("a/1.1", Duration::from_hours(1)).await.unwrap();
    fixture.outbox.renew_heartbeat("b/1.1", Duration::from_millis(1)).await.unwrap();
    let expected: BTreeSet<String> = names(&["b/1.1", "c/1.1"]);
    until("one heartbeat to expire", async || {
        (fixture.open_another().silent(&workers).await == expected).then_some(())
    })
    .await;
    fixture.outbox.renew_heartbeat("a/1.1", Duration::ZERO).await.unwrap();
    until("the other heartbeat to expire", async || {
        (fixture.outbox.silent(&workers).await == workers).then_some(())
    })
    .await;
}
