//! Status and search, as operators and rescuers read them; and entries of other programs.

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
    fixture.acknowledge(bucket(0), "node/1.1", &first).await;
    fixture.claim(bucket(0), "node/2.1", 2).await;
    let oldest_claimed_ms = Some(placed_at_ms(3));
    let claimed = vec![("node/1.1".to_owned(), 0), ("node/2.1".to_owned(), 2)];
    let expected = OutboxStatus { claimed, oldest_claimed_ms, ..waiting(1, 5) };
    assert_eq!(status(fixture).await, expected, "a worker without entries is listed too");

    fixture.reclaim(bucket(0), "node/1.1").await;
    fixture.reclaim(bucket(0), "node/2.1").await;
    assert_eq!(status(fixture).await, waiting(3, 3));
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
    fixture.acknowledge(bucket(0), "node/1.1", &first).await;
    assert_eq!((find(1).await, find(2).await), (None, None));
    fixture.claim(bucket(0), "node/1.1", 300).await;
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

pub async fn unreadable_entries_are_claimed_and_removed(fixture: &Fixture) {
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
    // In another order than theirs, so that each is searched for.
    for entry in claimed.iter().rev() {
        fixture.acknowledge(bucket(0), "node/1.1", std::slice::from_ref(entry)).await;
    }
    assert_eq!(fixture.held(bucket(0), "node/1.1").await, []);
}
