//! From the line into a hand.

use std::collections::BTreeSet;

use floodgate::outbox::Hand;
use futures_util::future::join_all;

use super::*;

pub async fn an_empty_line_has_nothing_to_claim(ground: &Ground) {
    let worker = worker("node/1", 1);
    let empty = Hand { bucket: bucket(0), entries: Vec::new() };
    assert_eq!(ground.hand(bucket(0), &worker).await, empty);
    let claimed = ground.outbox.claim(&worker, &[(bucket(0), 9), (bucket(1), 9)]).await;
    assert!(claimed.is_empty(), "buckets with nothing are left out: {claimed:?}");
    assert!(ground.outbox.claim(&worker, &[]).await.is_empty());
    ground.report(&worker, empty, Vec::new()).await.unwrap();
}

pub async fn entries_are_claimed_oldest_first_and_stay_in_hand(ground: &Ground) {
    let worker = worker("node/1", 1);
    let bodies = [body(&[1, 2, 3]), body(&[4]), body(&[5, 6])];
    ground.accept(bucket(0), &bodies);
    assert_eq!(ground.hand(bucket(0), &worker).await.entries, [], "nothing is claimed by looking");
    let first = ground.claim(bucket(0), &worker, 2).await;
    assert_eq!(
        first.iter().map(|entry| &entry.bytes).collect::<Vec<_>>(),
        [&bodies[0], &bodies[1]]
    );
    assert_eq!(attempts(&first), [0, 0]);
    let second = ground.claim(bucket(0), &worker, 2).await;
    assert_eq!(second.iter().map(|entry| &entry.bytes).collect::<Vec<_>>(), [&bodies[2]]);
    assert_eq!(ground.claim(bucket(0), &worker, 2).await, [], "only new ones");
    let hand = ground.hand(bucket(0), &worker).await;
    assert_eq!(hand.entries, [first, second].concat(), "in the order of claiming");
    assert_eq!(ground.claim(bucket(0), &worker, 0).await, []);
}

pub async fn a_bucket_that_was_not_begun_is_begun_by_claiming(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..6);
    let first = ground.claim(bucket(0), &worker("node/1", 1), 2).await;
    assert_eq!(requests(&first), [1, 2]);
    // The successor's first claim shows what was left to it, too.
    let successor = worker("node/1", 2);
    assert_eq!(requests(&ground.claim(bucket(0), &successor, 1).await), [1, 2, 3]);
    assert_eq!(requests(&ground.claim(bucket(0), &successor, 9).await), [4, 5]);
    assert_eq!(requests(&ground.hand(bucket(0), &successor).await.entries), [1, 2, 3, 4, 5]);
}

pub async fn many_buckets_are_claimed_at_once(ground: &Ground) {
    let worker = worker("node/1", 1);
    for no in 0..20_u16 {
        let from = u64::from(no) * 100 + 1;
        ground.accept_requests(bucket(no), from..from + u64::from(no % 4));
    }
    let wanted: Vec<_> = (0..20).map(|no| (bucket(no), 2)).collect();
    let mut claimed = BTreeSet::new();
    for _ in 0..3 {
        for (of, entries) in ground.outbox.claim(&worker, &wanted).await {
            let entries = entries.unwrap();
            assert!((1..=2).contains(&entries.len()));
            for no in requests(&entries) {
                assert_eq!(no / 100, u64::from(of.bucket.0), "each from its own bucket");
                assert!(claimed.insert(no));
            }
        }
    }
    assert_eq!(claimed.len(), 5 * (1 + 2 + 3));
}

pub async fn two_workers_never_hold_the_same_entry(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..8);
    let (one, two) = (worker("node/1", 1), worker("other/1", 1));
    let first = ground.claim(bucket(0), &one, 3).await;
    let elsewhere = ground.elsewhere();
    let second = claim(elsewhere.as_ref(), bucket(0), &two, 3).await.unwrap();
    assert_eq!((requests(&first), requests(&second)), (vec![1, 2, 3], vec![4, 5, 6]));
    assert_eq!(ground.hand(bucket(0), &one).await.entries, first);
    assert_eq!(elsewhere.in_hand(bucket(0), &two).await.unwrap().entries, second);
    // A report on what another has in hand fits nothing.
    let others = Hand { bucket: bucket(0), entries: second };
    ground.report(&one, others, vec![Fate::Published; 3]).await.unwrap_err();
    assert_eq!(elsewhere.in_hand(bucket(0), &two).await.unwrap().entries.len(), 3);
}

pub async fn a_hand_holds_no_more_than_it_may(ground: &Ground) {
    let worker = worker("node/1", 1);
    ground.accept(bucket(0), &vec![body(&[1]); 1_030]);
    assert_eq!(ground.claim(bucket(0), &worker, 900).await.len(), 900);
    assert_eq!(ground.claim(bucket(0), &worker, 900).await.len(), 100);
    assert_eq!(ground.claim(bucket(0), &worker, 900).await.len(), 0);
    let hand = ground.hand(bucket(0), &worker).await;
    let mut fates = vec![Fate::Failed; 1_000];
    fates[999] = Fate::Published;
    ground.report(&worker, hand, fates).await.unwrap();
    assert_eq!(ground.claim(bucket(0), &worker, 900).await.len(), 1);
    let hand = ground.hand(bucket(0), &worker).await;
    ground.report(&worker, hand, vec![Fate::Published; 1_000]).await.unwrap();
    assert_eq!(ground.claim(bucket(0), &worker, 900).await.len(), 29);
}

pub async fn many_workers_at_once_share_the_line(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..401);
    let processes: Vec<_> = (0..4).map(|_| ground.elsewhere()).collect();
    let take = |place: usize| {
        let (outbox, worker) = (&processes[place % 4], worker(&format!("node/{place}"), 1));
        async move {
            let mut taken = Vec::new();
            loop {
                let claimed = claim(outbox.as_ref(), bucket(0), &worker, 7).await.unwrap();
                if claimed.is_empty() {
                    return taken;
                }
                taken.extend(requests(&claimed));
                let fates = vec![Fate::Published; claimed.len()];
                let hand = Hand { bucket: bucket(0), entries: claimed };
                report(outbox.as_ref(), &worker, hand, fates).await.unwrap();
            }
        }
    };
    let mut taken: Vec<u64> = join_all((0..8).map(take)).await.concat();
    taken.sort_unstable();
    assert_eq!(taken, (1..401).collect::<Vec<_>>(), "each once");
}
