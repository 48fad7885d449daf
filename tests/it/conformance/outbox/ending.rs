//! Out of a hand: published, given up, given back.

use super::*;

/// Claims requests `1..=size` in bucket 0.
async fn holding(ground: &Ground, worker: &Worker, size: u64) -> Hand {
    ground.accept_requests(bucket(0), 1..size + 1);
    ground.claim(bucket(0), worker, 100).await;
    ground.hand(bucket(0), worker).await
}

pub async fn what_was_published_leaves(ground: &Ground) {
    let worker = worker("node/1", 1);
    let hand = holding(ground, &worker, 4).await;
    let fates = vec![Fate::Published, Fate::Published, Fate::Kept, Fate::Kept];
    ground.report(&worker, hand, fates).await.unwrap();
    let rest = ground.hand(bucket(0), &worker).await;
    assert_eq!((requests(&rest.entries), attempts(&rest.entries)), (vec![3, 4], vec![0, 0]));
    ground.report(&worker, rest, vec![Fate::Published; 2]).await.unwrap();
    assert_eq!(ground.hand(bucket(0), &worker).await.entries, []);
    assert_eq!(ground.dead(bucket(0)).await, []);
    assert_eq!(ground.claim(bucket(0), &worker, 9).await, [], "for good");
}

pub async fn every_fate_is_kept_apart(ground: &Ground) {
    let worker = worker("node/1", 1);
    let hand = holding(ground, &worker, 6).await;
    let fates = vec![
        Fate::Kept,
        Fate::Published,
        Fate::Failed,
        dead_of("unreadable"),
        Fate::Published,
        Fate::Failed,
    ];
    ground.report(&worker, hand, fates).await.unwrap();
    let rest = ground.hand(bucket(0), &worker).await;
    assert_eq!((requests(&rest.entries), attempts(&rest.entries)), (vec![1, 3, 6], vec![0, 1, 1]));
    let dead = ground.dead(bucket(0)).await;
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0].bytes[..], dead[0].reason.as_str()), (&body(&[4])[..], "unreadable"));
    // New ones come behind the old ones, and the next report fits what this process remembers.
    ground.accept_requests(bucket(0), 7..8);
    let new = ground.claim(bucket(0), &worker, 9).await;
    let hand = Hand { bucket: bucket(0), entries: [rest.entries, new].concat() };
    ground.report(&worker, hand, vec![Fate::Published; 4]).await.unwrap();
    assert_eq!(ground.hand(bucket(0), &worker).await.entries, []);
}

pub async fn attempts_survive_lives_and_returns(ground: &Ground) {
    let first = worker("node/1", 1);
    let hand = holding(ground, &first, 2).await;
    ground.report(&first, hand, vec![Fate::Kept, Fate::Failed]).await.unwrap();
    let second = worker("node/1", 2);
    for _ in 0..3 {
        let hand = ground.hand(bucket(0), &second).await;
        ground.report(&second, hand, vec![Fate::Kept, Fate::Failed]).await.unwrap();
    }
    assert_eq!(attempts(&ground.hand(bucket(0), &second).await.entries), [0, 4]);
    assert_eq!(ground.outbox.give_back(bucket(0), "node/1").await, Ok(2));
    let other = worker("other/1", 1);
    assert_eq!(attempts(&ground.claim(bucket(0), &other, 9).await), [0, 4]);
    assert_eq!(attempts(&ground.hand(bucket(0), &other).await.entries), [0, 4], "looking is free");
    assert_eq!(ground.outbox.give_back(bucket(0), "other/1").await, Ok(2));
    assert_eq!(attempts(&ground.claim(bucket(0), &worker("third/1", 1), 9).await), [0, 4]);
}

pub async fn attempts_stop_counting_at_their_end(ground: &Ground) {
    let worker = worker("node/1", 1);
    let hand = holding(ground, &worker, 2).await;
    for _ in 0..260 {
        ground.report(&worker, hand.clone(), vec![Fate::Failed, Fate::Kept]).await.unwrap();
    }
    let entries = ground.hand(bucket(0), &worker).await.entries;
    assert!(entries[0].attempts >= 255, "{}", entries[0].attempts);
    assert_eq!((requests(&entries), entries[1].attempts), (vec![1, 2], 0));
}

pub async fn many_hands_are_reported_at_once(ground: &Ground) {
    let worker = worker("node/1", 1);
    let wanted: Vec<_> = (0..12).map(|no| (bucket(no), 9)).collect();
    for no in 0..12 {
        ground.accept_requests(bucket(no), 1..4);
    }
    let claimed = ground.outbox.claim(&worker, &wanted).await;
    let mut hands: Vec<_> = claimed
        .into_iter()
        .map(|(bucket, entries)| {
            (Hand { bucket, entries: entries.unwrap() }, vec![Fate::Published; 3])
        })
        .collect();
    assert_eq!(hands.len(), 12);
    // One that does not fit, one with too few fates: the others are none the worse.
    hands[3].0.entries.pop();
    hands[3].1.pop();
    hands[5].1.pop();
    for (of, outcome) in ground.outbox.report(&worker, hands).await {
        match of.bucket.0 {
            3 => assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}"),
            5 => assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}"),
            _ => assert_eq!(outcome, Ok(())),
        }
    }
    for no in 0..12 {
        let left = ground.hand(bucket(no), &worker).await.entries.len();
        assert_eq!(left, if no == 3 || no == 5 { 3 } else { 0 });
    }
}

pub async fn a_report_that_does_not_fit_the_hand_removes_nothing(ground: &Ground) {
    let worker = worker("node/1", 1);
    let hand = holding(ground, &worker, 4).await;
    let with = |places: &[usize]| {
        let entries = places.iter().map(|place| hand.entries[*place].clone()).collect();
        Hand { bucket: bucket(0), entries }
    };
    let other = Entry { bytes: body(&[9]).into(), id: [7; 28].into(), attempts: 0 };
    let mut foreign = hand.clone();
    foreign.entries[3] = other.clone();
    let mut longer = hand.clone();
    longer.entries.push(other);
    let wrong =
        [with(&[0]), with(&[0, 1, 2]), with(&[1, 2, 3]), with(&[3, 2, 1, 0]), foreign, longer];
    for wrong in wrong {
        // In one of them only the order is wrong, which is no loss where entries have numbers.
        let is_permutation = wrong.entries.len() == 4 && wrong.entries[3].id == hand.entries[0].id;
        for fate in [Fate::Published, Fate::Failed, dead_of("why")] {
            if is_permutation && ground.kind != Kind::List {
                continue;
            }
            let fates = vec![fate; wrong.entries.len()];
            let error = ground.report(&worker, wrong.clone(), fates).await.unwrap_err();
            assert!(matches!(error, Error::Unknown { .. }), "{error}");
            // In doubt, nothing more is claimed until somebody has looked.
            let refused = claim(ground.outbox.as_ref(), bucket(0), &worker, 9).await.unwrap_err();
            assert!(matches!(refused, Error::Unknown { .. }), "{refused}");
            assert_eq!(ground.hand(bucket(0), &worker).await, hand);
        }
    }
    assert_eq!(ground.dead(bucket(0)).await, []);
    ground.report(&worker, hand, vec![Fate::Published; 4]).await.unwrap();
}

pub async fn a_report_that_comes_late_removes_nothing(ground: &Ground) {
    let worker = worker("node/1", 1);
    ground.accept_requests(bucket(0), 1..7);
    let claimed = ground.claim(bucket(0), &worker, 3).await;
    let old = Hand { bucket: bucket(0), entries: claimed };
    let again = || ground.report(&worker, old.clone(), vec![Fate::Published; 3]);
    again().await.unwrap();
    // As many others, in the same hand: a copy of the report that was under way all the time.
    ground.claim(bucket(0), &worker, 3).await;
    again().await.unwrap_err();
    assert_eq!(requests(&ground.hand(bucket(0), &worker).await.entries), [4, 5, 6]);
    // And after its hand went away and came back.
    ground.outbox.give_back(bucket(0), "node/1").await.unwrap();
    let successor = Worker { life: 2, ..worker.clone() };
    ground.claim(bucket(0), &successor, 3).await;
    assert_eq!(again().await, Err(replaced(&worker)));
    assert_eq!(requests(&ground.hand(bucket(0), &successor).await.entries), [4, 5, 6]);
}

pub async fn an_earlier_life_is_refused(ground: &Ground) {
    let (first, second) = (worker("node/1", 1), worker("node/1", 2));
    let hand = holding(ground, &first, 3).await;
    // The successor is in the same process or, as far as the store knows, anywhere.
    let successor = ground.elsewhere();
    assert_eq!(successor.in_hand(bucket(0), &second).await.unwrap(), hand, "it inherits");
    let outcome = ground.report(&first, hand.clone(), vec![Fate::Published; 3]).await;
    assert_eq!(outcome, Err(replaced(&first)));
    assert_eq!(successor.in_hand(bucket(0), &second).await.unwrap(), hand);
    ground.accept_requests(bucket(0), 4..5);
    let outbox = ground.outbox.as_ref();
    assert_eq!(claim(outbox, bucket(0), &first, 9).await, Err(replaced(&first)));
    assert_eq!(outbox.in_hand(bucket(0), &first).await, Err(replaced(&first)));
    // Also where nothing is remembered of it.
    let elsewhere = ground.elsewhere();
    assert_eq!(elsewhere.in_hand(bucket(0), &first).await, Err(replaced(&first)));
    let elsewhere = ground.elsewhere();
    assert_eq!(claim(elsewhere.as_ref(), bucket(0), &first, 9).await, Err(replaced(&first)));
    report(successor.as_ref(), &second, hand, vec![Fate::Published; 3]).await.unwrap();
    assert_eq!(requests(&claim(successor.as_ref(), bucket(0), &second, 9).await.unwrap()), [4]);
}

pub async fn a_worker_whose_hand_was_given_back_is_refused(ground: &Ground) {
    let paused = worker("node/1", 1);
    let hand = holding(ground, &paused, 3).await;
    let rescuer = ground.elsewhere();
    assert_eq!(rescuer.give_back(bucket(0), "node/1").await, Ok(3));
    // It wakes up.
    let outcome = ground.report(&paused, hand.clone(), vec![Fate::Published; 3]).await;
    assert_eq!(outcome, Err(replaced(&paused)));
    let outbox = ground.outbox.as_ref();
    assert_eq!(claim(outbox, bucket(0), &paused, 9).await, Err(replaced(&paused)));
    assert_eq!(outbox.in_hand(bucket(0), &paused).await, Err(replaced(&paused)));
    let other = worker("other/1", 1);
    let claimed = claim(rescuer.as_ref(), bucket(0), &other, 9).await.unwrap();
    assert_eq!(requests(&claimed), [1, 2, 3]);
    // The entries are with another: the sleeper's next life has nothing.
    let next = worker("node/1", 2);
    assert_eq!(ground.hand(bucket(0), &next).await.entries, []);
    // Also by claiming it notices.
    assert_eq!(rescuer.give_back(bucket(0), "node/1").await, Ok(0));
    assert_eq!(claim(outbox, bucket(0), &next, 9).await, Err(replaced(&next)));
}

pub async fn a_worker_that_looks_after_its_hand_was_given_back_is_refused(ground: &Ground) {
    let paused = worker("node/1", 1);
    holding(ground, &paused, 3).await;
    ground.elsewhere().give_back(bucket(0), "node/1").await.unwrap();
    let outbox = ground.outbox.as_ref();
    assert_eq!(outbox.in_hand(bucket(0), &paused).await, Err(replaced(&paused)));
    // In every bucket, as soon as it knows.
    ground.accept_requests(bucket(1), 1..4);
    assert_eq!(outbox.in_hand(bucket(1), &paused).await, Err(replaced(&paused)));
    assert_eq!(claim(outbox, bucket(1), &paused, 9).await, Err(replaced(&paused)));
}

pub async fn a_look_ends_what_is_still_under_way(ground: &Ground) {
    let worker = worker("node/1", 1);
    let hand = holding(ground, &worker, 3).await;
    ground.accept_requests(bucket(0), 4..9);
    // What another connection still had to say for the same life, as if it came late.
    let late = ground.elsewhere();
    assert_eq!(late.in_hand(bucket(0), &worker).await.unwrap(), hand);
    assert_eq!(ground.hand(bucket(0), &worker).await, hand);
    let outcome = report(late.as_ref(), &worker, hand.clone(), vec![Fate::Published; 3]).await;
    assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
    let outcome = claim(late.as_ref(), bucket(0), &worker, 9).await;
    assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
    assert_eq!(ground.hand(bucket(0), &worker).await, hand);
    ground.report(&worker, hand, vec![Fate::Published; 3]).await.unwrap();
}

pub async fn a_hand_that_was_not_looked_at_is_not_reported_on(ground: &Ground) {
    let hand = holding(ground, &worker("node/1", 1), 3).await;
    let successor = worker("node/1", 2);
    let outcome = ground.report(&successor, hand.clone(), vec![Fate::Published; 3]).await;
    assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
    assert_eq!(ground.hand(bucket(0), &successor).await, hand);
}

pub async fn a_hand_comes_back_in_front_and_in_order(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..9);
    let (one, two) = (worker("node/1", 1), worker("node/2", 1));
    ground.claim(bucket(0), &one, 3).await;
    ground.claim(bucket(0), &two, 2).await;
    assert_eq!(ground.outbox.give_back(bucket(0), "node/2").await, Ok(2));
    assert_eq!(ground.outbox.give_back(bucket(0), "node/1").await, Ok(3));
    assert_eq!(ground.outbox.give_back(bucket(0), "node/1").await, Ok(0), "once");
    assert_eq!(ground.outbox.give_back(bucket(0), "nobody/1").await, Ok(0));
    let claimed = ground.claim(bucket(0), &worker("node/3", 1), 6).await;
    assert_eq!(requests(&claimed), [1, 2, 3, 4, 5, 6]);
}

pub async fn nothing_is_left_of_workers_that_are_gone(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..40);
    for no in 0..10 {
        let name = format!("node-{no}/1");
        let worker = worker(&name, 1);
        assert_eq!(ground.claim(bucket(0), &worker, 3).await.len(), 3);
        assert_eq!(ground.outbox.give_back(bucket(0), &name).await, Ok(3));
    }
    let last = worker("node/1", 1);
    let entries = ground.claim(bucket(0), &last, 100).await;
    assert_eq!(requests(&entries), (1..40).collect::<Vec<_>>());
    let hand = Hand { bucket: bucket(0), entries };
    ground.report(&last, hand, vec![Fate::Published; 39]).await.unwrap();
    assert_eq!(ground.outbox.give_back(bucket(0), "node/1").await, Ok(0));
    let standing = ground.outbox.standing(bucket(0)).await.unwrap();
    assert_eq!(standing, floodgate::outbox::Standing::default());
    ground.nothing_is_left(bucket(0));
}
