//! Claiming entries for a worker.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::*;

pub async fn an_empty_outbox_has_nothing_to_claim(fixture: &Fixture) {
    assert_eq!(fixture.held(bucket(0), "node/1.1").await, []);
    let claimed = fixture.outbox.claim("node/1.1", &[(bucket(0), 9), (bucket(1), 9)]).await;
    assert!(claimed.is_empty(), "empty buckets are omitted: {claimed:?}");
    assert!(fixture.outbox.claim("node/1.1", &[]).await.is_empty());
    assert!(fixture.outbox.acknowledge("node/1.1", &[(bucket(0), Vec::new())]).await.is_empty());
}

pub async fn entries_are_claimed_oldest_first_and_stay_claimed(fixture: &Fixture) {
    let bodies = [body(&[1, 2, 3]), body(&[4]), body(&[5, 6])];
    fixture.accept(bucket(0), &bodies);
    let first = fixture.claim(bucket(0), "node/1.1", 2).await;
    let bytes =
        |entries: &[OutboxEntry]| entries.iter().map(|entry| entry.bytes.to_vec()).collect();
    let claimed: Vec<Vec<u8>> = bytes(&first);
    assert_eq!(claimed, bodies[..2]);
    let second = fixture.claim(bucket(0), "node/1.1", 2).await;
    let claimed: Vec<Vec<u8>> = bytes(&second);
    assert_eq!(claimed, bodies[2..]);
    assert_eq!(fixture.claim(bucket(0), "node/1.1", 2).await, [], "entries are claimed only once");
    let held = fixture.held(bucket(0), "node/1.1").await;
    assert_eq!(held, [first, second].concat(), "entries are returned in the order of claiming");
    assert_eq!(fixture.claim(bucket(0), "node/1.1", 0).await, []);
}

pub async fn thousands_of_entries_wait_and_are_all_claimed_in_order(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..5_001);
    let status = fixture.outbox.status(bucket(0)).await.unwrap();
    assert_eq!(status.num_waiting, 5_000);
    let mut claimed = Vec::new();
    loop {
        let entries = fixture.claim(bucket(0), "node/1.1", 512).await;
        if entries.is_empty() {
            break;
        }
        claimed.extend(requests(&entries));
        acknowledge(fixture.outbox.as_ref(), bucket(0), "node/1.1", &entries).await.unwrap();
    }
    assert_eq!(claimed, (1..5_001).collect::<Vec<_>>());
}

pub async fn many_buckets_are_claimed_at_once(fixture: &Fixture) {
    for no in 0..20_u16 {
        let from = u64::from(no) * 100 + 1;
        fixture.accept_requests(bucket(no), from..from + u64::from(no % 4));
    }
    let wanted: Vec<_> = (0..20).map(|no| (bucket(no), 2)).collect();
    let mut claimed = BTreeSet::new();
    for _ in 0..3 {
        for (of, entries) in fixture.outbox.claim("node/1.1", &wanted).await {
            let entries = entries.unwrap();
            assert!((1..=2).contains(&entries.len()));
            for no in requests(&entries) {
                assert_eq!(
                    no / 100,
                    u64::from(of.bucket.0),
                    "each entry is returned for its own bucket"
                );
                assert!(claimed.insert(no));
            }
        }
    }
    assert_eq!(claimed.len(), 5 * (1 + 2 + 3));
}

pub async fn two_workers_never_claim_the_same_entry(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..8);
    let first = fixture.claim(bucket(0), "node/1.1", 3).await;
    let other_process = fixture.open_another();
    let second = claim(other_process.as_ref(), bucket(0), "other/1.1", 3).await.unwrap();
    assert_eq!((requests(&first), requests(&second)), (vec![1, 2, 3], vec![4, 5, 6]));
    assert_eq!(fixture.held(bucket(0), "node/1.1").await, first);
    assert_eq!(fixture.held(bucket(0), "other/1.1").await, second);
}

pub async fn a_call_claims_no_more_than_it_may(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..1_031);
    assert_eq!(fixture.claim(bucket(0), "node/1.1", 5_000).await.len(), 1_000);
    assert_eq!(fixture.claim(bucket(0), "node/1.1", 5_000).await.len(), 30);
}

pub async fn many_workers_at_once_share_the_outbox(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..401);
    let processes: Vec<_> = (0..4).map(|_| fixture.open_another()).collect();
    let drain = |index: usize| {
        let (outbox, worker) = (processes[index % 4].as_ref(), format!("node/{index}.1"));
        async move {
            let mut taken = Vec::new();
            loop {
                let claimed = claim(outbox, bucket(0), &worker, 7).await.unwrap();
                if claimed.is_empty() {
                    return taken;
                }
                taken.extend(requests(&claimed));
                acknowledge(outbox, bucket(0), &worker, &claimed).await.unwrap();
            }
        }
    };
    let mut taken: Vec<u64> = join_all((0..8).map(drain)).await.concat();
    taken.sort_unstable();
    assert_eq!(taken, (1..401).collect::<Vec<_>>(), "each entry is claimed once");
}
