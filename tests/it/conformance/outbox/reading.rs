//! What operators and rescuers see, and dead letters.

use floodgate::outbox::{EntryPlace, OutboxStatus};

use super::*;

async fn standing(ground: &Ground) -> OutboxStatus {
    ground.outbox.standing(bucket(0)).await.unwrap()
}

pub async fn the_standing_tells_what_waits_and_where(ground: &Ground) {
    assert_eq!(standing(ground).await, OutboxStatus::default());
    ground.accept(bucket(0), &[body(&[1, 2]), body(&[3]), body(&[4]), body(&[5, 6])]);
    let waiting = |num_waiting, first| OutboxStatus {
        num_waiting,
        oldest_waiting_ms: Some(placed_at_ms(first)),
        ..OutboxStatus::default()
    };
    assert_eq!(standing(ground).await, waiting(4, 1));

    let first = ground.claim(bucket(0), "node/1.1", 1).await;
    ground.end(bucket(0), "node/1.1", &[given_up(&first[0], "why")]).await;
    ground.claim(bucket(0), "node/2.1", 2).await;
    let oldest_in_hand_ms = Some(placed_at_ms(3));
    let in_hand = vec![("node/1.1".to_owned(), 0), ("node/2.1".to_owned(), 2)];
    let expected = OutboxStatus { in_hand, oldest_in_hand_ms, num_dead: 1, ..waiting(1, 5) };
    assert_eq!(standing(ground).await, expected, "a worker with nothing is named, too");

    ground.reclaim(bucket(0), "node/1.1").await;
    ground.reclaim(bucket(0), "node/2.1").await;
    assert_eq!(standing(ground).await, OutboxStatus { num_dead: 1, ..waiting(3, 3) });
    let dead = ground.dead(bucket(0)).await;
    ground.outbox.collect(bucket(0), &dead).await.unwrap();
    ground.claim(bucket(0), "node/3.1", 9).await;
    let in_hand = vec![("node/3.1".to_owned(), 3)];
    let expected = OutboxStatus { in_hand, oldest_in_hand_ms, ..OutboxStatus::default() };
    assert_eq!(standing(ground).await, expected);
}

pub async fn a_request_is_found_wherever_it_is(ground: &Ground) {
    let find = async |no| {
        let found = ground.outbox.find(bucket(0), request(no)).await.unwrap()?;
        assert_eq!(found.trace, TraceId(u128::from(no)));
        Some(found.place)
    };
    assert_eq!(find(1).await, None);
    // More than a search reads at once.
    ground
        .accept(bucket(0), &(0..600).map(|no| body(&[3 * no + 1, 3 * no + 2])).collect::<Vec<_>>());
    let first = ground.claim(bucket(0), "node/1.1", 1).await;
    ground.end(bucket(0), "node/1.1", &[given_up(&first[0], "too large")]).await;
    ground.claim(bucket(0), "node/1.1", 300).await;
    // A letter far behind others is found, too.
    let filler = "filler".repeat(10);
    let fillers = vec![filler.as_bytes(); 300];
    ground.cmd::<i64>("LPUSH", &ground.keys(bucket(0)).dead(), &fillers);
    ground.cmd::<i64>("RPUSH", &ground.keys(bucket(0)).dead(), &fillers);
    let dead = Some(EntryPlace::Dead { reason: "too large".to_owned() });
    assert_eq!((find(1).await, find(2).await), (dead.clone(), dead));
    let in_hand = Some(EntryPlace::InHand { worker: "node/1.1".to_owned() });
    for (no, expected) in [
        (4, in_hand.clone()),
        (3 * 299 + 2, in_hand.clone()),
        (3 * 300 + 1, in_hand),
        (3 * 301 + 1, Some(EntryPlace::Waiting)),
        (3 * 344 + 1, Some(EntryPlace::Waiting)),
        (3 * 599 + 2, Some(EntryPlace::Waiting)),
        (3, None),
        (3 * 600 + 1, None),
    ] {
        assert_eq!(find(no).await, expected, "{no}");
    }
    ground.reclaim(bucket(0), "node/1.1").await;
    assert_eq!(find(4).await, Some(EntryPlace::Waiting));
}

pub async fn dead_letters_tell_all_that_is_known(ground: &Ground) {
    assert_eq!(ground.dead(bucket(0)).await, []);
    ground.accept_requests(bucket(0), 1..4);
    let entries = ground.claim(bucket(0), "node/1.1", 9).await;
    ground.clock.set_wall_ms(NOW_MS + 77);
    let ended = [given_up(&entries[0], "not taken: 没有路由"), given_up(&entries[2], "")];
    ground.end(bucket(0), "node/1.1", &ended).await;
    let dead = ground.dead(bucket(0)).await;
    let told = |letter: &DeadEntry| {
        (letter.bytes.to_vec(), letter.reason.clone(), letter.attempts, letter.dead_at_ms)
    };
    let expected = [
        (body(&[1]), "not taken: 没有路由".to_owned(), 2, NOW_MS + 77),
        (body(&[3]), String::new(), 2, NOW_MS + 77),
    ];
    assert_eq!(dead.iter().map(told).collect::<Vec<_>>(), expected, "oldest first");
    assert_eq!(ground.outbox.dead(bucket(0), 1).await.unwrap(), dead[..1]);
    assert_eq!(ground.outbox.dead(bucket(0), 0).await.unwrap(), []);
    assert_eq!(ground.dead(bucket(0)).await, dead, "reading removes nothing");
}

pub async fn only_what_was_read_is_collected(ground: &Ground) {
    ground.accept_requests(bucket(0), 1..6);
    let entries = ground.claim(bucket(0), "node/1.1", 9).await;
    let ended: Vec<EndedEntry> = entries.iter().map(|entry| given_up(entry, "why")).collect();
    ground.end(bucket(0), "node/1.1", &ended).await;
    let dead = ground.dead(bucket(0)).await;
    let collect = async |letters: &[DeadEntry]| {
        ground.outbox.collect(bucket(0), letters).await.unwrap();
        ground.dead(bucket(0)).await
    };
    assert_eq!(collect(&[]).await, dead);
    let left = [dead[0].clone(), dead[3].clone(), dead[4].clone()];
    assert_eq!(collect(&dead[1..3]).await, left, "also from the middle");
    assert_eq!(collect(&dead[1..3]).await, left, "a repeat removes nothing");
    assert_eq!(collect(&dead[2..4]).await, [left[0].clone(), left[2].clone()], "half is gone");
    assert_eq!(collect(&dead[..1]).await, left[2..]);
    assert_eq!(collect(&dead).await, []);
    // What nobody here wrote holds up no other, and is shown as it is.
    ground.cmd::<i64>("RPUSH", &ground.keys(bucket(0)).dead(), &[b"strange", b""]);
    let dead = ground.dead(bucket(0)).await;
    assert_eq!(
        dead.iter().map(|letter| &letter.bytes[..]).collect::<Vec<_>>(),
        [&b"strange"[..], b""]
    );
    assert!(dead[0].reason.contains("no dead letter of this program"), "{}", dead[0].reason);
    assert_eq!(collect(&dead).await, []);
}

pub async fn what_cannot_be_read_passes_through_to_the_dead(ground: &Ground) {
    let strange: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0],
        b"not an intent".to_vec(),
        vec![0xff; 86],
        body(&[1])[1..].to_vec(),
        vec![b'x'; 2_000_000],
    ];
    ground.accept(bucket(0), &strange);
    ground.accept_requests(bucket(0), 9..10);
    let claimed = ground.claim(bucket(0), "node/1.1", 9).await;
    let bytes: Vec<_> = claimed.iter().map(|entry| entry.bytes.clone()).collect();
    assert_eq!(bytes[..6], strange);
    assert_eq!(bytes[6], body(&[9]));
    let found = ground.outbox.standing(bucket(0)).await.unwrap();
    assert_eq!(found.oldest_in_hand_ms, None, "no time can be read in the first");
    let mut ended: Vec<_> =
        claimed[..6].iter().map(|entry| given_up(entry, "unreadable")).collect();
    ended.push(published(&claimed[6]));
    ground.end(bucket(0), "node/1.1", &ended).await;
    let dead = ground.dead(bucket(0)).await;
    assert_eq!(dead.iter().map(|letter| letter.bytes.clone()).collect::<Vec<_>>(), strange);
    assert_eq!(ground.held(bucket(0), "node/1.1").await, []);
}
