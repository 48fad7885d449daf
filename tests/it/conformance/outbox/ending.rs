//! Acknowledged, taken over, reclaimed.

use super::*;

/// Claims requests `1..=size` in bucket 0.
async fn claimed(ground: &Ground, worker: &str, size: u64) -> Vec<OutboxEntry> {
    ground.accept_requests(bucket(0), 1..size + 1);
    ground.claim(bucket(0), worker, 100).await
}

pub async fn what_was_acknowledged_leaves_for_good(ground: &Ground) {
    let entries = claimed(ground, "node/1.1", 4).await;
    ground.acknowledge(bucket(0), "node/1.1", &entries[..2]).await;
    assert_eq!(requests(&ground.held(bucket(0), "node/1.1").await), [3, 4]);
    // From the middle and from the end, in any order.
    ground.acknowledge(bucket(0), "node/1.1", &[entries[3].clone()]).await;
    ground.acknowledge(bucket(0), "node/1.1", &[entries[3].clone(), entries[2].clone()]).await;
    assert_eq!(ground.held(bucket(0), "node/1.1").await, []);
    assert_eq!(ground.claim(bucket(0), "node/1.1", 9).await, []);
    assert_eq!(ground.dead(bucket(0)).await, []);
}

pub async fn an_acknowledgement_removes_its_own_entries_only(ground: &Ground) {
    let entries = claimed(ground, "node/1.1", 4).await;
    ground.accept_requests(bucket(0), 5..9);
    ground.claim(bucket(0), "node/1.1", 2).await;
    let late = [entries[0].clone(), entries[2].clone()];
    for _ in 0..3 {
        // Repeats, also late ones, remove nothing else.
        ground.acknowledge(bucket(0), "node/1.1", &late).await;
        assert_eq!(requests(&ground.held(bucket(0), "node/1.1").await), [2, 4, 5, 6]);
    }
    assert_eq!(requests(&ground.claim(bucket(0), "node/1.1", 9).await), [7, 8]);
}

pub async fn a_dead_letter_replaces_its_entry(ground: &Ground) {
    let entries = claimed(ground, "node/1.1", 4).await;
    let ended = [published(&entries[0]), given_up(&entries[2], "unreadable")];
    ground.end(bucket(0), "node/1.1", &ended).await;
    assert_eq!(requests(&ground.held(bucket(0), "node/1.1").await), [2, 4]);
    let dead = ground.dead(bucket(0)).await;
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0].bytes[..], dead[0].reason.as_str()), (&body(&[3])[..], "unreadable"));
    ground.end(bucket(0), "node/1.1", &ended).await;
    assert_eq!(ground.dead(bucket(0)).await.len(), 1, "a repeat writes no second letter");
}

pub async fn many_buckets_are_acknowledged_at_once(ground: &Ground) {
    let wanted: Vec<_> = (0..12).map(|no| (bucket(no), 9)).collect();
    for no in 0..12 {
        ground.accept_requests(bucket(no), 1..4);
    }
    let claimed = ground.outbox.claim("node/1.1", &wanted).await;
    let ended: Vec<(BucketKey, Vec<EndedEntry>)> = claimed
        .into_iter()
        .map(|(bucket, entries)| (bucket, entries.unwrap().iter().map(published).collect()))
        .collect();
    assert_eq!(ended.len(), 12);
    for (_, outcome) in ground.outbox.acknowledge("node/1.1", &ended).await {
        assert_eq!(outcome, Ok(()));
    }
    for no in 0..12 {
        assert_eq!(ground.held(bucket(no), "node/1.1").await, []);
    }
}

pub async fn a_successor_takes_over_all_that_predecessors_hold(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..7);
    ground.accept_requests(bucket(1), 11..13);
    ground.claim(bucket(0), "node/1.1", 2).await;
    ground.claim(bucket(0), "node/1.2", 2).await;
    ground.claim(bucket(1), "node/1.1", 9).await;
    let predecessors = ["node/1.1", "node/1.2"].map(str::to_owned);
    for _ in 0..2 {
        // A repeat tells the same.
        let buckets = [bucket(0), bucket(1), bucket(2)];
        let taken = ground.outbox.take_over("node/1.3", &predecessors, &buckets).await;
        let taken: Vec<_> =
            taken.into_iter().map(|(of, taken)| (of, requests(&taken.unwrap()))).collect();
        let expected =
            [(bucket(0), vec![1, 2, 3, 4]), (bucket(1), vec![11, 12]), (bucket(2), vec![])];
        assert_eq!(taken, expected);
    }
    assert_eq!(ground.held(bucket(0), "node/1.1").await, []);
    let standing = ground.outbox.standing(bucket(0)).await.unwrap();
    assert_eq!(standing.in_hand, [("node/1.3".to_owned(), 4)]);
}

pub async fn what_was_reclaimed_comes_first_and_in_order(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..9);
    ground.claim(bucket(0), "node/1.1", 3).await;
    ground.claim(bucket(0), "node/2.1", 2).await;
    assert_eq!(ground.reclaim(bucket(0), "node/2.1").await, 2);
    assert_eq!(ground.reclaim(bucket(0), "node/1.1").await, 3);
    assert_eq!(ground.reclaim(bucket(0), "node/1.1").await, 0, "once");
    assert_eq!(ground.reclaim(bucket(0), "nobody/1.1").await, 0);
    assert_eq!(requests(&ground.claim(bucket(0), "node/3.1", 6).await), [1, 2, 3, 4, 5, 6]);
}

pub async fn a_slow_worker_acknowledges_what_was_reclaimed_from_it(ground: &Ground) {
    let entries = claimed(ground, "slow/1.1", 4).await;
    ground.accept_requests(bucket(0), 5..7);
    assert_eq!(ground.reclaim(bucket(0), "slow/1.1").await, 4);
    // It wakes up: what it published waits for nobody any more.
    let ended = [published(&entries[0]), given_up(&entries[1], "why"), published(&entries[3])];
    ground.end(bucket(0), "slow/1.1", &ended).await;
    assert_eq!(requests(&ground.claim(bucket(0), "other/1.1", 9).await), [3, 5, 6]);
    assert_eq!(ground.dead(bucket(0)).await.len(), 1);
    // It goes on as ever.
    ground.accept_requests(bucket(0), 7..8);
    assert_eq!(requests(&ground.claim(bucket(0), "slow/1.1", 9).await), [7]);
}

pub async fn a_slow_worker_does_no_harm_to_another_that_has_its_entries(ground: &Ground) {
    let entries = claimed(ground, "slow/1.1", 3).await;
    ground.reclaim(bucket(0), "slow/1.1").await;
    let others = ground.claim(bucket(0), "other/1.1", 2).await;
    assert_eq!(requests(&others), [1, 2]);
    ground.end(bucket(0), "slow/1.1", &[given_up(&entries[2], "why")]).await;
    assert_eq!(ground.dead(bucket(0)).await.len(), 1, "it waited in the outbox");
    ground.acknowledge(bucket(0), "slow/1.1", &entries).await;
    // Whether the other one still has them is the other one's affair: it can acknowledge them.
    ground.acknowledge(bucket(0), "other/1.1", &others).await;
    assert_eq!(ground.held(bucket(0), "other/1.1").await, []);
    assert_eq!(ground.claim(bucket(0), "third/1.1", 9).await, []);
}

pub async fn two_rescuers_at_once_lose_nothing_and_double_nothing(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..101);
    let names: Vec<String> = (0..5).map(|no| format!("gone/{no}.1")).collect();
    for name in &names {
        ground.claim(bucket(0), name, 10).await;
    }
    let elsewhere = ground.elsewhere();
    let (one, two) = futures_util::future::join(
        ground.outbox.reclaim(bucket(0), &names),
        elsewhere.reclaim(bucket(0), &names),
    )
    .await;
    assert_eq!(one.unwrap() + two.unwrap(), 50);
    let mut claimed = requests(&ground.claim(bucket(0), "node/1.1", 1_000).await);
    claimed.sort_unstable();
    assert_eq!(claimed, (1..101).collect::<Vec<_>>());
}

pub async fn nothing_is_left_of_workers_that_are_gone(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..40);
    for no in 0..10 {
        let name = format!("node-{no}/1.1");
        assert_eq!(ground.claim(bucket(0), &name, 3).await.len(), 3);
        assert_eq!(ground.reclaim(bucket(0), &name).await, 3);
    }
    let entries = ground.claim(bucket(0), "node/1.1", 100).await;
    assert_eq!(requests(&entries), (1..40).collect::<Vec<_>>());
    ground.acknowledge(bucket(0), "node/1.1", &entries).await;
    assert_eq!(ground.reclaim(bucket(0), "node/1.1").await, 0);
    let standing = ground.outbox.standing(bucket(0)).await.unwrap();
    assert!(standing.in_hand.iter().all(|(_, num)| *num == 0), "{standing:?}");
    ground.nothing_is_left(bucket(0));
}

pub async fn only_who_announced_itself_lately_is_not_silent(ground: &Ground) {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let asked: BTreeSet<String> = names(&["a/1.1", "b/1.1", "c/1.1"]);
    assert_eq!(ground.outbox.silent(&asked).await, asked);
    ground.outbox.announce("a/1.1", Duration::from_hours(1)).await.unwrap();
    ground.outbox.announce("b/1.1", Duration::from_millis(1)).await.unwrap();
    let expected: BTreeSet<String> = names(&["b/1.1", "c/1.1"]);
    until("the end of a heartbeat", async || {
        (ground.elsewhere().silent(&asked).await == expected).then_some(())
    })
    .await;
    ground.outbox.announce("a/1.1", Duration::ZERO).await.unwrap();
    until("the end of the other", async || {
        (ground.outbox.silent(&asked).await == asked).then_some(())
    })
    .await;
}

pub async fn claims_are_found_although_their_register_was_deleted(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..6);
    ground.claim(bucket(0), "gone/1.1", 3).await;
    ground.cmd::<i64>("DEL", &ground.keys(bucket(0)).claimants(), &[]);
    until("the claimant", async || {
        ground.outbox.restore_claimants().await.unwrap();
        let standing = ground.outbox.standing(bucket(0)).await.unwrap();
        (standing.in_hand == [("gone/1.1".to_owned(), 3)]).then_some(())
    })
    .await;
    assert_eq!(ground.reclaim(bucket(0), "gone/1.1").await, 3);
    assert_eq!(requests(&ground.claim(bucket(0), "node/1.1", 9).await), [1, 2, 3, 4, 5]);
}
