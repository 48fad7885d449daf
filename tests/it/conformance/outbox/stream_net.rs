//! What only a stream can do to its workers: entries that nobody answers for, entries that vanish.

use super::*;

/// A hand that was claimed behind the back of every worker, as by hand from a console.
fn grab(ground: &Ground, consumer: &str, size: u32) {
    let (line, size) = (ground.keys(bucket(0)).line(), size.to_string());
    let words = ["XREADGROUP", "GROUP", "relay", consumer, "COUNT", &size, "STREAMS", &line, ">"];
    ground.redis().cmd(&words);
}

/// Makes what a consumer holds seem so old.
fn age(ground: &Ground, consumer: &str, by: Duration) {
    type Row = (String, String, i64, i64);
    let (line, by_ms) = (ground.keys(bucket(0)).line(), by.as_millis().to_string());
    let rows = ground.redis().cmd(&["XPENDING", &line, "relay", "-", "+", "1000", consumer]);
    for (id, ..) in redis::from_redis_value::<Vec<Row>>(rows).unwrap() {
        let claim = ["XCLAIM", &line, "relay", consumer, "0", &id, "IDLE", &by_ms, "JUSTID"];
        ground.redis().cmd(&claim);
    }
}

#[test]
fn what_nobody_answers_for_is_seen_and_given_back_like_any_hand() {
    let ground = Ground::single(Kind::Stream);
    run(async {
        ground.accept_requests(bucket(0), 1..6);
        let worker = worker("node/1", 1);
        ground.hand(bucket(0), &worker).await;
        grab(&ground, "console", 2);
        let standing = ground.outbox.standing(bucket(0)).await.unwrap();
        assert_eq!(standing.num_waiting, 3);
        assert_eq!(standing.in_hand, [("console".to_owned(), 2), ("node/1".to_owned(), 0)]);
        assert_eq!(ground.outbox.give_back(bucket(0), "console").await, Ok(2));
        assert_eq!(requests(&ground.claim(bucket(0), &worker, 9).await), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn what_was_held_for_too_long_is_swept_back_part_by_part() {
    let ground = Ground::single(Kind::Stream);
    run(async {
        // More than one sweep takes along.
        ground.accept_requests(bucket(0), 1..251);
        let (slow, quick) = (worker("slow/1", 1), worker("quick/1", 1));
        ground.hand(bucket(0), &slow).await;
        grab(&ground, "console", 240);
        age(&ground, "console", LONGEST_IN_HAND.checked_sub(Duration::from_secs(60)).unwrap());
        assert_eq!(requests(&ground.claim(bucket(0), &slow, 5).await), [241, 242, 243, 244, 245]);
        let early = ground.claim(bucket(0), &quick, 1).await;
        assert_eq!(requests(&early), [246], "they may still be in good hands");

        age(&ground, "console", LONGEST_IN_HAND);
        ground.clock.advance(LONGEST_IN_HAND / 4);
        let mut claimed = requests(&early);
        while claimed.len() < 245 {
            let more = requests(&ground.claim(bucket(0), &quick, 80).await);
            assert!(!more.is_empty(), "after {}", claimed.len());
            claimed.extend(more);
        }
        claimed.sort_unstable();
        let expected: Vec<_> = (1..241).chain(246..251).collect();
        assert_eq!(claimed, expected, "but not what the slow one holds");
        assert_eq!(requests(&ground.hand(bucket(0), &slow).await.entries).len(), 5);
    });
}

#[test]
fn a_worker_that_was_swept_looks_again_and_goes_on() {
    let ground = Ground::single(Kind::Stream);
    run(async {
        ground.accept_requests(bucket(0), 1..4);
        let (slow, quick) = (worker("slow/1", 1), worker("quick/1", 1));
        let entries = ground.claim(bucket(0), &slow, 2).await;
        age(&ground, "slow/1", LONGEST_IN_HAND * 2);
        let elsewhere = ground.elsewhere();
        let swept = claim(elsewhere.as_ref(), bucket(0), &quick, 9).await.unwrap();
        assert_eq!(requests(&swept), [1, 2, 3]);
        let hand = Hand { bucket: bucket(0), entries };
        let error = ground.report(&slow, hand, vec![Fate::Published; 2]).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
        assert_eq!(ground.hand(bucket(0), &slow).await.entries, []);
        assert_eq!(ground.claim(bucket(0), &slow, 9).await, []);
        assert_eq!(elsewhere.in_hand(bucket(0), &quick).await.unwrap().entries.len(), 3);
    });
}

#[test]
fn entries_that_vanish_from_a_hand_raise_an_alarm_wherever_they_are_missed() {
    let ground = Ground::single(Kind::Stream);
    run(async {
        ground.accept_requests(bucket(0), 1..11);
        let one = worker("node/1", 1);
        let claimed = ground.claim(bucket(0), &one, 8).await;
        let delete = |entry: &Entry| {
            let deleted: u64 = ground.cmd("XDEL", &ground.keys(bucket(0)).line(), &[&entry.id]);
            assert_eq!(deleted, 1);
        };
        assert_eq!(ground.outbox.num_vanished(), 0);
        // By whoever looks.
        delete(&claimed[0]);
        let hand = ground.hand(bucket(0), &one).await;
        assert_eq!((requests(&hand.entries)[0], ground.outbox.num_vanished()), (2, 1));
        // By a report that counts an attempt; what was published is missed by nobody.
        delete(&claimed[1]);
        delete(&claimed[2]);
        let mut fates = vec![Fate::Kept; 7];
        (fates[0], fates[1]) = (Fate::Failed, Fate::Published);
        ground.report(&one, hand, fates).await.unwrap();
        assert_eq!(ground.outbox.num_vanished(), 2);
        assert_eq!(requests(&ground.claim(bucket(0), &one, 1).await), [9], "no doubt is left");
        // When a hand goes back.
        delete(&claimed[3]);
        assert_eq!(ground.outbox.give_back(bucket(0), "node/1").await, Ok(5));
        assert_eq!(ground.outbox.num_vanished(), 3);
        // While nobody holds it.
        delete(&claimed[4]);
        let two = worker("node/2", 1);
        assert_eq!(requests(&ground.claim(bucket(0), &two, 2).await), [6], "one was found gone");
        assert_eq!(ground.outbox.num_vanished(), 4);
        // By the sweep.
        age(&ground, "node/2", LONGEST_IN_HAND * 2);
        delete(&claimed[5]);
        ground.clock.advance(LONGEST_IN_HAND);
        let claimed = ground.claim(bucket(0), &worker("node/3", 1), 99).await;
        assert_eq!(requests(&claimed), [7, 8, 9, 10]);
        assert_eq!(ground.outbox.num_vanished(), 5);
        let error = claim(ground.outbox.as_ref(), bucket(0), &two, 9).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
    });
}

#[test]
fn an_entry_of_another_form_is_shown_whole() {
    let ground = Ground::single(Kind::Stream);
    run(async {
        let line = ground.keys(bucket(0)).line();
        let forms: [&[&[u8]]; 3] =
            [&[b"*", b"order", b"1"], &[b"*", b"intents", b"a", b"more", b"b"], &[b"*", b"", b""]];
        for form in forms {
            ground.cmd::<String>("XADD", &line, form);
        }
        let claimed = ground.claim(bucket(0), &worker("node/1", 1), 9).await;
        let bytes: Vec<_> = claimed.iter().map(|entry| &entry.bytes[..]).collect();
        assert_eq!(bytes, [&b"order 1"[..], b"intents a more b", b" "]);
    });
}

#[test]
fn a_stream_that_was_deleted_under_its_workers_begins_anew() {
    let ground = Ground::single(Kind::Stream);
    run(async {
        let worker = worker("node/1", 1);
        ground.accept_requests(bucket(0), 1..3);
        let entries = ground.claim(bucket(0), &worker, 9).await;
        ground.cmd::<i64>("DEL", &ground.keys(bucket(0)).line(), &[]);
        let hand = Hand { bucket: bucket(0), entries };
        let error = ground.report(&worker, hand, vec![Fate::Published; 2]).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { .. }), "{error}");
        assert_eq!(ground.hand(bucket(0), &worker).await.entries, []);
        ground.accept_requests(bucket(0), 3..4);
        assert_eq!(requests(&ground.claim(bucket(0), &worker, 9).await), [3]);
    });
}
