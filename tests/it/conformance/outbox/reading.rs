//! Status, search and dead letters, as operators and rescuers read them.

use floodgate::outbox::{EntryLocation, OutboxStatus};

use super::*;

async fn status(fixture: &Fixture) -> OutboxStatus {
    fixture.outbox.status(bucket(0)).await.unwrap()
}

pub async fn the_status_counts_entries_by_place(fixture: &Fixture) {
    assert_eq!(status(fixture).await, OutboxStatus::default());
    fixture.accept(bucket(0), &[body(&[1, 2]), body(&[3]), body(&[4]), body(&[5, 6])]);
    let waiting = |num_waiting, first| OutboxStatus {
        num_waiting,
        oldest_waiting_ms: Some(placed_at_ms(first)),
        ..OutboxStatus::default()
    };
    assert_eq!(status(fixture).await, waiting(4, 1));

    let first = fixture.claim(bucket(0), "node/1.1", 1).await;
    fixture.acknowledge_ended(bucket(0), "node/1.1", &[given_up(&first[0], "why")]).await;
    fixture.claim(bucket(0), "node/2.1", 2).await;
    let oldest_claimed_ms = Some(placed_at_ms(3));
    let claimed = vec![("node/1.1".to_owned(), 0), ("node/2.1".to_owned(), 2)];
    let expected = OutboxStatus { claimed, oldest_claimed_ms, num_dead: 1, ..waiting(1, 5) };
    assert_eq!(status(fixture).await, expected, "a worker without entries is listed too");

    fixture.reclaim(bucket(0), "node/1.1").await;
    fixture.reclaim(bucket(0), "node/2.1").await;
    assert_eq!(status(fixture).await, OutboxStatus { num_dead: 1, ..waiting(3, 3) });
    let dead = fixture.dead(bucket(0)).await;
    fixture.outbox.collect(bucket(0), &dead).await.unwrap();
    fixture.claim(bucket(0), "node/3.1", 9).await;
    let claimed = vec![("node/3.1".to_owned(), 3)];
    let expected = OutboxStatus { claimed, oldest_claimed_ms, ..OutboxStatus::default() };
    assert_eq!(status(fixture).await, expected);
}

pub async fn a_request_is_found_wherever_it_is(fixture: &Fixture) {
    let find = async |no| {
        let found = fixture.outbox.find(bucket(0), request(no)).await.unwrap()?;
        assert_eq!(found.trace, TraceId(u128::from(no)));
        Some(found.location)
    };
    assert_eq!(find(1).await, None);
    // More entries than one call of a search reads.
    fixture
        .accept(bucket(0), &(0..600).map(|no| body(&[3 * no + 1, 3 * no + 2])).collect::<Vec<_>>());
    let first = fixture.claim(bucket(0), "node/1.1", 1).await;
    fixture.acknowledge_ended(bucket(0), "node/1.1", &[given_up(&first[0], "too large")]).await;
    fixture.claim(bucket(0), "node/1.1", 300).await;
    // The search also finds a dead letter between 300 others on each side.
    let filler = "filler".repeat(10);
    let fillers = vec![filler.as_bytes(); 300];
    fixture.cmd::<i64>("LPUSH", &fixture.keys(bucket(0)).dead(), &fillers);
    fixture.cmd::<i64>("RPUSH", &fixture.keys(bucket(0)).dead(), &fillers);
    let dead = Some(EntryLocation::Dead { reason: "too large".to_owned() });
    assert_eq!((find(1).await, find(2).await), (dead.clone(), dead));
    let claimed = Some(EntryLocation::Claimed { worker: "node/1.1".to_owned() });
    for (no, expected) in [
        (4, claimed.clone()),
        (3 * 299 + 2, claimed.clone()),
        (3 * 300 + 1, claimed),
        (3 * 301 + 1, Some(EntryLocation::Waiting)),
        (3 * 344 + 1, Some(EntryLocation::Waiting)),
        (3 * 599 + 2, Some(EntryLocation::Waiting)),
        (3, None),
        (3 * 600 + 1, None),
    ] {
        assert_eq!(find(no).await, expected, "{no}");
    }
    fixture.reclaim(bucket(0), "node/1.1").await;
    assert_eq!(find(4).await, Some(EntryLocation::Waiting));
}

pub async fn dead_letters_carry_all_that_is_known(fixture: &Fixture) {
    assert_eq!(fixture.dead(bucket(0)).await, []);
    fixture.accept_requests(bucket(0), 1..4);
    let entries = fixture.claim(bucket(0), "node/1.1", 9).await;
    fixture.clock.set_wall_ms(NOW_MS + 77);
    let ended = [given_up(&entries[0], "not taken: 没有路由"), given_up(&entries[2], "")];
    fixture.acknowledge_ended(bucket(0), "node/1.1", &ended).await;
    let dead = fixture.dead(bucket(0)).await;
    let fields = |dead_letter: &OutboxDeadLetter| {
        (
            dead_letter.bytes.to_vec(),
            dead_letter.reason.clone(),
            dead_letter.attempts,
            dead_letter.dead_at_ms,
        )
    };
    let expected = [
        (body(&[1]), "not taken: 没有路由".to_owned(), 2, NOW_MS + 77),
        (body(&[3]), String::new(), 2, NOW_MS + 77),
    ];
    assert_eq!(dead.iter().map(fields).collect::<Vec<_>>(), expected, "oldest first");
    assert_eq!(fixture.outbox.dead(bucket(0), 1).await.unwrap(), dead[..1]);
    assert_eq!(fixture.outbox.dead(bucket(0), 0).await.unwrap(), []);
    assert_eq!(fixture.dead(bucket(0)).await, dead, "reading removes nothing");
}

pub async fn only_what_was_read_is_collected(fixture: &Fixture) {
    fixture.accept_requests(bucket(0), 1..6);
    let entries = fixture.claim(bucket(0), "node/1.1", 9).await;
    let ended: Vec<_> = entries.iter().map(|entry| given_up(entry, "why")).collect();
    fixture.acknowledge_ended(bucket(0), "node/1.1", &ended).await;
    let dead = fixture.dead(bucket(0)).await;
    let collect = async |dead_letters: &[OutboxDeadLetter]| {
        fixture.outbox.collect(bucket(0), dead_letters).await.unwrap();
        fixture.dead(bucket(0)).await
    };
    assert_eq!(collect(&[]).await, dead);
    let left = [dead[0].clone(), dead[3].clone(), dead[4].clone()];
    assert_eq!(collect(&dead[1..3]).await, left, "dead letters in the middle can be collected");
    assert_eq!(collect(&dead[1..3]).await, left, "a repeat removes nothing");
    assert_eq!(
        collect(&dead[2..4]).await,
        [left[0].clone(), left[2].clone()],
        "one of the two was already collected"
    );
    assert_eq!(collect(&dead[..1]).await, left[2..]);
    assert_eq!(collect(&dead).await, []);
    // Undecodable dead letters are returned as they are and block no other.
    fixture.cmd::<i64>("RPUSH", &fixture.keys(bucket(0)).dead(), &[b"strange", b""]);
    let dead = fixture.dead(bucket(0)).await;
    assert_eq!(
        dead.iter().map(|dead_letter| &dead_letter.bytes[..]).collect::<Vec<_>>(),
        [&b"strange"[..], b""]
    );
    assert!(dead[0].reason.contains("no dead letter of this program"), "{}", dead[0].reason);
    assert_eq!(collect(&dead).await, []);
}

pub async fn unreadable_entries_become_dead_letters(fixture: &Fixture) {
    let undecodable: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0],
        b"not an intent".to_vec(),
        vec![0xff; 86],
        body(&[1])[1..].to_vec(),
        vec![b'x'; 2_000_000],
    ];
    fixture.accept(bucket(0), &undecodable);
    fixture.accept_requests(bucket(0), 9..10);
    let claimed = fixture.claim(bucket(0), "node/1.1", 9).await;
    let bytes: Vec<_> = claimed.iter().map(|entry| entry.bytes.clone()).collect();
    assert_eq!(bytes[..6], undecodable);
    assert_eq!(bytes[6], body(&[9]));
    let found = fixture.outbox.status(bucket(0)).await.unwrap();
    assert_eq!(found.oldest_claimed_ms, None, "the first entry has no readable time");
    let mut ended: Vec<_> =
        claimed[..6].iter().map(|entry| given_up(entry, "unreadable")).collect();
    ended.push(claimed[6].clone());
    fixture.acknowledge_ended(bucket(0), "node/1.1", &ended).await;
    let dead = fixture.dead(bucket(0)).await;
    assert_eq!(
        dead.iter().map(|dead_letter| dead_letter.bytes.clone()).collect::<Vec<_>>(),
        undecodable
    );
    assert_eq!(fixture.held(bucket(0), "node/1.1").await, []);
}
