//! Accepted intents in list and stream outboxes, and the count of queued requests.

use floodgate::domain::{
    Epoch, LoaderToken, Order, OrderIntent, OrderState, Phase, Refusal, RequestRecord, Verdict,
};
use floodgate::redis::scripts::lookup::read_queued;
use floodgate::redis::scripts::reserve_settle::{SettleOutcome, release, settle};
use floodgate::redis::scripts::{BucketFence, EntryLimits, Error, OpenBucket, OutboxArgs};

use super::harness::{Fixture, KINDS, LOADER, OUTBOXES, ScriptClient, opening, refused, sku};
use super::scenarios::policies;
use crate::support::intents::pack;
use crate::support::offers::{ANY, ONE, order_of};
use crate::support::servers::redis::Redis;

fn outboxes(envelope_max: usize, entries_max: u64) -> [OutboxArgs; 2] {
    let entries = EntryLimits { envelope_max, entries_max };
    [OutboxArgs::List(entries), OutboxArgs::Stream(entries)]
}

/// Runs the test once per outbox, each on a fresh server with one open SKU.
fn each(outboxes: [OutboxArgs; 2], mut test: impl FnMut(&mut ScriptClient, &Fixture, OutboxArgs)) {
    for outbox in outboxes {
        let redis = Redis::start();
        let mut client = ScriptClient::new(&redis);
        let fixture = Fixture::open(&redis, &mut client, sku(1, ONE, 200), 100);
        test(&mut client, &fixture, outbox);
    }
}

fn reservations(fixture: &Fixture, numbers: std::ops::Range<u64>) -> Vec<OrderIntent> {
    numbers.map(|no| fixture.reservation(no, no, 1)).collect()
}

fn packed(reservations: &[OrderIntent]) -> Vec<u8> {
    reservations.iter().flat_map(pack).collect()
}

/// `accepted` reservations, then `full` rejections.
fn accepted_then_full(accepted: usize, full: usize) -> Vec<Verdict> {
    [vec![Verdict::Reserved; accepted], vec![Verdict::Full; full]].concat()
}

#[test]
fn a_batch_leaves_exactly_what_was_accepted() {
    each(OUTBOXES, |client, fixture, outbox| {
        let [a, b, c] = [
            fixture.reservation(1, 1, 2),
            fixture.reservation(2, 2, 3),
            fixture.reservation(3, 3, 1),
        ];
        let (other, over) = (fixture.reservation(1, 4, 2), fixture.reservation(5, 5, 99));
        fixture.reserve_into(client, outbox, &[a, other, b, over, a]);
        fixture.reserve_into(client, outbox, &[a, other, b, over]);
        assert_eq!(fixture.reserve_into(client, outbox, &[c]), [Verdict::Reserved]);
        let expected = [packed(&[a, b]), packed(&[c])];
        assert_eq!(fixture.entries(client, 0, outbox), expected);
        let counts = fixture.counts(client, 0);
        assert_eq!(
            (counts.num_queued, counts.num_kept),
            (3, 0),
            "the outbox entry is the only copy of the intent"
        );
    });
}

#[test]
fn a_batch_is_cut_into_envelopes_and_two_batches_share_none() {
    for envelope_max in [1, 2, 4, 5, 64] {
        each(outboxes(envelope_max, 1_000), |client, fixture, outbox| {
            let (first, second) = (reservations(fixture, 1..11), reservations(fixture, 11..14));
            // A repeat within the batch leaves no gap.
            let mut batch = first.clone();
            batch.insert(3, first[0]);
            fixture.reserve_into(client, outbox, &batch);
            fixture.reserve_into(client, outbox, &second);
            let chunks = first.chunks(envelope_max).chain(second.chunks(envelope_max));
            let expected: Vec<_> = chunks.map(packed).collect();
            assert_eq!(fixture.entries(client, 0, outbox), expected, "{envelope_max}");
        });
    }
}

#[test]
fn thousands_of_entries_wait_and_keep_their_order() {
    for outbox in outboxes(1, 10_000) {
        let redis = Redis::start();
        let mut client = ScriptClient::new(&redis);
        let fixture = Fixture::open(&redis, &mut client, sku(1, ANY, 12_000), 6_000);
        let all = reservations(&fixture, 1..5_001);
        for batch in all.chunks(1_000) {
            fixture.reserve_into(&mut client, outbox, batch);
        }
        let expected: Vec<_> = all.iter().map(pack).collect();
        assert!(fixture.entries(&mut client, 0, outbox) == expected, "{outbox:?}");
    }
}

#[test]
fn a_full_outbox_accepts_no_more_than_has_room() {
    each(outboxes(3, 2), |client, fixture, outbox| {
        let all = reservations(fixture, 1..9);
        assert_eq!(fixture.reserve_into(client, outbox, &all), accepted_then_full(6, 2));
        assert_eq!(fixture.counts(client, 0).left.stock, 94);
        // Requests that need no outbox entry get their usual verdict.
        let over = [fixture.reservation(20, 20, 95), fixture.reservation(1, 1, 2)];
        let batch = [&all[..1], &over, &all[7..]].concat();
        let expected = [
            Verdict::Queued { intent: None },
            Verdict::Short,
            Verdict::Refused(Refusal::RequestIdReused),
            Verdict::Full,
        ];
        let before = client.digest();
        assert_eq!(fixture.reserve_into(client, outbox, &batch), expected);
        assert_eq!(client.digest(), before, "a batch without a reservation writes nothing");
        // A relay removes one entry.
        let key = fixture.buckets[0].outbox();
        match outbox {
            OutboxArgs::List(_) => drop(client.cmd(&["LPOP", &key])),
            _ => drop(client.cmd(&["XTRIM", &key, "MAXLEN", "1"])),
        }
        let more = reservations(fixture, 30..35);
        assert_eq!(fixture.reserve_into(client, outbox, &more), accepted_then_full(3, 2));
        assert_eq!(fixture.reserve_into(client, outbox, &more[3..]), accepted_then_full(0, 2));
        let counts = fixture.counts(client, 0);
        assert_eq!((counts.num_queued, counts.left.stock), (9, 91));
        fixture.set_phase(client, 0, Phase::Paused, Epoch(1));
        let refusal = Verdict::Refused(Refusal::NotStarted);
        assert_eq!(
            fixture.reserve_into(client, outbox, &all[7..]),
            [refusal],
            "the phase is checked before the outbox"
        );
    });
}

#[test]
fn an_outbox_that_is_too_full_already_accepts_nothing() {
    // The limit was lowered below the number of entries, and to 0.
    each(outboxes(1, 5), |client, fixture, outbox| {
        fixture.reserve_into(client, outbox, &reservations(fixture, 1..6));
        for lower in [3, 0] {
            let [list, stream] = outboxes(1, lower);
            let lowered = if matches!(outbox, OutboxArgs::List(_)) { list } else { stream };
            let verdicts = fixture.reserve_into(client, lowered, &reservations(fixture, 6..8));
            assert_eq!(verdicts, accepted_then_full(0, 2));
        }
    });
}

#[test]
fn a_stream_without_another_id_takes_nothing() {
    let [_, outbox] = outboxes(2, 1_000);
    each([outbox; 2], |client, fixture, outbox| {
        let last = format!("{0}-{0}", u64::MAX);
        client.cmd(&["XADD", &fixture.buckets[0].outbox(), &last, "intents", "x"]);
        let before = client.digest();
        let batch = reservations(fixture, 1..6);
        let call = fixture.reserving(0, outbox, &batch);
        assert!(client.send(&fixture.fenced(call)).is_err());
        assert_eq!(client.digest(), before);
    });
}

#[test]
fn queued_requests_are_counted_on_every_path() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let kinds = policies().into_iter().flat_map(|policy| KINDS.map(|outbox| (policy, outbox)));
    for (no, (policy, outbox)) in (1..).zip(kinds) {
        let fixture = Fixture::open(&redis, &mut client, sku(no, policy, 200), 100);
        let client = &mut client;
        let queued = |client: &mut ScriptClient| fixture.counts(client, 0).num_queued;
        assert_eq!(queued(client), 0);
        let all = reservations(&fixture, 1..8);
        fixture.reserve_into(client, outbox, &all);
        assert_eq!(queued(client), 7);
        fixture.reserve_into(client, outbox, &all);
        assert_eq!(queued(client), 7, "repeats are not queued again");
        let order = order_of;
        // One order twice in a batch, then again after it was settled.
        fixture.settle(client, 0, &[order(&all[0]), order(&all[1]), order(&all[0])]);
        assert_eq!(queued(client), 5);
        assert_eq!(fixture.settle(client, 0, &[order(&all[0])]), [SettleOutcome::Repeat]);
        assert_eq!(queued(client), 5);
        let ended = Order { state: OrderState::TimedOut, ..order(&fixture.reservation(31, 31, 1)) };
        let adopted = [order(&fixture.reservation(30, 30, 1)), ended];
        assert_eq!(fixture.settle(client, 0, &adopted), [SettleOutcome::Adopted; 2]);
        assert_eq!(queued(client), 5, "an adopted order was never queued");
        let twice = [refused(&all[2], Refusal::Ended), refused(&all[2], Refusal::Ended)];
        assert_eq!(
            fixture.release(client, 0, &twice).0,
            [SettleOutcome::Now, SettleOutcome::Repeat]
        );
        fixture.release(client, 0, &[refused(&all[3], Refusal::SoldOut)]);
        assert_eq!(queued(client), 3);
        let others = [
            refused(&all[0], Refusal::Ended),
            refused(&fixture.reservation(40, 40, 1), Refusal::Ended),
        ];
        let outcomes = fixture.release(client, 0, &others).0;
        assert_eq!(outcomes, [SettleOutcome::Contradicts, SettleOutcome::Unknown]);
        assert_eq!(fixture.settle(client, 0, &[order(&all[2])]), [SettleOutcome::Contradicts]);
        let mistaken = Order { quantity: 9, ..order(&all[4]) };
        assert_eq!(fixture.settle(client, 0, &[mistaken]), [SettleOutcome::Mismatch]);
        assert_eq!(queued(client), 3);
        assert_eq!(requests(client, &fixture), [5, 6, 7]);
        fixture.settle(client, 0, &all[4..].iter().map(order).collect::<Vec<_>>());
        assert_eq!(queued(client), 0);
        fixture.reserve_into(client, outbox, &reservations(&fixture, 50..52));
        // A load keeps the queued requests; the loader passes their count.
        assert_eq!(fixture.load_begin(client, 0, LoaderToken(1)), Ok(vec![50, 51]));
        let open = OpenBucket { num_queued: 2, ..opening(LoaderToken(1), 98) };
        assert_eq!(fixture.run(client, &open.call(&fixture.buckets[0])), Ok(true));
        assert_eq!(queued(client), 2);
        assert_eq!(
            fixture.settle(client, 0, &[order(&fixture.reservation(50, 50, 1))]),
            [SettleOutcome::Now]
        );
        assert_eq!(queued(client), 1);
    }
}

/// The numbers of the queued requests.
fn requests(client: &mut ScriptClient, fixture: &Fixture) -> Vec<u64> {
    let found = fixture.run(client, &fixture.queued(0)).unwrap();
    let mut numbers: Vec<_> = found.into_iter().map(|request| request.unwrap().0.get()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_count_that_cannot_be_is_refused() {
    let redis = Redis::start();
    let mut client = ScriptClient::new(&redis);
    let fixture = Fixture::open(&redis, &mut client, sku(1, ANY, 200), 100);
    let all = reservations(&fixture, 1..4);
    fixture.reserve(&mut client, 0, &all);
    client.cmd(&["HSET", &fixture.buckets[0].bucket(), "queued", "1"]);
    let before = client.digest();
    let corrupt = Err(Error::Corrupt { what: "queued".to_owned() });
    let orders: Vec<_> = all.iter().map(order_of).collect();
    let settle = settle(&fixture.buckets[0], &fixture.sku, &orders);
    assert_eq!(fixture.run(&mut client, &settle), corrupt);
    let refused: Vec<_> =
        all.iter().map(|reservation| refused(reservation, Refusal::Ended)).collect();
    let release = release(&fixture.buckets[0], &fixture.sku, &refused);
    assert_eq!(fixture.run(&mut client, &release), corrupt);
    assert_eq!(client.digest(), before);
}

#[test]
fn queued_requests_are_read_page_by_page_whatever_the_server() {
    each(OUTBOXES, |client, fixture, outbox| {
        let all = reservations(fixture, 1..60);
        fixture.reserve_into(client, outbox, &all);
        fixture.settle(client, 0, &[order_of(&all[9])]);
        fixture.release(client, 0, &[refused(&all[10], Refusal::Ended)]);
        let queued: Vec<OrderIntent> = all
            .iter()
            .filter(|reservation| ![10, 11].contains(&reservation.request.get()))
            .copied()
            .collect();
        let elsewhere = BucketFence { server: "elsewhere".into(), ..fixture.fence.clone() };
        for fixture in [fixture, &Fixture { fence: elsewhere, ..fixture.clone() }] {
            let mut found = Vec::new();
            for page in fixture.pages().all() {
                let read = read_queued(&fixture.buckets[0], page..page + 1);
                found.extend(fixture.run(client, &read).unwrap().into_iter().map(Result::unwrap));
            }
            found.sort_by_key(|(request, _)| *request);
            let expected =
                queued.iter().map(|intent| (intent.request, RequestRecord::queued(intent)));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_bucket_that_is_being_loaded_lists_what_is_queued() {
    each(OUTBOXES, |client, fixture, outbox| {
        let all = reservations(fixture, 1..9);
        fixture.reserve_into(client, outbox, &all);
        fixture.settle(client, 0, &[order_of(&all[3])]);
        let expected = [1, 2, 3, 5, 6, 7, 8];
        let loader = LoaderToken(LOADER.0 + 1);
        assert_eq!(fixture.hold(client, 0, loader), Ok(true));
        assert_eq!(requests(client, fixture), expected, "held");
        assert_eq!(fixture.clear(client, 0, loader), Ok(expected.to_vec()));
        assert_eq!(requests(client, fixture), expected, "cleared");
    });
}
